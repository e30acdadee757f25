#!/usr/bin/env python3
"""Data plane over TCP loopback: transfer engine target + initiator, beside the machine's limits in the same run.

  bench_te.py [--pair 'NAME|ENV|TARGET CMD|INITIATOR CMD'] ... [--rounds 2] [--secs 2] [--ops read,write]
              [--blocks 4096,65536,1048576,4194304] [--batches 1,16,128] [--threads 1,2,4] [--json FILE]

Built-in pairs: ours (mcctl bench transfer on both ends), real-to-ours and ours-to-real (initiator-to-target), real (transfer_engine_bench, defaults: pooled connections in wheel 0.3.13.post1) and real-nopool
(MC_TCP_ENABLE_CONNECTION_POOL=0: a new TCP connection per slice, the default of older wheels).
A target prints "listening on HOST:PORT"; an initiator prints "throughput X GB/s".  Placeholders: {segment} {op}
{block} {batch} {threads} {secs} {buffer} {peer} {python}.  ENV is "K=V K=V" or empty.
Mixing a real target with another initiator (and the reverse) is a pair like any other.
"""
import argparse, json, os, re, resource, shlex, subprocess, sys, tempfile, time
import peer

ap = argparse.ArgumentParser()
ap.add_argument("--pair", action="append")
ap.add_argument("--rounds", type=int, default=2)
ap.add_argument("--secs", type=int, default=2)
ap.add_argument("--ops", default="read,write")
ap.add_argument("--blocks", default="4096,65536,1048576,4194304")
ap.add_argument("--batches", default="1,16,128")
ap.add_argument("--threads", default="1,2,4")
ap.add_argument("--buffer", type=int, default=512 << 20)
ap.add_argument("--no-limits", action="store_true")
ap.add_argument("--json")
a = ap.parse_args()
COMMON = "--protocol=tcp --metadata_server=P2PHANDSHAKE --local_server_name=127.0.0.1 --buffer_size={buffer} --report_precision=4"
T = "{peer}/transfer_engine_bench --mode=target " + COMMON
I = ("{peer}/transfer_engine_bench --mode=initiator " + COMMON + " --segment_id={segment} --operation={op} --block_size={block} "
     "--batch_size={batch} --threads={threads} --duration={secs}")
OT = "{mcctl} bench transfer --mode target " + COMMON
OI = ("{mcctl} bench transfer --mode initiator " + COMMON + " --segment_id={segment} --operation={op} --block_size={block} "
      "--batch_size={batch} --threads={threads} --duration={secs}")
BUILTIN = {"ours": ("ours", "", OT, OI), "real-to-ours": ("real-to-ours", "", OT, I), "ours-to-real": ("ours-to-real", "", T, OI),
           "real": ("real", "", T, I), "real-nopool": ("real-nopool", "MC_TCP_ENABLE_CONNECTION_POOL=0", T, I)}
pairs = []
for p in a.pair or ["real", "ours"]:
    pairs.append(BUILTIN[p] if p in BUILTIN else tuple(x.strip() for x in p.split("|", 3)))
ints = lambda s: [int(x) for x in s.split(",")]
out = a.json or tempfile.mktemp(suffix=".jsonl")
limits = peer.build("limits.c")


def fill(t, **k):
    if "{peer}" in t:
        k["peer"] = peer.peer()
    if "{python}" in t:
        k["python"] = peer.python()
    if "{mcctl}" in t:
        k["mcctl"] = peer.mcctl()
    return shlex.split(t.format(**k))


def emit(d):
    with open(out, "a") as f:
        f.write(json.dumps(d) + "\n")


def one(name, env, tcmd, icmd, op, block, batch, threads):
    e = dict(os.environ, **dict(x.split("=", 1) for x in env.split()))
    log = tempfile.NamedTemporaryFile("w+b")
    t = subprocess.Popen(fill(tcmd, buffer=a.buffer), stdout=log, stderr=subprocess.STDOUT, env=e, start_new_session=True)
    try:
        seg, end = None, time.monotonic() + 10
        while not seg and time.monotonic() < end:
            m = re.search(rb"listening on ([\w.\[\]:-]+:\d+)", open(log.name, "rb").read())
            seg = m and m.group(1).decode()
            time.sleep(0.02)
        time.sleep(0.4)  # the target registers its buffers after that line
        peer.quiet()
        c0, b0, r0, w0 = peer.cpu(t.pid), peer.busy(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        try:
            p = subprocess.run(fill(icmd, segment=seg, op=op, block=block, batch=batch, threads=threads, secs=a.secs, buffer=a.buffer),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=e, timeout=a.secs + 20)
            txt = p.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as x:
            txt = (x.stdout or b"").decode(errors="replace") + "\n[timed out]"
        r1 = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.monotonic() - w0
        m = re.search(r"throughput ([\d.]+) GB/s", txt)
        d = re.search(r"duration ([\d.]+)", txt)
        gbs = float(m.group(1)) if m else 0.0
        secs = float(d.group(1)) if d else a.secs
        gb = gbs * secs
        tc = peer.cpu(t.pid) - c0
        ic = r1.ru_utime + r1.ru_stime - r0.ru_utime - r0.ru_stime
        emit(dict(kind="te", name=name, op=op, block=block, batch=batch, threads=threads, gb_s=gbs, ops_s=gbs * 1e9 / block,
                  target_cpu_per_gb=tc / gb if gb else None, initiator_cpu_per_gb=ic / gb if gb else None,
                  others_cpu=(peer.busy() - b0 - tc - ic) / wall, ok=bool(m), err=None if m else txt[-300:]))
    finally:
        t.kill()
        t.wait()


def limit(*args):
    peer.quiet()
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit.cpu = r.ru_utime + r.ru_stime
    b0, w0 = peer.busy(), time.monotonic()
    p = subprocess.run([limits, *map(str, args)], capture_output=True, text=True, timeout=60)
    d = json.loads(p.stdout)
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    c = r.ru_utime + r.ru_stime - limit.cpu
    d.update(kind="limit", others_cpu=(peer.busy() - b0 - c) / (time.monotonic() - w0))
    emit(d)


limit.cpu = 0.0
for r in range(a.rounds):
    for op in a.ops.split(","):
        for block in ints(a.blocks):
            if not a.no_limits:
                limit("memcpy", block, 0.5)
                limit("shm", block, 0.5)
                for m in ("copy", "sendfile", "zerocopy"):
                    limit("tcp", block, 0.7, m)
                for d in (1, 16):
                    limit("rr" if op == "read" else "wr", block, 0.7, d)
            for batch in ints(a.batches):
                for th in ints(a.threads):
                    if block * batch * th > a.buffer:
                        continue
                    for p in pairs:
                        one(*p, op, block, batch, th)
        print(f"round {r + 1}/{a.rounds} {op} done", file=sys.stderr)

R = [json.loads(l) for l in open(out)]
med = peer.med
print("## limits (median)\n")
keys = sorted({(d["what"], d["mode"], d["depth"]) for d in R if d["kind"] == "limit"})
rows = []
for k in keys:
    row = list(k)
    for b in ints(a.blocks):
        v = [d for d in R if d["kind"] == "limit" and (d["what"], d["mode"], d["depth"]) == k and d["block"] == b]
        v = peer.quieter(v)
        row.append(f"{med([d['gb_s'] for d in v]):.2f} ({med([d['cpu_s_per_gb'] for d in v]):.2f})" if v else "-")
    rows.append(row)
print(peer.table(rows, ["what", "mode", "depth"] + [f"{b} B: GB/s (CPU s/GB)" for b in ints(a.blocks)]))
print("\n## transfer engine (median; GB/s, CPU s per GB of target + initiator)\n")
rows = []
for op in a.ops.split(","):
    for b in ints(a.blocks):
        for n in ints(a.batches):
            for th in ints(a.threads):
                base = None
                for p in pairs:
                    v = [d for d in R if d["kind"] == "te" and (d["name"], d["op"], d["block"], d["batch"], d["threads"]) == (p[0], op, b, n, th)]
                    if not v:
                        continue
                    v = peer.quieter(v)
                    g = med([d["gb_s"] for d in v])
                    base = g if base is None else base
                    rows.append([op, b, n, th, p[0], f"{g:.3f}", f"{g * 1e9 / b:,.0f}",
                                 f"{med([d['target_cpu_per_gb'] for d in v]):.2f}", f"{med([d['initiator_cpu_per_gb'] for d in v]):.2f}",
                                 f"{g / base:.2f}" if base else "-", f"{med([d['others_cpu'] for d in v]):.2f}",
                                 sum(not d["ok"] for d in v)])
print(peer.table(rows, ["op", "block", "batch", "threads", "pair", "GB/s", "blocks/s", "target CPU s/GB", "initiator CPU s/GB",
                        f"vs {pairs[0][0]}", "other CPUs busy", "failed runs"]))
print("raw:", out, file=sys.stderr)
