#!/usr/bin/env python3
"""Master control plane: requests/s, latency, CPU per request, memory per key; several masters side by side.

  bench_master.py [--server real] [--server ours] [--server floor] [--server 'NAME=COMMAND with {rpc}'] ...
                  [--rounds 3] [--secs 1.5] [--conns 1,8,64] [--ops ping,exist,...] [--deep exist:1:16,...] [--keys 20000] [--json FILE]

`real` is mooncake_master of the PyPI wheel, `ours` the release build of mcctl, `floor` a canned-answer server (framing and
kernel only). --deep adds rows OP:CONNECTIONS:DEPTH with DEPTH requests in flight on each connection.
Rounds are interleaved (A B C, A B C, ...) so that a noisy neighbour hits all servers alike.
Ratios against the first --server are printed; CPU per request is the figure that noise moves least.
"""
import argparse, json, os, subprocess, sys, tempfile
import peer

ap = argparse.ArgumentParser()
ap.add_argument("--server", action="append")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--secs", type=float, default=1.5)
ap.add_argument("--conns", default="1,8,64")
ap.add_argument("--ops", default="ping,exist,miss,bexist,get,bget,put,bput,remove")
ap.add_argument("--keys", type=int, default=20000)
ap.add_argument("--depth", type=int, default=1)
ap.add_argument("--deep", default="exist:1:16,ping:1:16")
ap.add_argument("--segments", type=int, default=8)
ap.add_argument("--key-len", type=int, default=68)
ap.add_argument("--json")
ap.add_argument("--log")
a = ap.parse_args()
load = peer.build("mrpcload.c")
servers = peer.parse_servers(a.server, ["real", "ours", "floor"])
out = a.json or tempfile.mktemp(suffix=".jsonl")
conns = [int(x) for x in a.conns.split(",")]
ops = a.ops.split(",")
deep = [(o, int(c), int(n)) for o, c, n in (x.split(":") for x in a.deep.split(",") if x)]
NRM = 10000


def phases(floor):
    p = [f"bput:4:1:{a.keys}"]
    n = a.keys
    if "remove" in ops:  # fresh keys never read, hence not leased
        need = NRM * len(conns)
        p += [f"put:8:1:{need}", f"rmfrom:{(n + 127) // 128 * 128}"]
        p += [f"remove:{c}:1:{NRM}" for c in conns]
    for o in ops:
        if o != "remove" and not (floor and o == "miss"):
            p += [f"{o}:{c}:{a.depth if o not in ('put', 'bput') else 1}:{a.secs}s" for c in conns]
    return p + [f"{o}:{c}:{n}:{a.secs}s" for o, c, n in deep]


for r in range(a.rounds):
    for name, tmpl in servers:
        with peer.Server(name, tmpl, log=a.log) as s:
            s.wait_port(s.ports["rpc"])
            floor = tmpl == peer.FLOOR_MASTER
            cmd = [load, "--addr", f"127.0.0.1:{s.ports['rpc']}", "--pid", str(s.pid), "--label", name, "--json", out,
                   "--segments", "0" if floor else str(a.segments), "--hot", str(a.keys), "--key-len", str(a.key_len), "--quiet", os.environ.get("QUIET_WAIT", "10")]
            subprocess.run(cmd + phases(floor), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1500)
        print(f"round {r + 1}/{a.rounds} {name} done", file=sys.stderr)

D = {}
for l in open(out):
    d = json.loads(l)
    D.setdefault((d["op"], d["conns"], d.get("depth", 1), d["label"]), []).append(d)
rows, base = [], servers[0][0]
order = ["ping", "exist", "miss", "get", "bexist", "bget", "put", "bput", "remove"]



def runs(op, c, depth, name):
    v = D.get((op, c, depth, name), [])
    if op in ("put", "bput"):  # the timed runs, not the filling ones
        v = [x for x in v if x["secs"] >= 0.9 * a.secs]
    return peer.quieter(v)


depth_of = lambda op: a.depth if op not in ("put", "bput", "remove") else 1
for op, c, depth in [(o, c, depth_of(o)) for o in order if o in ops for c in conns] + deep:
    for name, _ in servers:
        v = runs(op, c, depth, name)
        if not v:
            continue
        m = lambda k: peer.med([x[k] for x in v])
        b = runs(op, c, depth, base)
        ratio = m("items_per_s") / peer.med([x["items_per_s"] for x in b]) if b and peer.med([x["items_per_s"] for x in b]) else float("nan")
        items = peer.med([x["items"] / (2 if op in ("put", "bput") else 1) for x in v]) or 1
        rows.append([op, c, depth, name, f"{m('rps'):,.0f}", f"{m('items_per_s'):,.0f}", f"{m('p50_us'):.0f}", f"{m('p99_us'):.0f}",
                     f"{m('max_us') / 1000:.1f}", f"{m('srv_cpu_s_per_1m_req'):.1f}",
                     f"{m('srv_cpu_s') * 1e6 / items:.2f}", f"{ratio:.2f}", f"{m('others_cpu'):.2f}",
                     int(sum(x["errors"] for x in v))])
print(peer.table(rows, ["op", "conns", "in flight each", "server", "requests/s", "items/s", "p50 us", "p99 us", "max ms",
                        "server CPU s/1M requests", "server CPU us/item", f"items/s vs {base}", "other CPUs busy", "errors"]))
print("raw:", out, file=sys.stderr)
