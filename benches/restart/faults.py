#!/usr/bin/env python3
"""Damaged data directories and failing disks: each must lead to full recovery, or to exit code 4 with file and offset in the message.

  faults.py --binary MCCTL [--parts damage,truncate,live] [--keys 1500] [--truncations 200] [--flips 6] [--seed 1] [--json FILE] [--dir DIR]

damage     bits flipped, zeroed sectors, missing and extended files, for every kind of file and every part of it
truncate   files cut at N offsets
live       a running master: full disk, read-only file system, lost permission, errors of fsync and write, fsync of 100 ms, with each
           --on-disk-error; then a start on the same directory without the fault. Needs cc; as root also mounts small tmpfs file systems,
           and unmounts them.

The keys are on paper segments (no memory), so a case takes a fraction of a second. Recovery is full if every acknowledged key has the same
replicas at the same addresses, no removed key is back, no new object gets a range that is in use, and all of that holds after another kill.
An end of the log that is cut and reported is listed separately: the kernel that wrote it has not died here, so only damage can cause it.
Exit code 1 if there is a third outcome.
"""
import argparse, collections, json, os, random, shutil, subprocess, sys

import common, damage, live_faults
from common import Result, log, peer

PARTS = ("damage", "truncate", "live")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--parts", default=",".join(PARTS))
    ap.add_argument("--keys", type=int, default=1500)
    ap.add_argument("--truncations", type=int, default=200)
    ap.add_argument("--flips", type=int, default=6, help="bit flips per part of a file")
    ap.add_argument("--cases", help="only cases whose name contains this")
    ap.add_argument("--fill-seconds", type=float, default=2, help="writing before a live fault")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--dir")
    ap.add_argument("--json")
    args = ap.parse_args()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-faults.")
    rows, rng = [], random.Random(args.seed)
    parts = args.parts.split(",")

    def add(part, case, outcome):
        rows.append(dict(part=part, case=case, **outcome))
        if len(rows) % 10 == 0 or "full" not in outcome["outcome"]:
            result.save(cases=rows)
        if outcome["outcome"].startswith("VIOLATION"):
            log(f"{case}: {outcome['outcome']} ({outcome.get('message', '')[:300]})")

    wanted = lambda case: not args.cases or args.cases in case
    if "damage" in parts or "truncate" in parts:
        bases = damage.bases(args, root)
        for base in bases:
            log(f"{base.name}: {base.listing()}")
        if "damage" in parts:
            damage.run(args, root, bases, rng, wanted, add)
        if "truncate" in parts:
            damage.truncate(args, root, bases, rng, wanted, add)
    if "live" in parts:
        live_faults.run(args, root, wanted, add)
    counts = collections.Counter((r["part"], r.get("group", r["case"].split(":")[0]), r["outcome"].split(";")[0][:110]) for r in rows)
    table = [[part, group, outcome, n] for (part, group, outcome), n in sorted(counts.items())]
    result.save(cases=rows, table=table)
    print(peer.table(table, ["part", "case", "outcome", "count"]))
    bad = [r for r in rows if not r["outcome"].startswith(("full", "exit 4", "cut, reported", "expected", "skipped"))]
    incomplete = [r for r in rows if r["outcome"].startswith("exit 4,")]
    print(f"\n{len(rows)} cases, {len(bad)} violations, {len(incomplete)} exits whose message lacks the file or the offset")
    for r in (bad + incomplete)[:40]:
        print(f"- {r['part']} {r['case']}: {r['outcome']}: {r.get('message', '')[:250]}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
