#!/usr/bin/env python3
"""The price of keeping the state on disk: processor time and latency of a master's calls, with and without a data directory.

  price.py --binary MCCTL [--keys 1000000] [--rounds 3] [--secs 3] [--conns 4] [--servers off,never,interval,always] [--json FILE] [--dir DIR]

Servers run at the same time of day, in turn (off, on, off, on, ...), so that a busy machine affects all of them; the first one is the base.
Each row's processor time is that of the master's process, in nanoseconds of its clock, per request and per object.

  put      PutStart and PutEnd, one key                 bput    BatchPutStart and BatchPutEnd, 128 keys
  exist    BatchExistKey of 128 keys, each key once: `first` the keys have no read lease, `again` they were touched just before
  get      BatchGetReplicaList of 128 keys, the same

Before each `first`, the script waits until all leases have expired. The disk's own rate is measured in the same run, on the same file system:
one fdatasync behind each write of 160 bytes to a preallocated file, before and after each round.
"""
import argparse, json, os, shutil, statistics, subprocess, time

import common
from common import Master, Result, log, peer

BATCH = 128
LEASE_SECONDS = 10


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--base-binary", help="mcctl for the server `off` (default: the same); for example a build without the feature")
    ap.add_argument("--servers", default="off,interval,always")
    ap.add_argument("--keys", type=int, default=1_000_000)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--secs", type=float, default=3)
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


def phases(args, server):
    """(row, phase of the load generator); a row of None is not measured"""
    requests = args.keys // BATCH
    out = [(None, f"bput:4:1:{args.keys}"), (None, f"sleep:{LEASE_SECONDS + 1}"), (None, "readfrom:0")]
    out += [("exist first", f"bexistseq:1:1:{requests}"), (None, "readfrom:0"), ("exist again", f"bexistseq:1:1:{requests}")]
    out += [(None, f"sleep:{LEASE_SECONDS + 1}"), (None, "readfrom:0")]
    out += [("get first", f"bgetseq:1:1:{requests}"), (None, "readfrom:0"), ("get again", f"bgetseq:1:1:{requests}")]
    out += [("put", f"put:{args.conns}:1:{args.secs}s"), ("bput", f"bput:{args.conns}:1:{args.secs}s")]
    out += [("ping", f"ping:{args.conns}:1:{args.secs}s")]
    if server == "always":
        out += [(f"put, {c} connections", f"put:{c}:1:{args.secs}s") for c in args.always_conns.split(",")]
    return out


def measure(args, root, server, round_number):
    data = os.path.join(root, "data")
    shutil.rmtree(data, ignore_errors=True)
    binary = args.base_binary if server == "off" and args.base_binary else args.binary
    flags = [] if server == "off" else common.data_flags(data, server, 600)
    process = (master := Master(binary, root, flags, name=f"master-{server}")).start_ready()
    plan = phases(args, server)
    timeout = 120 + args.keys / 5000 + len(plan) * (args.secs + 12)
    try:
        p = subprocess.run([peer.build("mrpcload.c"), "--addr", master.address, "--pid", str(process.pid), "--segments", "8", "--value-size", "4096",
                            "--quiet", os.environ.get("QUIET_WAIT", "5"), *(phase for _, phase in plan)], capture_output=True, text=True, timeout=timeout)
        lines = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
        if p.returncode:
            log(f"{server}: the load generator ended with {p.returncode}: {p.stderr[-300:]}")
        size = common.directory_size(data) if flags else None
        rss = peer.rss_kb(process.pid)
    finally:
        process.stop()
    names = [name or "fill" for name, phase in plan if not phase.startswith(("sleep", "readfrom"))]
    return [dict(line, row=name, server=server, round=round_number) for name, line in zip(names, lines)], dict(server=server, rss_kb=rss, disk=size)


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-price.")
    servers, rows, syncs, sizes = args.servers.split(","), [], [], []
    for r in range(args.rounds):
        for server in servers:
            syncs.append(dict(disk_syncs(root), round=r, before=server))
            lines, size = measure(args, root, server, r)
            rows += lines
            sizes.append(size)
            log(f"round {r + 1}/{args.rounds} {server} done")
            result.save(rows=rows, disk_syncs=syncs, sizes=sizes)
    table, base = [], servers[0]
    for row in dict.fromkeys(x["row"] for x in rows):
        for server in servers:
            mine = {x["round"]: x for x in rows if x["row"] == row and x["server"] == server}
            if not mine:
                continue
            its = {x["round"]: x for x in rows if x["row"] == row and x["server"] == base}
            med = lambda k: statistics.median(x[k] for x in mine.values())
            pairs = [(mine[n], its[n]) for n in mine if n in its]
            ratio = lambda k: statistics.median(a[k] / b[k] for a, b in pairs if b[k]) if pairs else float("nan")
            worst = lambda k: max((a[k] / b[k] for a, b in pairs if b[k]), default=float("nan"))
            objects = BATCH if row.split()[0] in ("exist", "get", "bput", "fill") else 1
            puts = 2 if row.split(",")[0] in ("put", "bput", "fill") else 1
            table.append([row, server, f"{med('rps'):,.0f}", f"{med('srv_cpu_s_per_1m_req'):.2f}", f"{med('srv_cpu_s_per_1m_req') * puts / objects:.3f}",
                          f"{ratio('srv_cpu_s_per_1m_req'):.2f} ({worst('srv_cpu_s_per_1m_req'):.2f})", f"{med('p50_us'):.0f}", f"{med('p99_us'):.0f}",
                          f"{ratio('p99_us'):.2f} ({worst('p99_us'):.2f})", f"{med('others_cpu'):.2f}", sum(x["errors"] for x in mine.values())])
    text = peer.table(table, ["row", "server", "requests/s", "CPU us/request", "CPU us/object (put: both calls)", f"CPU vs {base}, median (worst)", "p50 us",
                              "p99 us", f"p99 vs {base}, median (worst)", "other CPUs busy", "errors"])
    rate = statistics.median(s["per_s"] for s in syncs)
    result.save(table=text)
    print(text)
    print(f"\nthe disk: {rate:,.0f} fdatasync/s in sequence (median of {len(syncs)})")


if __name__ == "__main__":
    main()
