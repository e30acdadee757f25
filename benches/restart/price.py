#!/usr/bin/env python3
"""The price of keeping the state on disk: processor time and latency of a master's calls, with and without a data directory.

  price.py --binary MCCTL [--keys 1000000] [--rounds 3] [--repeats 8] [--secs 0.5] [--conns 4] [--servers off,interval,always]
           [--json FILE] [--dir DIR]

All servers of a round run at once, each with its own keys and load generator, but only one of them is under load at any time: the load goes
from one to the next after each short phase, in changing order. A ratio compares phases that are neighbours in time, so that a busy machine
affects both. The first server is the base. Processor time is that of the master's process, from its clock in nanoseconds.

  put      PutStart and PutEnd, one key                 bput    BatchPutStart and BatchPutEnd, 128 keys
  exist    BatchExistKey of 128 keys, each key once: `first` the keys have no read lease, `again` they were touched just before
  get      BatchGetReplicaList of 128 keys, the same    ping    Ping, which never touches the log: the noise of the measurement

Before the rows `first`, all leases have expired. The disk's own rate is measured in the same run, on the same file system: one fdatasync behind
each write of 160 bytes to a preallocated file, before each round.
"""
import argparse, json, os, select, shutil, statistics, subprocess, time

import common
from common import Master, Process, Result, log, peer

BATCH = 128
LEASE_SECONDS = 10


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--base-binary", help="mcctl for the server `off` (default: the same); for example a build without the feature")
    ap.add_argument("--servers", default="off,interval,always")
    ap.add_argument("--keys", type=int, default=1_000_000)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--repeats", type=int, default=8, help="phases per row, round and server")
    ap.add_argument("--secs", type=float, default=0.5, help="per timed phase")
    ap.add_argument("--conns", type=int, default=4)
    ap.add_argument("--always-conns", default="1,16,64", help="connections of the additional put rows of the server `always`")
    ap.add_argument("--dir")
    ap.add_argument("--json")
    return ap.parse_args()


def disk_syncs(folder, seconds=1.0, size=160):
    """how many small writes per second the disk makes durable, one after the other"""
    path = os.path.join(folder, "sync-probe")
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(file, 0, 16 << 20)
        os.pwrite(file, b"\0" * (16 << 20), 0)
        os.fsync(file)
        times, at, end = [], 0, time.monotonic() + seconds
        while time.monotonic() < end and at + size < 16 << 20:
            t = time.perf_counter()
            os.pwrite(file, b"x" * size, at)
            os.fdatasync(file)
            times.append(time.perf_counter() - t)
            at += size
    finally:
        os.close(file)
        os.unlink(path)
    return dict(per_s=round(len(times) / sum(times), 1), p50_us=round(statistics.median(times) * 1e6), p99_us=round(common.quantile(times, .99) * 1e6))


def steps(args):
    """(row, phases of the load generator, servers); a step without phases is a pause in seconds"""
    slice_ = args.keys // BATCH // args.repeats
    out = [("fill", [f"bput:4:1:{args.keys}"], None)]
    for row, op in (("exist", "bexistseq"), ("get", "bgetseq")):
        out.append((LEASE_SECONDS + 1, [], None))
        for r in range(args.repeats):
            for touch in ("first", "again"):
                out.append((f"{row} {touch}", [f"readfrom:{r * slice_ * BATCH}", f"{op}:1:1:{slice_}"], None))
    for row in ("put", "bput", "ping"):
        out += [(row, [f"{row}:{args.conns}:1:{args.secs}s"], None)] * args.repeats
    for conns in args.always_conns.split(","):
        out += [(f"put, {conns} connections", [f"put:{conns}:1:{args.secs}s"], "always")] * 3
    return out


class Subject:
    """a master and its load generator, which waits for a line before each step"""

    def __init__(self, args, root, server, plan):
        self.server, self.data = server, os.path.join(root, f"data-{server}")
        shutil.rmtree(self.data, ignore_errors=True)
        binary = args.base_binary if server == "off" and args.base_binary else args.binary
        self.keeps = server != "off"
        master = Master(binary, root, common.data_flags(self.data, server, 3600) if self.keeps else [], name=f"master-{server}")
        self.process = master.start_ready()
        words = [word for _, phases, only in plan if phases and only in (None, server) for word in ("go", *phases)]
        self.load = Process(f"load-{server}", [peer.build("mrpcload.c"), "--addr", master.address, "--pid", str(self.process.pid), "--segments", "8",
                                               "--value-size", "4096", *words], root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def step(self, seconds):
        self.load.p.stdin.write(b"\n")
        self.load.p.stdin.flush()
        if not select.select([self.load.p.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"{self.server}: no result within {seconds} s")
        line = self.load.p.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.server}: the load generator ended: {self.load.text()[-500:]}")
        return json.loads(line)

    def stop(self):
        self.load.stop()
        self.process.stop()


def one_round(args, root, number, servers):
    plan, rows, index = steps(args), [], {}
    subjects = [Subject(args, root, server, plan) for server in servers]
    try:
        for at, (row, phases, only) in enumerate(plan):
            if not phases:
                time.sleep(row)
                continue
            repeat = index[row] = index.get(row, -1) + 1
            turn = (at + number) % len(subjects)
            for s in subjects[turn:] + subjects[:turn]:
                if only in (None, s.server):
                    rows.append(dict(s.step(120 + args.keys / 500), row=row, server=s.server, round=number, repeat=repeat))
        sizes = [dict(server=s.server, round=number, rss_kb=peer.rss_kb(s.process.pid), disk=common.directory_size(s.data) if s.keeps else None)
                 for s in subjects]
    finally:
        for s in subjects:
            s.stop()
    return rows, sizes


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-price.")
    servers, rows, syncs, sizes = args.servers.split(","), [], [], []
    for r in range(args.rounds):
        syncs.append(dict(disk_syncs(root), round=r))
        lines, size = one_round(args, root, r, servers)
        rows += lines
        sizes += size
        log(f"round {r + 1}/{args.rounds} done; the disk: {syncs[-1]}")
        result.save(rows=rows, disk_syncs=syncs, sizes=sizes)
    table, ratios, base = [], {}, servers[0]
    for row in dict.fromkeys(x["row"] for x in rows):
        for server in servers:
            mine = {(x["round"], x["repeat"]): x for x in rows if x["row"] == row and x["server"] == server}
            if not mine:
                continue
            its = {(x["round"], x["repeat"]): x for x in rows if x["row"] == row and x["server"] == base}
            med = lambda k: statistics.median(x[k] for x in mine.values())

            def ratio(k):
                """the median of all pairs, and the worst median of a round"""
                pairs = {n: mine[n][k] / its[n][k] for n in mine if n in its and its[n][k]}
                if not pairs:
                    return None
                rounds = [statistics.median(v for (r, _), v in pairs.items() if r == n) for n in {r for r, _ in pairs}]
                return dict(median=round(statistics.median(pairs.values()), 3), worst_round=round(max(rounds), 3), pairs=len(pairs))
            objects = BATCH if row.split()[0] in ("exist", "get", "bput", "fill") else 1
            puts = 2 if row.split(",")[0] in ("put", "bput", "fill") else 1
            cpu, p99 = ratio("srv_cpu_s_per_1m_req"), ratio("p99_us")
            per_object = {n: x["srv_cpu_s_per_1m_req"] * puts / objects for n, x in mine.items()}
            more = [per_object[n] - its[n]["srv_cpu_s_per_1m_req"] * puts / objects for n in mine if n in its]
            ratios.setdefault(row, {})[server] = dict(cpu=cpu, p99=p99, more_us_per_object=round(statistics.median(more), 4) if more else None)
            show = lambda v: f"{v['median']:.2f} ({v['worst_round']:.2f})" if v else "-"
            table.append([row, server, f"{med('rps'):,.0f}", f"{med('srv_cpu_s_per_1m_req'):.2f}", f"{statistics.median(per_object.values()):.3f}",
                          f"{statistics.median(more):+.3f}" if more else "-", show(cpu), f"{med('p50_us'):.0f}", f"{med('p99_us'):.0f}", show(p99),
                          f"{med('others_cpu'):.2f}", sum(x["errors"] for x in mine.values())])
    text = peer.table(table, ["row", "server", "requests/s", "CPU us/request", "CPU us/object (put: both calls)", "more per object, paired",
                              f"CPU vs {base}, paired (worst round)", "p50 us", "p99 us", f"p99 vs {base}, paired (worst round)", "other CPUs busy", "errors"])
    rate = statistics.median(s["per_s"] for s in syncs)
    result.save(table=text, ratios=ratios)
    print(text)
    print(f"\nthe disk: {rate:,.0f} fdatasync/s in sequence (median of {len(syncs)})")


if __name__ == "__main__":
    main()
