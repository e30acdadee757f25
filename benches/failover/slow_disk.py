"""A standby whose disk needs 500 ms for each sync, a full store, and a client that puts new keys: how many puts fail.

Both masters have data directories. Needs root, Python 3.11, etcd, a C compiler and the wheel (tests/peers/install).
"""
import argparse, json, os, subprocess, sys, tempfile, time

import cluster as net
import peer
from cluster import HaCluster, log

SHIM = os.path.join(os.path.dirname(net.HERE), "restart", "fault_shim.c")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=None)
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--delay-ms", type=int, default=500)
    p.add_argument("--segment-mib", type=int, default=64)
    p.add_argument("--fsync", default="interval=50ms")
    p.add_argument("--json")
    args = p.parse_args()
    program = os.path.abspath(args.binary or peer.mcctl())
    args.binary, args.real, args.ack, args.data = program, False, "sync", True
    args.flags = [f"--fsync={args.fsync}"]
    net.network()
    folder = tempfile.mkdtemp(prefix="slow-disk-")
    library, control = os.path.join(folder, "shim.so"), os.path.join(folder, "control")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True, timeout=60)
    with open(control, "wb") as f:
        f.write(args.delay_ms.to_bytes(4, "little") + bytes(60))
    slow = os.path.join(folder, "slow")
    with open(slow, "w") as f:
        f.write(f"#!/bin/sh\nexport FAULT_CONTROL={control} FAULT_DIRECTORY={folder}/data-m1\nLD_PRELOAD={library} exec {program} \"$@\"\n")
    os.chmod(slow, 0o755)
    c = HaCluster(args, folder, masters=2)
    standby = c.masters[1]
    start = standby.start
    standby.start = lambda: start(slow)
    try:
        c.start()
        c.client.ask("load", prefix="slow", pause=0.001)
        reads, without_standby, end = 0, 0, time.monotonic() + 60 * args.minutes
        while time.monotonic() < end:
            time.sleep(min(5, end - time.monotonic()))
            status = c.leader.status()
            without_standby += not any(s.get("in_sync") for s in status.get("standbys", []))
            reads += 1
        calls = c.client.ask("stop")["calls"]
        puts = [call for call in calls if call[0] == "put"]
        waits = sorted(end - begin for _, begin, end, _ in puts)
        with open(control, "rb") as f:
            syncs = int.from_bytes(f.read(36)[32:36], "little")
        result = dict(minutes=args.minutes, delay_ms=args.delay_ms, puts=len(puts), failed=sum(not call[3] for call in puts),
                      longest_put_s=round(waits[-1], 3), median_put_s=round(waits[len(waits) // 2], 5), slow_syncs=syncs,
                      status_reads=reads, status_reads_without_standby_in_sync=without_standby, objects=c.leader.status().get("objects"))
        print(json.dumps(result))
        if args.json:
            with open(args.json, "w") as f:
                json.dump(result, f)
        log(f"RESULT failed puts {result['failed']} of {result['puts']}")
        return 1 if result["failed"] else 0
    finally:
        c.stop()


if __name__ == "__main__":
    sys.exit(main())
