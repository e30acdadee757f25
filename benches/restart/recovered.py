"""A small store on paper nodes whose exact state is known, and the check of what a master has recovered of it."""
import os, random, re, struct, threading, time

import common, rpc
from common import Master

SEGMENT_BYTES = 8 << 30
OBJECT_BYTES = 4096


class Store:
    """two paper nodes, and the replicas of every key that was acknowledged"""

    def __init__(self, master):
        self.master = master
        self.nodes = [rpc.PaperNode(master.rpc, f"127.3.0.{i + 1}:1000", SEGMENT_BYTES) for i in range(2)]
        self.keys, self.removed, self.unsure = {}, set(), set()
        self.rng = random.Random(5)
        self.number = 0

    def mount(self):
        for node in self.nodes:
            node.connect()
            node.mount()

    def fill(self, count, prefix="f"):
        """puts keys in batches and one by one, pins some, removes some; then records where they are"""
        names = [f"{prefix}-{n}" for n in range(count)]
        for i in range(0, count, 50):
            node = self.nodes[i // 50 % 2]
            part = names[i:i + 50]
            if i // 50 % 5 == 4:
                codes = [node.put(name, OBJECT_BYTES, pin=n % 3 == 0) for n, name in enumerate(part)]
            else:
                codes = node.batch_put(part, OBJECT_BYTES)
            if any(codes):
                raise RuntimeError(f"cannot put: {[c for c in codes if c]}")
        gone = names[7::20]
        for name in gone:
            code = self.nodes[0].remove(name, True)
            if code:
                raise RuntimeError(f"cannot remove: {code}")
        self.removed |= set(gone)
        kept = [name for name in names if name not in set(gone)]
        for name, replicas in zip(kept, self.nodes[0].replicas(kept)):
            if replicas is None:
                raise RuntimeError(f"{name} is not found after its put")
            self.keys[name] = replicas

    def found(self, names):
        """the replicas of each key; pings in between, because many keys take longer than the clients' time to live"""
        out = []
        for i in range(0, len(names), 5000):
            out += self.nodes[0].replicas(names[i:i + 5000])
            for node in self.nodes:
                node.ping()
        return out

    def pings(self):
        """the clients' status after a restart"""
        out = []
        for node in self.nodes:
            node.connect()
            out.append(node.ping())
        return out

    def disconnect(self):
        for node in self.nodes:
            if node.rpc:
                node.rpc.close()
                node.rpc = None

    def at(self, port):
        """the same store, for a master on another port"""
        for node in self.nodes:
            node.port = port
        return self

    def compare(self):
        """what a restarted master has: missing keys, keys elsewhere, removed keys that are back, and new ranges that overlap old ones"""
        statuses = self.pings()
        names = list(self.keys)
        found = self.found(names)
        missing = [n for n, r in zip(names, found) if r is None]
        moved = [n for n, r in zip(names, found) if r is not None and r != self.keys[n]]
        back = [n for n, r in zip(self.removed, self.found(list(self.removed))) if r is not None]
        return dict(statuses=statuses, missing=missing, moved=moved, back=back)

    def overlaps(self, lost=()):
        """puts some new keys; those whose range is that of a known key. `lost` are known keys that the master does not have."""
        self.number += 1
        names = [f"new-{self.number}-{os.getpid()}-{n}" for n in range(40)]
        refused = 0
        for i, node in enumerate(self.nodes):
            refused += sum(code is not None for code in node.batch_put(names[i * 20:i * 20 + 20], OBJECT_BYTES))
        used = {range_of(r) for n, r in self.keys.items() if n not in lost}
        placed = [r for r in self.nodes[0].replicas(names) if r is not None]
        return dict(refused=refused, overlaps=sum(range_of(r) in used for r in placed))


def range_of(replicas):
    """segment and address of the first replica: count u8, id u64, variant u8, size u64, address u64, "tcp", endpoint"""
    address = struct.unpack_from("<Q", replicas, 18)[0]
    return bytes(replicas[26:60]), address


class Writer:
    """A thread that puts and removes keys until the master is gone. What was acknowledged is in the store's state afterwards."""

    def __init__(self, store, prefix, batch=10, pause=0.005):
        self.store, self.prefix, self.batch, self.pause = store, prefix, batch, pause
        self.acked, self.removed, self.latencies, self.refusals = [], [], [], {}
        self.running, self.error = True, None
        self.in_flight = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        node, n = self.store.nodes[0], 0
        node.connect()
        last_ping = 0
        try:
            while self.running:
                if time.monotonic() - last_ping > 1:
                    for other in self.store.nodes:
                        other.ping()
                    last_ping = time.monotonic()
                names = [f"{self.prefix}-{n + i}" for i in range(self.batch)]
                n += self.batch
                self.in_flight = names
                t = time.monotonic()
                codes = node.batch_put(names, OBJECT_BYTES)
                self.latencies.append(time.monotonic() - t)
                for name, code in zip(names, codes):
                    if code is None:
                        self.acked.append(name)
                    else:
                        self.refusals[code] = self.refusals.get(code, 0) + 1
                if n % (self.batch * 5) == 0 and self.acked:
                    self.in_flight = [gone := self.acked[-1]]
                    code = node.remove(gone, True)
                    if code is None:
                        self.acked.pop()
                        self.removed.append(gone)
                self.in_flight = []
                if self.pause:
                    time.sleep(self.pause)
        except (OSError, rpc.RpcError, struct.error, IndexError, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def stop(self, seconds=60):
        self.running = False
        self.thread.join(seconds)


class Churn(Writer):
    """The same keys in batches, put and replaced at the highest rate, so that the log grows and the state does not. The keys are not part of
    the store's state."""

    def run(self):
        node, n, last_ping = self.store.nodes[0], 0, 0
        node.connect()
        try:
            while self.running:
                if time.monotonic() - last_ping > 1:
                    for other in self.store.nodes:
                        other.connect() if other.rpc is None else None
                        other.ping()
                    last_ping = time.monotonic()
                names = [f"churn-{n % 10}-{i}" for i in range(250)]
                n += 1
                node.batch_put(names, OBJECT_BYTES)
                frames = [rpc.request("Remove", rpc.text(name) + b"\1" + rpc.TENANT) for name in names]
                for _ in node.rpc.pipeline(frames):
                    pass
        except (OSError, rpc.RpcError, struct.error, IndexError, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"


def start_and_judge(binary, folder, data, store, file=None, flags=(), seconds=30, again=True, env=None, popen=None):
    """Starts a master on a data directory and classifies the result. `file`: the damaged file, which an error must name.

    full              every key at its place, no removed key back, new ranges free, and the same after another kill and start
    cut, reported     the same, but the changes at the end of the log are missing, and the master reports it with file and offset
    exit 4            exit code 4; the message names the file and an offset; or another file that contradicts it, or the directory
    exit 4, no offset / exit 4, no file     exit code 4 with an incomplete message
    expected: ...     a refusal that is not about a damaged file: a directory of another cluster, in use, or invalidated
    anything else is described, and is a violation
    """
    master = Master(binary, folder, common.data_flags(data, more=flags), env=env, name="judged")
    t = time.monotonic()
    process = master.start(**(popen or {}))
    try:
        while not rpc.ready(master.rpc):
            if process.ended():
                return exit_outcome(process, file, time.monotonic() - t)
            if time.monotonic() - t > seconds:
                return dict(outcome="VIOLATION: neither an exit nor an answer", seconds=seconds, message=process.text()[-500:])
            time.sleep(0.005)
        took = time.monotonic() - t
        store.at(master.rpc)
        first = store.compare()
        text = process.text()
        new = store.overlaps(first["missing"])
        out = dict(seconds=round(took, 3), missing=len(first["missing"]), statuses=first["statuses"], message=report_of(text))
        is_cut = bool(re.search(r"(?i)torn|cut|incomplete", text))
        bad = [f"{len(first['moved'])} moved: {first['moved'][:3]}"] if first["moved"] else []
        # a removal at the cut end is lost like a put
        bad += [f"{len(first['back'])} removed keys are back: {first['back'][:3]}"] if first["back"] and not is_cut else []
        bad += [f"{new['overlaps']} overlapping ranges"] if new["overlaps"] else []
        bad += [f"{new['refused']} new puts refused"] if new["refused"] else []
        if first["missing"] and not is_cut:
            bad.append(f"{len(first['missing'])} keys lost, nothing reported")
        if not bad and again:
            store.disconnect()
            process.end(9)
            process = master.start_ready()
            second = store.compare()
            more = set(second["missing"]) - set(first["missing"])
            bad += [f"after another kill: {len(more)} more keys lost"] if more else []
            bad += [f"after another kill: {len(second['moved'])} keys moved"] if second["moved"] else []
        out["outcome"] = "VIOLATION: " + "; ".join(bad) if bad else "cut, reported" if first["missing"] or first["back"] else "full"
        return out
    except (OSError, rpc.RpcError, RuntimeError) as error:
        return dict(outcome=f"VIOLATION: {type(error).__name__}: {str(error)[-300:]}", seconds=round(time.monotonic() - t, 3), message=process.text()[-500:])
    finally:
        store.disconnect()
        process.stop()


def exit_outcome(process, file, took):
    code, text = process.p.returncode, process.text()
    out = dict(seconds=round(took, 3), code=code, message=report_of(text))
    refusal = re.search(r"belongs to another cluster|another process uses the data directory|continued in memory after a disk error", text)
    if refusal and code in (2, 4):
        out["outcome"] = f"expected: exit {code}, '{refusal[0]}'"
    elif code != 4:
        out["outcome"] = f"VIOLATION: exit code {code}"
    elif not re.search(r"(?i)offset \d+", text):
        # a missing file has no offset
        known = re.search(r"(log-|snapshot-|identity|validity|lock).*os error", text) or re.search(r"found: .*(is|are) missing", text)
        out["outcome"] = "exit 4 (error of the disk)" if known else "exit 4, no offset"
    elif file and file not in text:
        # a damaged identity contradicts the log; a log that is missing is a matter of the directory
        names = re.search(r"found: \S*?((?:log|snapshot)-\d+|identity\.json|/\S+) is corrupt", text)
        out["outcome"] = f"exit 4 (names {'the directory' if names and names[1].startswith('/') else 'another file'})" if names else "exit 4, no file"
    else:
        out["outcome"] = "exit 4"
    if file == "identity.json" and code == 2:
        out["outcome"] = "VIOLATION: exit code 2: a damaged identity is taken for that of another cluster"
    return out


def report_of(text):
    """the lines that matter to an operator"""
    lines = [line for line in text.splitlines() if re.search(r"(?i)error|warn|corrupt|torn|damaged|cannot|tried|found|next|panic", line) and "settings:" not in line]
    return " | ".join(line.strip() for line in lines)[:600]
