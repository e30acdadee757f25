#!/usr/bin/env python3
"""Store level over TCP loopback: real Python client <-> a separate process that lends the memory, through a master.

  bench_store.py [--combo 'NAME|ENV|MASTER CMD|STORE CMD|CLIENT CMD'] ... [--rounds 2] [--secs 1] [--json FILE]
                 [--sizes 65536,1048576,4194304] [--batches 1,32,128] [--capacity BYTES] [--ops ...]

Built-in combos: ours (mcctl's master and store node, real client), ours-node (real master, mcctl's node), tcp (defaults), tcp-nopool (MC_TCP_ENABLE_CONNECTION_POOL=0, the default of older wheels), local (client owns
the segment, memcpy shortcut on = default for TCP), local-off (MC_STORE_MEMCPY=0, same segment through TCP).
A store prints READY, a client prints one JSON object per case (see store_worker.py).  Placeholders: {rpc} {master}
{capacity} {spec} {python} {tools} {peer}.  An empty STORE CMD means the client has its own segment.
"""
import argparse, json, os, shlex, subprocess, sys, tempfile, time
import peer

ap = argparse.ArgumentParser()
ap.add_argument("--combo", action="append")
ap.add_argument("--rounds", type=int, default=2)
ap.add_argument("--secs", type=float, default=1.0)
ap.add_argument("--sizes", default="65536,1048576,4194304")
ap.add_argument("--batches", default="1,32,128")
ap.add_argument("--capacity", type=int, default=1536 << 20)
ap.add_argument("--window", type=int, default=512 << 20)
ap.add_argument("--ops", default="put,put_from,batch_put_from,get,get_into,batch_get_into,control")
ap.add_argument("--json")
ap.add_argument("--log")
a = ap.parse_args()
W = "{python} {tools}/store_worker.py "
SERVE, REMOTE, LOCAL = W + "serve {master} {capacity}", W + "load {master} 0 {spec}", W + "load {master} {capacity} {spec}"
B = {"tcp": ("", SERVE, REMOTE), "tcp-nopool": ("MC_TCP_ENABLE_CONNECTION_POOL=0", SERVE, REMOTE), "local": ("", "", LOCAL),
     "local-off": ("MC_STORE_MEMCPY=0", "", LOCAL)}
OURS = ("{mcctl} serve store -D local_hostname=127.0.0.1 -D metadata_server=P2PHANDSHAKE -D master_server_address={master} "
        "-D global_segment_size={capacity} -D local_buffer_size=0 -D protocol=tcp --port {rest}")
combos = []
for c in a.combo or ["tcp", "ours"]:
    if c in ("ours", "ours-node"):
        combos.append((c, "", peer.OURS_MASTER if c == "ours" else peer.REAL_MASTER, OURS, REMOTE))
    elif c in B:
        combos.append((c, B[c][0], peer.REAL_MASTER, B[c][1], B[c][2]))
    else:
        n, e, m, s, l = [x.strip() for x in c.split("|", 4)]
        combos.append((n, e, m or peer.REAL_MASTER, SERVE if s == "real" else s, l or REMOTE))
out = a.json or tempfile.mktemp(suffix=".jsonl")
ints = lambda s: [int(x) for x in s.split(",")]
spec = json.dumps(dict(secs=a.secs, sizes=ints(a.sizes), batches=ints(a.batches), window=a.window, ops=a.ops.split(","),
                       capacity=a.capacity))


def fill(t, **k):
    k.update(python=peer.python(), tools=peer.HERE, peer=peer.peer(), capacity=a.capacity, rest=peer.free_port())
    if "{mcctl}" in t:
        k["mcctl"] = peer.mcctl()
    return [x.format(**k) if x != "{spec}" else spec for x in shlex.split(t)]


for r in range(a.rounds):
    for name, env, mt, st, ct in combos:
        e = dict(os.environ, MC_LOG_LEVEL="ERROR", GLOG_minloglevel="2", **dict(x.split("=", 1) for x in env.split()))
        log = open(a.log or os.devnull, "ab")
        with peer.Server(name, mt, log=a.log) as m:
            m.wait_port(m.ports["rpc"])
            addr = f"127.0.0.1:{m.ports['rpc']}"
            sp = None
            try:
                if st:
                    sp = subprocess.Popen(fill(st, master=addr, rpc=m.ports["rpc"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=log, env=e, start_new_session=True)
                    if "{mcctl}" in st:  # mounted when the master lists it
                        peer.wait_segments(m.ports["metrics"], 1)
                    else:
                        for l in sp.stdout:
                            if b"READY" in l:
                                break
                    time.sleep(0.3)
                peer.quiet()
                p = subprocess.Popen(fill(ct, master=addr, rpc=m.ports["rpc"]), stdout=subprocess.PIPE, stderr=log, env=e,
                                     start_new_session=True)
                c0, m0, b0, t0, own0 = (peer.cpu(sp.pid) if sp else 0), peer.cpu(m.pid), peer.busy(), time.monotonic(), peer.cpu(p.pid)
                import signal
                signal.alarm(int(a.secs * 200 + 120))
                for l in p.stdout:
                    if not l.startswith(b"{"):
                        continue
                    d = json.loads(l)
                    c1, m1 = (peer.cpu(sp.pid) if sp else 0), peer.cpu(m.pid)
                    gb = d.get("objects", 0) * d.get("size", 0) / 1e9
                    own, b1, t1 = (peer.cpu(p.pid) if p.poll() is None else own0), peer.busy(), time.monotonic()
                    oth = (b1 - b0 - (own - own0) - (c1 - c0) - (m1 - m0)) / max(1e-3, t1 - t0)
                    own0, b0, t0 = own, b1, t1
                    d.update(name=name, others_cpu=oth, store_cpu_per_gb=(c1 - c0) / gb if gb else None, master_cpu_s=m1 - m0)
                    c0, m0 = c1, m1
                    with open(out, "a") as f:
                        f.write(json.dumps(d) + "\n")
                p.wait(30)
                signal.alarm(0)
            finally:
                if sp:
                    sp.kill()
                    sp.wait()
        print(f"round {r + 1}/{a.rounds} {name} done", file=sys.stderr)
R = [json.loads(l) for l in open(out)]
R = [d for d in R if "error" not in d]
rows = []
for k in dict.fromkeys((d["op"], d["size"], d["batch"]) for d in R):
    base = None
    for name, *_ in combos:
        v = [d for d in R if (d["op"], d["size"], d["batch"], d["name"]) == (*k, name)]
        if not v:
            continue
        v = peer.quieter(v)
        q = lambda x: peer.med([d[x] for d in v])
        base = base or q("obj_s")
        rows.append([*k, name, f"{q('gb_s'):.3f}", f"{q('obj_s'):,.0f}", f"{q('p50_us'):,.0f}", f"{q('p99_us'):,.0f}",
                     f"{q('client_cpu_per_gb'):.2f}", f"{q('client_cpu_us_per_obj'):.0f}", f"{q('store_cpu_per_gb'):.2f}",
                     f"{q('obj_s') / base:.2f}" if base else "-", f"{q('others_cpu'):.2f}", sum(d["fails"] for d in v)])
print(peer.table(rows, ["op", "size", "batch", "combo", "GB/s", "objects/s", "call p50 us", "call p99 us", "client CPU s/GB",
                        "client CPU us/object", "store CPU s/GB (incl. fill)", f"vs {combos[0][0]}", "other CPUs busy", "failures"]))
print("raw:", out, file=sys.stderr)
