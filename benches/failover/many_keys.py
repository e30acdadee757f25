#!/usr/bin/env python3
"""Failovers of three masters with many keys, under load: the longest time between two puts, and until standbys are in sync again.

  many_keys.py --binary MCCTL [--keys 10000000] [--rate 20000] [--faults kill,term,step-down,stop] [--masters 3] [--flags ...] [--json FILE]

The keys have one byte each, on segments that this program mounts and pings: no memory is behind them. 10 million keys need about 2 GB in each
master. The load puts batches of 128 keys at the rate. After each fault, the former leader starts again and must be in sync before the next one.
At the end, acknowledged keys are looked up: all, or a sample of 3 million.

  kill  SIGKILL     term  SIGTERM     step-down  mcctl master step-down     stop  SIGSTOP for 10 s, as if the host were lost; calls time out after 0.5 s
"""
import argparse, json, os, random, signal, struct, subprocess, sys, threading, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "restart"))
import common, rpc  # noqa: E402
from common import Process, Result, log, port, wait  # noqa: E402

BATCH = 128
SEGMENTS, SEGMENT_BYTES = 8, 1 << 38
CLIENT = b"\x01" * 16


class Master:
    def __init__(self, binary, root, etcd, number, flags):
        self.rpc, self.admin, self.name, self.root = port(), port(), f"m{number}", root
        self.command = [binary, "serve", "master", "--enable-ha", "--etcd-endpoints", etcd, "--rpc-address", "127.0.0.1", "--rpc-port", str(self.rpc),
                        "--metrics-host", "127.0.0.1", "--metrics-port", str(self.admin), "--rpc-thread-num", "2", *flags]
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        self.process = Process(f"{self.name}-{self.starts}", self.command, self.root)

    def runs(self):
        return self.process.p.poll() is None

    def ha(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/ha_status?format=json", timeout=0.5) as r:
                return json.load(r)
        except (OSError, ValueError):
            return {}


def names(batch):
    return [f"{batch * BATCH + n:016x}" for n in range(BATCH)]


def start_frame(batch):
    lengths = bytes([BATCH]) + struct.pack("<Q", 1) * BATCH
    return rpc.request("BatchPutStart", CLIENT + rpc.keys(names(batch)) + lengths + rpc.config() + rpc.TENANT)


def end_frame(batch):
    objects = bytes([BATCH]) + b"".join(rpc.text(name) + b"\0" for name in names(batch))
    return rpc.request("BatchPutEnd", CLIENT + objects + struct.pack("<i", 4) + rpc.TENANT)


class Load:
    """Puts batches from some threads. A batch is repeated until it is acknowledged."""

    def __init__(self, masters, threads=4):
        self.masters, self.threads, self.leader = masters, threads, 0
        self.lock, self.next, self.acked, self.times = threading.Lock(), 0, [], []

    def start(self, batches=None, rate=None):
        self.stopping, self.last, self.rate = False, None if batches is None else self.next + batches, rate
        self.began, self.first = time.monotonic(), self.next
        self.running = [threading.Thread(target=self.run, daemon=True) for _ in range(self.threads)]
        for thread in self.running:
            thread.start()

    def join(self):
        for thread in self.running:
            thread.join()

    def take(self):
        with self.lock:
            if self.stopping or self.next == self.last:
                return None
            self.next += 1
            return self.next - 1

    def run(self):
        connection = None
        while (batch := self.take()) is not None:
            if self.rate:
                time.sleep(max(0, self.began + (batch - self.first) * BATCH / self.rate - time.monotonic()))
            while not self.stopping:
                try:
                    connection = connection or rpc.Rpc(self.masters[self.leader].rpc, 0.5)
                    connection.call(start_frame(batch))
                    outcomes = rpc.batch_ok(connection.call(end_frame(batch)))
                    if any(outcome is not None for outcome in outcomes):
                        # Starts of an earlier attempt were lost with the former leader. Other keys take their place.
                        with self.lock:
                            batch, self.next = self.next, self.next + 1
                        continue
                    with self.lock:
                        self.acked.append(batch)
                        self.times.append(time.monotonic())
                    break
                except (OSError, rpc.RpcError):
                    if connection:
                        connection.close()
                    connection, self.leader = None, (self.leader + 1) % len(self.masters)
                    time.sleep(0.002)

    def longest_pause(self, since):
        with self.lock:
            times = sorted(t for t in self.times if t >= since - 0.5)
        return max((b - a for a, b in zip(times, times[1:])), default=float("inf"))


class Nodes(threading.Thread):
    """Mounts the segments, and pings the leader."""

    def __init__(self, masters):
        super().__init__(daemon=True)
        self.masters, self.at = masters, 0
        self.segments = []
        for n in range(SEGMENTS):
            name = rpc.text(f"10.9.0.1:{n + 1}")
            self.segments.append(bytes([n + 1]) * 16 + name + struct.pack("<QQ", (n + 1) << 40, SEGMENT_BYTES) + name + rpc.text("tcp") + rpc.text(""))

    def mount(self, leader):
        self.at = leader
        with rpc.Rpc(self.masters[leader].rpc) as c:
            frames = [rpc.request("MountSegment", segment + CLIENT) for segment in self.segments]
            for frame in [*frames, rpc.request("ReMountSegment", bytes([SEGMENTS]) + b"".join(self.segments) + CLIENT)]:
                body = c.call(frame)
                if not rpc.ok(body):
                    raise SystemExit(f"cannot mount: {rpc.error_code(body)}")

    def run(self):
        connection = None
        while True:
            try:
                connection = connection or rpc.Rpc(self.masters[self.at].rpc, 2)
                connection.call(rpc.request("Ping", CLIENT))
                time.sleep(0.5)
            except (OSError, rpc.RpcError):
                connection, self.at = None, (self.at + 1) % len(self.masters)
                time.sleep(0.02)


def leader_of(masters, but=None):
    for n, master in enumerate(masters):
        if n != but and master.runs() and master.ha().get("role") == "leader":
            return n
    return None


def wait_value(what, seconds, value, step=0.005):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = value()
        if found is not None and found is not False:
            return found
        time.sleep(step)
    raise SystemExit(f"{what}: not within {seconds} s")


def fault(kind, args, masters, load):
    old = leader_of(masters)
    master = masters[old]
    replaced = lambda: sum(m.process.text().count("a snapshot replaces it") for m in masters)
    before, began = replaced(), time.monotonic()
    if kind == "kill":
        master.process.p.kill()
    elif kind == "term":
        master.process.p.terminate()
    elif kind == "stop":
        master.process.p.send_signal(signal.SIGSTOP)
    else:
        subprocess.run([args.binary, "master", "step-down", "--admin", f"127.0.0.1:{master.admin}"], check=True, capture_output=True)
    new = wait_value("another leader", 60, lambda: leader_of(masters, old))
    in_sync = lambda: any(s.get("in_sync") and s.get("connected") for s in masters[new].ha().get("standbys", []))
    if len(masters) > 2:
        wait_value("a standby in sync", 150, in_sync)
    synced = time.monotonic() - began
    time.sleep(1.5)
    row = dict(fault=kind, pause_s=round(load.longest_pause(began), 3), standby_in_sync_s=round(synced, 3), copies_replaced=replaced() - before)
    if kind == "stop":
        time.sleep(10)
        master.process.p.send_signal(signal.SIGCONT)
    elif kind != "step-down":
        master.process.p.wait(30)
        master.start()
    joined = time.monotonic()
    wait_value("the former leader in sync", 300, lambda: master.ha().get("in_sync") and master.ha().get("role") == "standby", 0.05)
    row.update(former_leader_in_sync_s=round(time.monotonic() - joined, 1), keys=masters[new].ha().get("objects"))
    with load.lock:
        load.times = [t for t in load.times if t > time.monotonic() - 5]
    time.sleep(2)
    return row


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--keys", type=int, default=10_000_000)
    ap.add_argument("--rate", type=int, default=20_000, help="puts per second")
    ap.add_argument("--faults", default="kill,term,step-down,stop")
    ap.add_argument("--masters", type=int, default=3)
    ap.add_argument("--flags", default="", help="more flags for the masters")
    ap.add_argument("--dir")
    ap.add_argument("--json")
    args = ap.parse_args()
    args.binary = os.path.abspath(args.binary)
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-many-keys.")
    client, peer = (f"http://127.0.0.1:{port()}" for _ in range(2))
    etcd = Process("etcd", ["/usr/bin/etcd", "--name", "e", "--data-dir", os.path.join(root, "etcd"), "--listen-client-urls", client, "--advertise-client-urls",
                            client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e=" + peer], root)
    masters = []
    try:
        time.sleep(1)
        masters += [Master(args.binary, root, client[7:], n, args.flags.split()) for n in range(args.masters)]
        first = wait_value("a leader", 30, lambda: leader_of(masters))
        nodes = Nodes(masters)
        nodes.mount(first)
        nodes.start()
        load = Load(masters)
        load.leader = first
        began = time.monotonic()
        load.start(args.keys // BATCH)
        load.join()
        log(f"{len(load.acked) * BATCH:,} keys put in {time.monotonic() - began:.1f} s")
        wait("all in sync", 300, lambda: all(m.ha().get("in_sync") for m in masters))
        memory = {m.name: common.status_kb(m.process.pid, "VmRSS") // 1024 for m in masters}
        log(f"memory in MiB: {memory}; the leader is m{first}")
        load.times = []
        load.start(rate=args.rate)
        time.sleep(3)
        log(f"load: {len(load.times) * BATCH / 3:,.0f} puts/s")
        rows = []
        for kind in args.faults.split(","):
            rows.append(fault(kind, args, masters, load))
            log(json.dumps(rows[-1]))
        load.stopping = True
        load.join()
        check = load.acked if len(load.acked) * BATCH < 3_000_000 else random.sample(load.acked, 3_000_000 // BATCH)
        with rpc.Rpc(masters[leader_of(masters)].rpc) as c:
            flags = [rpc.exist_flags(body) for body in c.pipeline([rpc.batch_exist(names(batch)) for batch in check], 4)]
        lost = sum(flag is not True for found in flags for flag in found)
        log(f"looked up {len(check) * BATCH:,} of {len(load.acked) * BATCH:,} acknowledged keys: {lost} lost")
        result.save(rows=rows, memory_mib=memory, looked_up=len(check) * BATCH, lost=lost)
    finally:
        for process in [m.process for m in masters] + [etcd]:
            if process.p.poll() is None:
                process.p.send_signal(signal.SIGCONT)
                process.end(9)
    sys.exit(1 if lost else 0)


main()
