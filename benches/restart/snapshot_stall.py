#!/usr/bin/env python3
"""What a snapshot costs the clients: how long the master's state is locked, and the latency of calls while a snapshot is being written.

  snapshot_stall.py --binary MCCTL [--keys 1000000] [--ops exist,get,put] [--secs 20] [--conns 4] [--snapshot-seconds 2] [--rounds 3]
                    [--fsync interval] [--json FILE] [--dir DIR]

The load generator fills N keys on paper segments, and then sends one kind of call for some seconds per phase. Snapshots are frequent. A
request belongs to a snapshot if it was in flight at any time between the creation of the temporary file and its rename, plus a margin. Pairs
are a snapshot and the gap behind it: neighbours in time, so that a busy machine affects both.
`--control` measures a master without a data directory, and a process that only spins for 0.5 s at the same spacing: what any other use of a
processor costs on this machine.
A few puts and removes per second make sure that there is something new to write.
"""
import argparse, bisect, json, os, statistics, struct, subprocess, sys, threading, time

import common, rpc
from common import Master, Result, SnapshotWatch, log, peer, quantile

OPERATIONS = {1: "ExistKey", 4: "GetReplicaList", 6: "PutStart", 6 + 256: "PutEnd", 3: "BatchExistKey", 5: "BatchGetReplicaList",
              7: "BatchPutStart", 7 + 256: "BatchPutEnd", 0: "Ping"}


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--keys", type=int, default=1_000_000)
    ap.add_argument("--ops", default="exist,get,put")
    ap.add_argument("--secs", type=float, default=20, help="per phase")
    ap.add_argument("--conns", type=int, default=4)
    ap.add_argument("--snapshot-seconds", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--fsync", default="interval")
    ap.add_argument("--margin-ms", type=float, default=20, help="added to both ends of a snapshot")
    ap.add_argument("--control", action="store_true", help="a spinning process instead of snapshots")
    ap.add_argument("--dir")
    ap.add_argument("--json")
    return ap.parse_args()


class Spinner:
    """the control: uses a processor for 0.5 s, again and again; like SnapshotWatch"""

    def __init__(self, every):
        self.every, self.windows, self.running = every, [], True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        code = "import time, sys\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"
        while self.running:
            time.sleep(self.every)
            begin = time.monotonic()
            subprocess.run([sys.executable, "-S", "-E", "-c", code], timeout=30)
            self.windows.append((begin, time.monotonic()))

    def stop(self):
        self.running = False
        self.thread.join()
        return self.windows


class Trickle:
    """a few puts and removes per second on a paper segment of its own"""

    def __init__(self, port):
        self.node = rpc.PaperNode(port, "127.2.0.1:10", 1 << 30)
        self.node.connect()
        self.node.mount()
        self.running = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        n = 0
        while self.running:
            n += 1
            self.node.put(f"trickle-{n}")
            self.node.remove(f"trickle-{n}", True)
            if n % 20 == 0:
                self.node.ping()
            time.sleep(0.05)

    def stop(self):
        self.running = False
        self.thread.join()
        self.node.rpc.close()


def read_samples(path):
    """by operation: a list of (begin in s, duration in us), in order of begin"""
    out = {}
    with open(path, "rb") as f:
        for begin, took, kind in struct.iter_unpack("<QII", f.read()):
            out.setdefault(OPERATIONS.get(kind, str(kind)), []).append((begin / 1e9, took / 1e3))
    for v in out.values():
        v.sort()
    return out


def split(samples, windows, margin):
    """the durations inside each window, and in the gap behind it"""
    begins = [s[0] for s in samples]
    inside, behind = [], []
    longest = max((took for _, took in samples), default=0) / 1e6
    for i, (b, e) in enumerate(windows):
        b, e = b - margin, e + margin
        low = bisect.bisect_left(begins, b - longest)
        high = bisect.bisect_right(begins, e)
        inside.append([took for t, took in samples[low:high] if t + took / 1e6 >= b])
        until = windows[i + 1][0] - margin if i + 1 < len(windows) else begins[-1] + 1 if begins else e
        gap = samples[high:bisect.bisect_left(begins, until)]
        behind.append([took for t, took in gap if t + took / 1e6 < until])
    return inside, behind


def figures(values):
    return dict(n=len(values), p50_us=quantile(values, .5), p99_us=quantile(values, .99), p999_us=quantile(values, .999),
                max_us=max(values, default=None))


def holds(before, after):
    """how often the state was locked for how long, between two scrapes; the upper bound of the longest by bucket"""
    name = "mcctl_master_state_hold_seconds_bucket"
    delta = sorted((float(k.split('"')[1]), v - before.get(k, 0)) for k, v in after.items() if k.startswith(name) and "Inf" not in k)
    total = next((v - before.get(k, 0) for k, v in after.items() if k.startswith(name) and "Inf" in k), 0)
    bound = next((le for le, n in delta if n >= total), None) if total else None
    return dict(count=total, longest_at_most_s=bound, over_1ms=total - max((n for le, n in delta if le <= 0.001), default=0),
                over_2ms=total - max((n for le, n in delta if le <= 0.002), default=0), buckets=delta,
                preempted=after.get("mcctl_master_state_hold_preempted_total", 0) - before.get("mcctl_master_state_hold_preempted_total", 0),
                max_since_start_s=after.get("mcctl_master_state_hold_max_seconds"))


def one_round(args, root, number):
    data = os.path.join(root, f"data-{number}")
    master = Master(args.binary, root, [] if args.control else common.data_flags(data, args.fsync, args.snapshot_seconds))
    process = master.start_ready()
    samples = os.path.join(root, f"samples-{number}")
    watch = Spinner(args.snapshot_seconds) if args.control else SnapshotWatch(data)
    trickle = Trickle(master.rpc)
    phases = [f"bput:4:1:{args.keys}", "sleep:3"] + [f"{op}:{args.conns}:1:{args.secs}s" for op in args.ops.split(",")]
    out = dict(round=number, phases=[])
    p = subprocess.Popen([peer.build("mrpcload.c"), "--addr", master.address, "--pid", str(process.pid), "--segments", "8", "--samples", samples,
                          *phases], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        out["fill"] = json.loads(p.stdout.readline())
        out["hold_after_fill"] = holds({}, master.metrics())
        before = master.metrics()
        for line in p.stdout:
            after = master.metrics()
            phase = json.loads(line)
            phase["holds"] = holds(before, after)
            out["phases"].append(phase)
            before = after
        p.wait(30)
        out["rss_kb"], out["high_water_kb"] = peer.rss_kb(process.pid), common.status_kb(process.pid, "VmHWM")
    finally:
        p.kill()
        p.wait()
        trickle.stop()
        windows = watch.stop()
        process.stop()
    out["windows"] = windows
    out["snapshots"] = dict(count=len(windows), median_s=statistics.median(e - b for b, e in windows) if windows else None,
                            longest_s=max((e - b for b, e in windows), default=None))
    out["operations"] = {}
    for name, values in read_samples(samples).items():
        # windows that lie within this operation's phase
        own = [w for w in windows if values[0][0] <= w[0] and w[1] <= values[-1][0]]
        inside, behind = split(values, own, args.margin_ms / 1e3)
        pairs = [(quantile(a, q), quantile(b, q)) for q in (.99, .999) for a, b in [(a, b) for a, b in zip(inside, behind) if min(len(a), len(b)) >= 1000]]
        half = len(pairs) // 2
        out["operations"][name] = dict(
            during=figures([v for w in inside for v in w]), without=figures([v for w in behind for v in w]), pairs=half,
            ratio_p99=statistics.median(a / b for a, b in pairs[:half]) if half else None,
            ratio_p999=statistics.median(a / b for a, b in pairs[half:]) if half else None)
    os.unlink(samples)
    return out


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-stall.")
    rounds, rows = [], []
    for n in range(args.rounds):
        r = one_round(args, root, n)
        rounds.append(r)
        log(f"round {n + 1}: {r['snapshots']}, longest hold {max((p['holds']['longest_at_most_s'] or 0 for p in r['phases']), default=None)} s by "
            f"bucket, {r['hold_after_fill']['max_since_start_s']} s after the fill, {before_after(r)} s at the end")
        result.save(rounds=rounds)
        for name, o in r["operations"].items():
            d, w = o["during"], o["without"]
            show = lambda v: "-" if v is None else f"{v:,.0f}"
            ratio = lambda v: "-" if v is None else f"{v:.2f}"
            rows.append([n + 1, name, o["pairs"], d["n"], *(f"{show(d[k])} / {show(w[k])}" for k in ("p50_us", "p99_us", "p999_us", "max_us")),
                         ratio(o["ratio_p99"]), ratio(o["ratio_p999"])])
    print(peer.table(rows, ["round", "call", "pairs", "calls during snapshots", "p50 us during / without", "p99", "p99.9", "max", "p99 ratio, paired",
                            "p99.9 ratio, paired"]))


def before_after(r):
    return r["phases"][-1]["holds"]["max_since_start_s"] if r["phases"] else None


if __name__ == "__main__":
    main()
