#!/usr/bin/env python3
"""Random calls on a small store that always evicts, while its master is restarted again and again. Values check themselves.

  soak.py --binary MCCTL [--minutes 30] [--every 20] [--fsync interval] [--segment-mib 48] [--json FILE] [--dir DIR]

Nodes: the wheel's Python client with a segment, and `mcctl serve store`. Clients: the wheel's, and mcctl's by the REST port of its node. Each
puts, gets, upserts and removes its own keys, which need more than the segments have, so that the master evicts at its watermark. Some keys are
hard-pinned and must always be readable. The master is restarted with SIGTERM and SIGKILL in turn.

Exit code 1, with details, if a read returned wrong bytes or a version that cannot be, a pinned key was lost, nothing was evicted, the
master ended by itself, or memory, open files or the data directory grew: the median of the last third of the run exceeds that of the second
sixth by more than --growth.
"""
import argparse, json, os, select, statistics, subprocess, sys, time

import common
from common import HERE, MIB, Agent, Master, Process, Result, log, peer, wait

LOW, HIGH = 64, 32768
SERIES = ("master_rss_kb", "master_files", "master_threads", "data_used", "data_allocated", "data_files", "wheel_node_rss_kb", "wheel_node_files",
          "own_node_rss_kb", "own_node_files")
GROWTH_SLACK = dict(master_rss_kb=16 << 10, wheel_node_rss_kb=32 << 10, own_node_rss_kb=32 << 10, data_used=16 * MIB, data_allocated=80 * MIB)


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--minutes", type=float, default=30)
    ap.add_argument("--every", type=float, default=20, help="seconds between restarts")
    ap.add_argument("--fsync", default="interval")
    ap.add_argument("--snapshot-seconds", type=int, default=7)
    ap.add_argument("--lease-ms", type=int, default=2000, help="short, so that the master can evict between restarts")
    ap.add_argument("--segment-mib", type=int, default=48, help="memory per node")
    ap.add_argument("--pinned", type=int, default=100, help="hard-pinned keys per node")
    ap.add_argument("--threads", type=int, default=4, help="of the wheel's client; mcctl's has half as many")
    ap.add_argument("--growth", type=float, default=1.25)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--no-data-dir", action="store_true", help="to test this program: pinned keys are lost")
    ap.add_argument("--dir")
    ap.add_argument("--json")
    return ap.parse_args()


class Worker:
    def __init__(self, root, kind, target, name, keys, threads, seed, *pinned):
        self.process = Process(name, [peer.python(), os.path.join(HERE, "soak_worker.py"), kind, target, name, *map(str, (keys, threads, LOW, HIGH, seed)),
                                      *pinned], root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.last, self.buffer = {}, b""

    def poll(self, seconds=0.0):
        """reads the worker's reports; the newest one"""
        out = self.process.p.stdout.fileno()
        while select.select([out], [], [], seconds)[0]:
            data = os.read(out, 1 << 16)
            if not data:
                break
            self.buffer += data
            *lines, self.buffer = self.buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"@"):
                    self.last = json.loads(line[1:])
            seconds = 0.0
        return self.last

    def finish(self):
        self.process.p.stdin.close()
        end = time.monotonic() + 150
        while not self.process.ended() and time.monotonic() < end:
            self.poll(0.2)
        return self.poll()


def sample(master, data, nodes):
    pid = master.process.pid
    out = dict(at=time.monotonic(), master_rss_kb=peer.rss_kb(pid), master_files=common.open_files(pid), master_threads=len(os.listdir(f"/proc/{pid}/task")))
    for name, process in nodes.items():
        out[f"{name}_rss_kb"], out[f"{name}_files"] = peer.rss_kb(process.pid), common.open_files(process.pid)
    if data:
        size = common.directory_size(data)
        out.update(data_used=size["used"], data_allocated=size["allocated"], data_files=size["files"])
    metrics = master.metrics()
    out.update(evicted=metrics.get("master_evicted_key_count", 0), keys=metrics.get("master_key_count", 0),
               hold_max_s=metrics.get("mcctl_master_state_hold_max_seconds"))
    return out


def growth(series, factor):
    """the figures whose last third is higher than their second sixth by more than the factor and a slack"""
    out = {}
    n = len(series)
    for name in SERIES:
        values = [s[name] for s in series if name in s]
        if len(values) < 12:
            continue
        early, late = statistics.median(values[n // 6:n // 3]), statistics.median(values[-(n // 3):])
        out[name] = dict(early=early, late=late, grew=late > early * factor + GROWTH_SLACK.get(name, 8))
    return out


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-soak.")
    data = None if args.no_data_dir else os.path.join(root, "data")
    flags = [f"--default_kv_lease_ttl={args.lease_ms}", "--eviction_high_watermark_ratio=0.9", "--put_start_discard_timeout_sec=5",
             "--put_start_release_timeout_sec=20"]
    master = Master(args.binary, root, flags + (common.data_flags(data, args.fsync, args.snapshot_seconds) if data else []))
    master.start_ready()
    segment = args.segment_mib * MIB
    wheel_node = Agent(root, "wheel-node", master, segment, 16 * MIB)
    wait("the wheel's segment", 30, lambda: len(master.segments()) == 1)
    own_node, rest = common.own_node(args.binary, master, root, "own-node", segment)
    segments = wait("mcctl's segment", 60, lambda: len(master.segments()) == 2 and master.segments())
    nodes = dict(wheel_node=wheel_node.process, own_node=own_node)
    keys = int(2 * segment / ((LOW + HIGH) / 2))  # per client: together about 2.3 times what fits (base64 adds a third)
    workers = [Worker(root, "wheel", master.address, "soak-wheel", keys, args.threads, args.seed, *(f"{s}:{args.pinned}" for s in segments)),
               Worker(root, "rest", f"http://127.0.0.1:{rest}", "soak-rest", keys // 2, max(1, args.threads // 2), args.seed + 1)]
    series, restarts, problems, evicted = [], [], [], 0
    begin = time.monotonic()
    try:
        for w in workers:
            wait(f"{w.process.name}", 120, lambda: w.poll(0.1) or w.process.ended())
            if w.process.ended():
                raise RuntimeError(f"{w.process.name} ended:\n{w.process.text()[-2000:]}")
        while time.monotonic() - begin < args.minutes * 60:
            end = time.monotonic() + args.every
            while time.monotonic() < end:
                for w in workers:
                    w.poll()
                if master.process.ended():
                    problems.append(f"the master ended by itself with {master.process.p.returncode}: {master.process.text()[-1500:]}")
                    break
                time.sleep(0.2)
            if problems:
                break
            row = sample(master, data, nodes)
            evicted += row["evicted"]
            series.append(row)
            how = "TERM" if len(restarts) % 2 == 0 else "KILL"
            stop = master.process.end(common.SIGNALS[how], 60)
            code = master.process.p.returncode
            if how == "TERM" and code != 0:
                problems.append(f"exit code {code} after SIGTERM: {master.process.text()[-1000:]}")
            t = time.monotonic()
            try:
                master.start_ready(30)
            except RuntimeError as error:
                problems.append(f"restart {len(restarts) + 1} ({how}): {error}")
                break
            restarts.append(dict(signal=how, stop_s=round(stop, 3), answers_s=round(time.monotonic() - t, 3)))
            reports = {w.process.name: w.poll() for w in workers}
            found = sum(r.get("violation_count", 0) for r in reports.values())
            result.save(series=series, restarts=restarts, workers=reports, problems=problems)
            if len(restarts) % 5 == 1 or found:
                log(f"{(time.monotonic() - begin) / 60:.1f} min, {len(restarts)} restarts, {row['keys']:.0f} keys, {evicted:.0f} evicted, RSS "
                    f"{row['master_rss_kb'] / 1024:.0f} MiB, data {row.get('data_used', 0) / MIB:.1f} MiB, violations {found}")
    finally:
        reports = {}
        for w in workers:
            try:
                reports[w.process.name] = w.finish()
            except (OSError, ValueError) as error:
                problems.append(f"{w.process.name}: {error}")
            w.process.stop()
        if not master.process.ended():
            evicted += master.metrics().get("master_evicted_key_count", 0)
        for p in (wheel_node.process, own_node, master.process):
            p.stop()
    for r in reports.values():
        problems += r.get("violations", [])
    trend = growth(series, args.growth)
    problems += [f"{name} grew from {t['early']} to {t['late']}" for name, t in trend.items() if t["grew"]]
    if not evicted:
        problems.append("nothing was evicted: the run proves nothing about eviction")
    result.save(series=series, restarts=restarts, workers=reports, problems=problems, trend=trend, evicted=evicted,
                hold_max_s=max((s["hold_max_s"] or 0 for s in series), default=None))
    for name, r in reports.items():
        print(f"{name}: {json.dumps(r.get('counts'))}")
    print(f"{len(restarts)} restarts; {evicted:.0f} objects evicted; answers again after {common.median_worst([r['answers_s'] for r in restarts])} s")
    print(f"trend: {json.dumps(trend)}")
    for p in problems[:30]:
        print(f"VIOLATION: {p}")
    print("failed" if problems else "no violation")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
