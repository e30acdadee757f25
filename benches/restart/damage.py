"""Damage to the files of a data directory, for faults.py."""
import errno, os, random, shutil, signal, subprocess, time

import common, recovered
from common import Master, log, wait


class Base:
    """a data directory as a master has left it, with the state that it must recover"""

    def __init__(self, name, path, store):
        self.name, self.path, self.store = name, path, store

    def files(self):
        return sorted(n for n in os.listdir(self.path) if os.path.isfile(os.path.join(self.path, n)))

    def used(self, name):
        path = os.path.join(self.path, name)
        return common.used_bytes(path, os.path.getsize(path))

    def listing(self):
        return {n: (os.path.getsize(os.path.join(self.path, n)), self.used(n)) for n in self.files()}


def bases(args, root):
    """killed: only a log; snapshots: two snapshots and a log behind them, killed; stopped: after SIGTERM"""
    return [make(args, root, *b) for b in (("killed", 3600, signal.SIGKILL), ("snapshots", 1, signal.SIGKILL), ("stopped", 3600, signal.SIGTERM))]


def make(args, root, name, snapshot_seconds, how):
    path = os.path.join(root, f"base-{name}")
    shutil.rmtree(path, ignore_errors=True)
    master = Master(args.binary, root, common.data_flags(path, "always", snapshot_seconds), name=f"base-{name}-master")
    process = master.start_ready()
    store = recovered.Store(master)
    store.mount()
    if name == "snapshots":
        # keys before, between and behind the snapshots
        for n in range(4):
            store.fill(args.keys // 4, f"s{n}")
            seen = snapshots(path)
            if n < 3:
                wait("a snapshot", 30, lambda: snapshots(path) - seen)
        # no snapshot shortly before the kill: the log must have something behind the last one
        seen = snapshots(path)
        wait("the next snapshot", 30, lambda: snapshots(path) - seen)
        store.fill(args.keys // 10, "tail")
    else:
        store.fill(args.keys, "f")
    store.fill(50, "last")  # more puts and removals than one frame at the end
    store.disconnect()
    process.end(how)
    return Base(name, path, store)


def snapshots(path):
    return {n for n in os.listdir(path) if n.startswith("snapshot-") and not n.endswith(".tmp")}


def judge(args, root, base, case, change, file, add, part="damage"):
    """copies the directory, changes the copy, and starts a master on it"""
    work = os.path.join(root, "work")
    shutil.rmtree(work, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", base.path, work], check=True)
    change(os.path.join(work, file))
    outcome = recovered.start_and_judge(args.binary, root, work, base.store, file)
    kind = file.split("-")[0]
    add(part, f"{base.name} {kind} {case}", dict(outcome, file=file, group=f"{base.name}: {kind}, {case.split(' at ')[0]}"))


def flip(offset, bit):
    def change(path):
        with open(path, "r+b") as f:
            f.seek(offset)
            byte = f.read(1)[0]
            f.seek(offset)
            f.write(bytes([byte ^ 1 << bit]))
    return change


def zero(offset, length=512):
    def change(path):
        with open(path, "r+b") as f:
            f.seek(offset)
            f.write(b"\0" * length)
    return change


def cut(size):
    return lambda path: os.truncate(path, size)


def extend(path):
    with open(path, "ab") as f:
        f.write(b"\xa5" * 100)


def parts_of(name, used, size):
    """(part, first offset, last offset) of a file"""
    if name.startswith("log-"):
        out = [("header", 0, 511)]
        if used > 512:
            middle = (512 + used) // 2
            out += [("first frame", 512, min(used - 1, 560)), ("frame", middle, min(used - 1, middle + 4000)), ("last frame", max(512, used - 30), used - 1)]
        if size > used + 4096:
            out.append(("unused rest", used + 4000, size - 1))
        return out
    if name.startswith("snapshot-"):
        return [("header", 0, 511), ("chunk header", 512, 520), ("chunk", 600, max(600, used - 40)), ("trailer", max(512, size - 33), size - 1)]
    return [("content", 0, size - 1)] if size else []


def run(args, root, bases, rng, wanted, add):
    for base in bases:
        for name in base.files():
            size, used = os.path.getsize(os.path.join(base.path, name)), base.used(name)
            cases = []
            for part, first, last in parts_of(name, used, size):
                offsets = {rng.randint(first, last) for _ in range(args.flips * (3 if part == "content" else 1))} | {first, last}
                cases += [(f"bit flip in {part} at {o}", flip(o, rng.randrange(8))) for o in sorted(offsets)]
                if part != "content":
                    cases.append((f"zeroed sector in {part} at {first}", zero(first, min(512, last - first + 1))))
            cases += [("missing", os.unlink), ("empty", cut(0)), ("100 bytes appended", extend)]
            for case, change in cases:
                if wanted(f"{base.name} {name} {case}"):
                    judge(args, root, base, case, change, name, add)
        log(f"damage: {base.name} done")
    whole_directory(args, root, bases, wanted, add)


def whole_directory(args, root, bases, wanted, add):
    """cases that affect more than one file, or the command line"""
    base = bases[1]
    names = base.files()
    newest = sorted(snapshots(base.path))[-1]
    both = lambda path: [flip(700, 1)(os.path.join(os.path.dirname(path), n)) for n in snapshots(base.path)]
    older = lambda path: (flip(700, 1)(os.path.join(os.path.dirname(path), newest)), remove_logs(os.path.dirname(path)))
    for case, change, file in (("both snapshots damaged", both, newest), ("newest snapshot damaged, log missing", older, newest),
                               ("log files missing", lambda path: remove_logs(os.path.dirname(path)), names[-1]),
                               ("all snapshots missing", lambda path: [os.unlink(os.path.join(os.path.dirname(path), n)) for n in snapshots(base.path)], newest)):
        if wanted(case):
            judge(args, root, base, case, change, file, add)
    invalidated(args, root, wanted, add)
    foreign = next(n for n in bases[0].files() if n.startswith("log-"))
    if wanted("log of another directory"):
        own = next((n for n in names if n.startswith("log-")), foreign)
        judge(args, root, base, "log of another directory", lambda path: shutil.copy(os.path.join(bases[0].path, foreign), path), own, add)
    if wanted("other cluster"):
        work = os.path.join(root, "work")
        shutil.rmtree(work, ignore_errors=True)
        subprocess.run(["cp", "-a", base.path, work], check=True)
        add("damage", "other cluster", recovered.start_and_judge(args.binary, root, work, base.store, None, ["--cluster_id=other"]))
    if wanted("in use"):
        add("damage", "directory in use", in_use(args, root, base))


def invalidated(args, root, wanted, add):
    """A directory that its master left with continue-memory-only. Its state is old, so no damage to the marker may make it valid again."""
    import live_faults
    if not wanted("invalidated marker"):
        return
    r = live_faults.Running(args, root, "invalidated", fsync="always", flags=["--on-disk-error", "continue-memory-only"])
    r.control.set(write=errno.ENOSPC, allocate=errno.ENOSPC, only_log=1)
    time.sleep(2)
    r.process.end(signal.SIGKILL)
    r.settle()
    base = Base("invalidated", r.data, r.store)
    size = os.path.getsize(os.path.join(r.data, "validity"))
    cases = [("unchanged", lambda path: None), ("missing", os.unlink), ("empty", cut(0)), ("100 bytes appended", extend)]
    cases += [(f"bit flip in content at {o}, bit {b}", flip(o, b)) for o in range(min(size, 16)) for b in range(8)]

    def record(part, case, outcome):
        if not outcome["outcome"].startswith(("exit 4", "expected: exit 4")):
            outcome["outcome"] = f"VIOLATION: a directory that was invalidated is used again ({outcome['outcome'][:60]})"
        add(part, case, outcome)
    for case, change in cases:
        judge(args, root, base, case, change, "validity", record)


def remove_logs(folder):
    for n in os.listdir(folder):
        if n.startswith("log-"):
            os.unlink(os.path.join(folder, n))


def in_use(args, root, base):
    work = os.path.join(root, "work")
    shutil.rmtree(work, ignore_errors=True)
    subprocess.run(["cp", "-a", base.path, work], check=True)
    first = Master(args.binary, root, common.data_flags(work), name="first")
    process = first.start_ready()
    try:
        out = recovered.start_and_judge(args.binary, root, work, base.store, None)
        base.store.at(first.rpc)
        lost = base.store.compare()["missing"]
        if lost:
            out["outcome"] = f"VIOLATION: the first process lost {len(lost)} keys"
        return out
    finally:
        base.store.disconnect()
        process.stop()


def truncate(args, root, bases, rng, wanted, add):
    targets = []
    for base in bases:
        for name in base.files():
            size, used = os.path.getsize(os.path.join(base.path, name)), base.used(name)
            if name.startswith(("log-", "snapshot-")):
                edges = {1, 511, 512, 513, 530, 540, used - 1, used, used + 1, size - 1, (512 + used) // 2}
                targets += [(base, name, o) for o in sorted(edges) if 0 < o < size]
            elif size:
                targets += [(base, name, o) for o in sorted({0, 1, size // 2, size - 1})]
    data = [(b, n, b.used(n)) for b in bases for n in b.files() if n.startswith(("log-", "snapshot-")) and b.used(n) > 600]
    if len(targets) > args.truncations:
        targets = rng.sample(targets, args.truncations)
    while len(targets) < args.truncations:
        base, name, used = data[len(targets) % len(data)]
        targets.append((base, name, rng.randrange(513, used)))
    for base, name, offset in targets:
        if wanted(f"truncated {name}"):
            judge(args, root, base, f"truncated at {offset}", cut(offset), name, add, "truncate")
    log(f"truncate: {len(targets)} offsets done")
