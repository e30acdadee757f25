#!/usr/bin/env python3
"""Holds the figures of the drivers against the targets, ours beside the real one of the same runs.

  judge.py FILE.jsonl ...     what bench_master, bench_scale and bench_te wrote with --json

A target whose figures are not in the files is left out. Exit 0 when all that could be judged are met, 1 otherwise.
"""
import json, sys
import peer

R = [json.loads(l) for f in sys.argv[1:] for l in open(f)]
rows, missed = [], 0


def target(what, found, limit, unit="", most=True, floor=None):
    """floor: the same figure of a program that answers without doing anything"""
    global missed
    if found is None or found != found:
        return
    ok = found <= limit if most else found >= limit
    missed += not ok
    show = lambda v: "-" if v is None else f"{v:,.3g}{unit}" if v < 1000 else f"{v:,.0f}{unit}"
    out_of_reach = floor is not None and not (floor <= limit if most else floor >= limit)
    verdict = "met" if ok else "MISSED, as the floor does" if out_of_reach else "MISSED"
    rows.append([what, show(found), f"{'<=' if most else '>='} {limit:,g}{unit}", show(floor), verdict])


def values(key, where):
    v = [d for d in R if all(d.get(k) == x for k, x in where.items()) and d.get(key) is not None]
    v = peer.quieter(v) if v and "others_cpu" in v[0] else v
    return [d[key] for d in v]


def one(key, **where):
    v = values(key, where)
    return peer.med(v) if v else None


def ratio(key, name="label", ours="ours", real="real", **where):
    a, b = one(key, **where, **{name: ours}), one(key, **where, **{name: real})
    return a / b if a is not None and b else None


# --- master: server CPU of one item (srv_cpu_s_per_1m_req is per request; both sides send the same requests)
for op, limit, what in (("exist", 0.5, "ExistKey"), ("bexist", 0.1, "BatchExistKey(128)"), ("put", 0.45, "PutStart+PutEnd"), ("bput", 0.12, "BatchPut(128)")):
    # fill phases of put and bput are told from timed ones by their connections
    for c in (1, 8, 64):
        target(f"{what}: server CPU, {c} connections, share of the real one", ratio("srv_cpu_s_per_1m_req", op=op, conns=c, depth=1), limit,
               floor=ratio("srv_cpu_s_per_1m_req", ours="floor", op=op, conns=c, depth=1))
deep = dict(op="exist", conns=1, depth=16)
target("ExistKey, one connection, 16 in flight", one("rps", **deep, label="ours"), 500_000, "/s", most=False, floor=one("rps", **deep, label="floor"))
ours = [d for d in R if "ours" in (d.get("label"), d.get("name"))]
if ours:
    target("errors in all runs of ours", sum(d.get("errors") or 0 for d in ours) + sum(not d.get("ok", True) for d in ours), 0)
# --- scale
target("bytes per key at 1 M keys", one("bytes_per_key", part="keys", name="ours", op="fill", keys=1_000_000), 250, " B")
for op in ("put", "bput"):
    few, many = (one("p50_us", part="segments", name="ours", op=op, conns=1, clients=n) for n in (1, 1000))
    if few and many:
        target(f"{op}: p50 with 1000 live clients, times that with 1", many / few, 1.3)
for n in sorted({d["capacity_keys"] for d in R if d.get("part") == "evict"}):
    e = dict(part="evict", name="ours", capacity_keys=n)
    target(f"eviction at {n:,}: longest hold of the state", one("hold_max_ms", **e, evicting="yes"), 1, " ms")
    with_, without = one("probe_max_ms", **e, evicting="yes"), one("probe_max_ms", **e, evicting="no")
    if with_ is not None and without is not None:
        target(f"eviction at {n:,}: reader's longest wait, above the same load without", with_ - without, 5, " ms")
target("start to first answer", one("first_answer_ms", part="start", name="ours"), 20, " ms")
rss = one("idle_rss_kb", part="start", name="ours")
target("idle RSS", rss / 1024 if rss else None, 10, " MiB")
# --- transfer engine: CPU of both ends
for d in R:
    if d.get("kind") == "te" and d.get("target_cpu_per_gb") is not None:
        d["both"] = d["target_cpu_per_gb"] + d["initiator_cpu_per_gb"]
for op, block, batch, threads in sorted({(d["op"], d["block"], d["batch"], d["threads"]) for d in R if d.get("kind") == "te"}):
    k = dict(kind="te", op=op, block=block, batch=batch, threads=threads)
    what = f"{op} {block} B, batch {batch}, {threads} threads"
    limit = 0.45 if block <= 4096 else 0.7 if block <= 65536 else 1.0
    bare = dict(kind="limit", what="rr" if op == "read" else "wr", depth=1, block=block)
    real = one("both", **k, name="real")
    floor = one("cpu_s_per_gb", **bare) if batch == 1 and threads == 1 else None
    target(f"{what}: CPU of both ends, share of the real one", ratio("both", "name", **k), limit, floor=floor / real if floor and real else None)
    if block >= 1 << 20 and batch == 1 and threads == 1:
        bare, ours = one("gb_s", **bare), one("gb_s", **k, name="ours")
        if bare and ours:
            target(f"{what}: GB/s, share of the bare loop", ours / bare, 0.95, most=False)
print(peer.table(rows, ["target", "found", "wanted", "floor", "verdict"]))
sys.exit(1 if missed else 0)
