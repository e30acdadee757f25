"""Faults of the disk under a running master, for faults.py."""
import contextlib, errno, mmap, os, re, resource, shutil, struct, subprocess, time

import common, recovered, rpc
from common import HERE, MIB, Master, log, wait

CASES = []


def case(f):
    CASES.append(f)
    return f


class Control:
    """the control file of the shim"""

    def __init__(self, folder):
        self.path = os.path.join(folder, "fault-control")
        with open(self.path, "wb") as f:
            f.write(b"\0" * 64)
        self.file = open(self.path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), 64)

    def set(self, delay_ms=0, sync=0, write=0, open=0, allocate=0, rename=0, only_log=0):
        self.map[:28] = struct.pack("<7I", delay_ms, sync, write, open, allocate, rename, only_log)

    def counts(self):
        return dict(zip(("syncs", "writes", "failed"), struct.unpack_from("<3I", self.map, 32)))


def shim(folder):
    out = os.path.join(folder, "fault_shim.so")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", out, os.path.join(HERE, "fault_shim.c"), "-ldl"], check=True, timeout=60)
    return out


class Running:
    """a master with a store and a writer, on a directory with a fault to come"""

    all = []

    def __init__(self, args, root, name, data=None, fsync="interval", flags=(), preload=True, snapshot_seconds=3600, **options):
        self.args, self.root, self.name = args, root, name
        self.data = data or os.path.join(root, "live")
        if data is None:
            shutil.rmtree(self.data, ignore_errors=True)
        self.control = Control(root)
        env = dict(LD_PRELOAD=shim(root), FAULT_DIRECTORY=self.data, FAULT_CONTROL=self.control.path) if preload else None
        self.master = Master(args.binary, root, common.data_flags(self.data, fsync, snapshot_seconds, flags), env=env, name="live")
        self.process = self.master.start_ready(**options)
        Running.all.append(self)
        self.store = recovered.Store(self.master)
        self.store.mount()
        self.store.fill(200, "before")
        self.writer = recovered.Writer(self.store, "live")
        self.must_exist = set()
        time.sleep(args.fill_seconds)

    def wait_end(self, seconds):
        """seconds until the process had ended by itself; None if it did not"""
        t = time.monotonic()
        while not self.process.ended() and time.monotonic() - t < seconds:
            time.sleep(0.01)
        return round(time.monotonic() - t, 3) if self.process.ended() else None

    def settle(self):
        """ends the writer, and takes what it wrote into the expected state"""
        self.writer.stop()
        s = self.store
        if not self.process.ended():
            names = self.writer.acked
            with contextlib.suppress(OSError):
                s.disconnect()
                s.pings()
                s.keys.update((n, r) for n, r in zip(names, s.found(names)) if r is not None)
        self.must_exist |= set(self.writer.acked)
        s.removed |= set(self.writer.removed) - set(self.writer.in_flight)
        s.disconnect()

    def judge_again(self, flags=(), **options):
        """a start without the fault. Acknowledged keys of which the place is not known must exist."""
        self.control.set()
        self.process.stop()
        out = recovered.start_and_judge(self.args.binary, self.root, self.data, KnownStore(self.store, self.must_exist), None, flags, **options)
        return out


class KnownStore:
    """a store with more keys that must exist; wherever they are at the first look, they must stay"""

    def __init__(self, store, must_exist):
        self.store, self.more = store, [n for n in must_exist if n not in store.keys]

    def __getattr__(self, name):
        return getattr(self.store, name)

    def at(self, port):
        self.store.at(port)
        return self

    def compare(self):
        out = self.store.compare()
        for name, found in zip(self.more, self.store.found(self.more)):
            if found is None:
                out["missing"].append(name)
            elif self.store.keys.setdefault(name, found) != found:
                out["moved"].append(name)
        return out


def judged(r, took, limit, repair=lambda: None, may_continue=False):
    """The outcome of a master under a fault: exit code 4 with a message that names the file, then a full recovery. With `may_continue` (only
    snapshots can fail, and the log has all changes), a warning and a full recovery after a kill are right as well."""
    if took is None and may_continue:
        r.process.end(9)
    r.settle()
    text = r.process.text()
    first = dict(ended_s=took, code=r.process.p.returncode, acknowledged=len(r.writer.acked), refusals=r.writer.refusals, writer=r.writer.error,
                 message=recovered.report_of(text), shim=r.control.counts())
    r.process.stop()
    repair()
    second = r.judge_again()
    bad, done = [], "exit 4"
    if took is None and may_continue:
        done = "continues with a warning"
        if not re.search(r"WARN.*snapshot", text):
            bad.append("no warning")
    elif took is None:
        bad.append(f"still running {limit} s after the fault")
    elif first["code"] != 4:
        bad.append(f"exit code {first['code']}")
    elif not re.search(r"log-\d+|snapshot-\d+|identity|invalid", text):
        bad.append("the message names no file")
    if second["outcome"] != "full":
        bad.append(f"the next start: {second['outcome']} {second.get('message', '')[:200]}")
    return dict(first, outcome="VIOLATION: " + "; ".join(bad) if bad else f"expected: {done}, then full recovery", next=second)


def errors(name, snapshots_only=False, **fault):
    """cases in which calls of the kernel fail, in each --fsync mode"""
    def body(args, root, add):
        for fsync in ("always", "interval", "never"):
            if name.startswith("fsync") and fsync == "never":
                continue
            r = Running(args, root, name, fsync=fsync, snapshot_seconds=2 if snapshots_only else 3600)
            r.control.set(**fault)
            limit = 8 if snapshots_only else 30
            add("live", f"{name}: --fsync {fsync}", judged(r, r.wait_end(limit), limit, may_continue=snapshots_only))
    body.__name__ = name
    CASES.append(body)


errors("fsync EIO", sync=errno.EIO)
errors("write EIO", write=errno.EIO)
errors("write ENOSPC (disk full)", write=errno.ENOSPC, allocate=errno.ENOSPC)
errors("read-only file system (EROFS)", write=errno.EROFS, open=errno.EROFS, allocate=errno.EROFS, rename=errno.EROFS)
errors("open EACCES (permission lost)", True, open=errno.EACCES)
errors("rename EIO", True, rename=errno.EIO)


@case
def slow_fsync(args, root, add):
    """fsync of 100 ms: nothing fails, and lookups stay fast"""
    for fsync in ("always", "interval", "never"):
        r = Running(args, root, "slow", fsync=fsync, snapshot_seconds=2)
        r.control.set(delay_ms=100)
        before, probes, end = len(r.writer.latencies), [], time.monotonic() + 6
        with rpc.Rpc(r.master.rpc) as c:
            while time.monotonic() < end:
                t = time.monotonic()
                c.call(rpc.request("ExistKey", rpc.text("before-0") + rpc.TENANT))
                probes.append(time.monotonic() - t)
                time.sleep(0.002)
        slow = r.writer.latencies[before:]
        alive = not r.process.ended()
        r.process.end(9)
        r.settle()
        second = r.judge_again()
        ok = alive and second["outcome"] == "full" and not r.writer.refusals
        add("live", f"fsync of 100 ms: --fsync {fsync}", dict(
            outcome="expected: no failure, then full recovery" if ok else f"VIOLATION: alive {alive}, refusals {r.writer.refusals}, next {second['outcome']}",
            put_batches=len(slow), put_p50_ms=ms(common.quantile(slow, .5)), put_max_ms=ms(max(slow, default=None)), exist_p50_ms=ms(common.quantile(probes, .5)),
            exist_p99_ms=ms(common.quantile(probes, .99)), exist_max_ms=ms(max(probes)), shim=r.control.counts(), next=second))


def ms(seconds):
    return None if seconds is None else round(seconds * 1e3, 2)


@case
def memory_only(args, root, add):
    """--on-disk-error continue-memory-only: it continues, and the next start refuses the directory; if the marker fails too, it stops"""
    log_only = dict(write=errno.ENOSPC, allocate=errno.ENOSPC, only_log=1)
    everything = dict(write=errno.ENOSPC, allocate=errno.ENOSPC)
    for name, may_stop, fault in (("log files ENOSPC", False, log_only), ("log files: fsync EIO", False, dict(sync=errno.EIO, only_log=1)),
                                  ("all files ENOSPC", True, everything), ("all files: fsync EIO", True, dict(sync=errno.EIO))):
        r = Running(args, root, name, fsync="always", flags=["--on-disk-error", "continue-memory-only"])
        r.control.set(**fault)
        ended = r.wait_end(5)
        count = len(r.writer.acked)
        time.sleep(1)
        goes_on = ended is None and len(r.writer.acked) > count
        text = r.process.text()
        if ended is None:
            r.process.end(9)
        r.settle()
        second = r.judge_again()
        refused = "continued in memory" in second["outcome"]
        if ended is None and not may_stop:
            ok, expected = goes_on and refused, "continues in memory; the next start refuses the directory"
        elif may_stop and ended is not None and r.process.p.returncode == 4:
            # the marker could not be made durable: nothing was acknowledged without the log, so the data is complete
            ok, expected = refused or second["outcome"] == "full", f"the marker failed, exit 4; the next start {'refuses the directory' if refused else 'recovers all'}"
        else:
            ok, expected = False, ""
        add("live", f"continue-memory-only: {name}", dict(
            outcome=f"expected: {expected}" if ok else f"VIOLATION: ended {ended}, code {r.process.p.returncode}, puts continue {goes_on}, next start {second['outcome']}",
            message=recovered.report_of(text), next=second))


@contextlib.contextmanager
def tmpfs(folder, size):
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "mcctl-faults", folder], check=True, timeout=20)
    try:
        yield folder
    finally:
        for r in Running.all:  # a case that failed has left its master
            r.writer.running = False
            r.process.stop()
        subprocess.run(["umount", folder], check=True, timeout=20)


def may_mount(root):
    try:
        with tmpfs(os.path.join(root, "probe"), "1m"):
            return True
    except (OSError, subprocess.SubprocessError):
        return False


@case
def full_file_system(args, root, add):
    """a tmpfs that is full: at the start, at the next snapshot, and at the next log file"""
    if not may_mount(root):
        return add("live", "full file system", dict(outcome="skipped: cannot mount a tmpfs"))
    mounted = os.path.join(root, "small")
    with tmpfs(mounted, "1m"):
        data = os.path.join(mounted, "data")
        out = recovered.start_and_judge(args.binary, root, data, recovered.Store(Master(args.binary, root)), None)
        add("live", "full file system: at the first start", out)
    with tmpfs(mounted, "512m"):
        data = os.path.join(mounted, "data")
        r = Running(args, root, "full", data=data, preload=False, snapshot_seconds=2)
        fill_up(mounted)
        out = judged(r, r.wait_end(8), 8, lambda: os.unlink(os.path.join(mounted, "filler")), may_continue=True)
        add("live", "full file system: at the next snapshot", out)
    with tmpfs(mounted, "512m"):
        data = os.path.join(mounted, "data")
        r = Running(args, root, "full", data=data, preload=False)
        r.settle()
        r.writer = recovered.Churn(r.store, "churn")
        fill_up(mounted)
        out = judged(r, r.wait_end(300), 300, lambda: os.unlink(os.path.join(mounted, "filler")))
        add("live", "full file system: at the next log file", out)


def fill_up(mounted):
    with open(os.path.join(mounted, "filler"), "wb") as f:
        with contextlib.suppress(OSError):
            while True:
                f.write(b"\1" * MIB)
                f.flush()


@case
def read_only_start(args, root, add):
    if not may_mount(root):
        return add("live", "read-only file system", dict(outcome="skipped: cannot mount a tmpfs"))
    mounted = os.path.join(root, "small")
    with tmpfs(mounted, "512m"):
        data = os.path.join(mounted, "data")
        r = Running(args, root, "read-only", data=data, preload=False)
        r.process.end(9)
        r.settle()
        subprocess.run(["mount", "-o", "remount,ro", mounted], check=True, timeout=20)
        refused = r.judge_again()
        subprocess.run(["mount", "-o", "remount,rw", mounted], check=True, timeout=20)
        second = r.judge_again()
        ok = refused.get("code") == 4 and second["outcome"] == "full"
        add("live", "read-only file system: at the start", dict(outcome="expected: exit 4, then full recovery" if ok else
            f"VIOLATION: {refused['outcome']}, next start {second['outcome']}", message=refused.get("message"), next=second))


@case
def permission_lost(args, root, add):
    """a master of another user, whose directory is taken away: at the start, and at the next snapshot"""
    if os.getuid() != 0:
        return add("live", "permission lost", dict(outcome="skipped: needs root"))
    binary = os.path.join(root, "mcctl-copy")
    shutil.copy(args.binary, binary)
    os.chmod(binary, 0o755)
    user = dict(user=65534, group=65534, extra_groups=[])
    if subprocess.run([binary, "--version"], capture_output=True, **user).returncode:
        return add("live", "permission lost", dict(outcome="skipped: another user cannot run the binary in the working directory"))
    copy = type(args)(**dict(vars(args), binary=binary))
    data = os.path.join(root, "of-another-user")
    shutil.rmtree(data, ignore_errors=True)
    os.makedirs(data)
    os.chown(data, 65534, 65534)
    r = Running(copy, root, "permission", data=data, preload=False, snapshot_seconds=2, **user)
    os.chmod(data, 0)
    took = r.wait_end(8)  # only snapshots fail: it may continue
    warned = "cannot write a snapshot" in r.process.text()
    r.process.end(9)
    r.settle()
    first = dict(ended_s=took, code=r.process.p.returncode, message=recovered.report_of(r.process.text()))
    r.process.stop()
    at_start = recovered.start_and_judge(binary, root, data, r.store, None, popen=user)
    os.chmod(data, 0o700)
    second = recovered.start_and_judge(binary, root, data, KnownStore(r.store, r.must_exist), None, popen=user)
    ok = (warned if took is None else first["code"] == 4) and at_start.get("code") == 4 and second["outcome"] == "full"
    add("live", "permission lost: chmod 0 while running, and at the start", dict(
        first, outcome="expected: warning or exit 4, then exit 4, then full recovery" if ok else
        f"VIOLATION: running: ended {took}, code {first['code']}; at the start: {at_start['outcome']}; repaired: {second['outcome']}", at_start=at_start, next=second))


@case
def file_size_limit(args, root, add):
    """RLIMIT_FSIZE: the kernel sends SIGXFSZ, whose default action ends a process"""
    data = os.path.join(root, "limited")
    shutil.rmtree(data, ignore_errors=True)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    out = recovered.start_and_judge(args.binary, root, data, recovered.Store(Master(args.binary, root)), None, popen=dict(preexec_fn=limit))
    add("live", "file size limit of 1 MiB at the first start", out)


def run(args, root, wanted, add):
    for f in CASES:
        if wanted(f.__name__):
            try:
                f(args, root, add)
            except (OSError, RuntimeError, subprocess.SubprocessError, rpc.RpcError) as error:
                add("live", f.__name__, dict(outcome=f"VIOLATION: the case failed: {type(error).__name__}: {str(error)[-400:]}"))
            log(f"live: {f.__name__} done")
