#!/usr/bin/env python3
"""Master at scale: start-up time, number of segments/clients, number of keys (memory, latency), eviction.

  bench_scale.py [--server NAME=CMD ...] [--parts start,segments,connect,keys,evict] [--keys 10000,100000,1000000]
                 [--segments 1,100,1000] [--evict-keys 50000,500000] [--rounds 1] [--json FILE]

NAME alone may be real or ours. Part start: time from the process's start to the first answer, and what it costs to sit idle.
Part evict runs each pool twice, at its watermark and with ten times the room, so that the second is the same put load without
eviction; where the server counts how long it holds its state (mcctl_master_state_hold_seconds), that is shown too.
Objects are 1 MiB on segments that exist on paper only (the master never touches the memory), so no RAM but the
master's own is needed.  The eviction part fills to the high watermark (default 0.9 of capacity) and keeps putting
for --evict-secs while a second generator probes ExistKey on one connection: the probe's maximum is the stall other
clients see.  Lease flags: servers that take --default_kv_lease_ttl can be given it in CMD.
"""
import argparse, json, os, socket, subprocess, sys, tempfile, time
import peer

ap = argparse.ArgumentParser()
ap.add_argument("--server", action="append")
ap.add_argument("--parts", default="start,segments,connect,keys,evict")
ap.add_argument("--keys", default="10000,100000,1000000")
ap.add_argument("--segments", default="1,100,1000")
ap.add_argument("--evict-keys", default="50000,500000")
ap.add_argument("--evict-secs", type=float, default=8)
ap.add_argument("--secs", type=float, default=1.5)
ap.add_argument("--rounds", type=int, default=1)
ap.add_argument("--key-len", type=int, default=68)
ap.add_argument("--json")
ap.add_argument("--log")
a = ap.parse_args()
load = peer.build("mrpcload.c")
servers = peer.parse_servers(a.server, ["real", "ours"])
out = a.json or tempfile.mktemp(suffix=".jsonl")
ints = lambda s: [int(x) for x in s.split(",") if x]


def emit(part, name, **k):
    k.update(part=part, name=name)
    with open(out, "a") as f:
        f.write(json.dumps(k) + "\n")
    print(json.dumps(k)[:300], file=sys.stderr)


def gen(s, *args, phases, timeout=900):
    p = subprocess.run([load, "--addr", f"127.0.0.1:{s.ports['rpc']}", "--pid", str(s.pid), "--key-len", str(a.key_len), "--quiet", os.environ.get("QUIET_WAIT", "10"), *map(str, args), *phases],
                       capture_output=True, text=True, timeout=timeout)
    if p.returncode:
        print(p.stderr[-300:], file=sys.stderr)
    return [json.loads(l) for l in p.stdout.splitlines() if l.startswith("{")]


MIB = 1 << 20
SERVICE_READY = bytes.fromhex("150000000000000056bb817b0000000000000000")  # a request without arguments


def first_answer(s, secs=20):
    """seconds from the process's start to its first answer"""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", s.ports["rpc"]), 1) as c:
                c.sendall(SERVICE_READY)
                if len(c.recv(16)) == 16:
                    return time.monotonic() - s.t0
        except OSError:
            pass
        if s.p.poll() is not None or time.monotonic() - s.t0 > secs:
            raise RuntimeError(f"{s.name}: no answer")
        time.sleep(0.0005)


def holds(s):
    """what the server says of the times it held its state: longest, and how many above 1 ms"""
    page = peer.scrape(s.ports["metrics"])
    name = "mcctl_master_state_hold_seconds"
    upto = [v for k, v in page.items() if k.startswith(name + "_bucket") and 'le="+Inf"' not in k
            and abs(float(k.split('le="')[1].split('"')[0]) - 1e-3) < 1e-9]
    if not upto:
        return {}
    return dict(hold_max_ms=page.get("mcctl_master_state_hold_max_seconds", float("nan")) * 1e3, holds=page[name + "_count"],
                holds_over_1ms=page[name + "_count"] - upto[0])
for r in range(a.rounds):
    for name, cmd in servers:
        if "start" in a.parts:
            for k in range(5):
                with peer.Server(name, cmd, log=a.log) as s:
                    up = first_answer(s)
                    idle = {}
                    if k == 4:
                        c0 = peer.cpu(s.pid)
                        time.sleep(5)
                        idle = dict(idle_cpu_ms_per_s=(peer.cpu(s.pid) - c0) * 200, idle_rss_kb=peer.rss_kb(s.pid),
                                    threads=len(os.listdir(f"/proc/{s.pid}/task")))
                    emit("start", name, first_answer_ms=up * 1e3, cpu=peer.cpu(s.pid), rss_kb=peer.rss_kb(s.pid), **idle)
        if "segments" in a.parts:
            for n in ints(a.segments):
                for per in sorted({1, n}):  # one client per segment, or one client with all of them
                    with peer.Server(name, cmd, log=a.log) as s:
                        s.wait_port(s.ports["rpc"])
                        r0, t0 = peer.rss_kb(s.pid), time.monotonic()
                        d = gen(s, "--segments", n, "--segs-per-client", per, "--segment-size", max(16 << 30, (4 << 40) // n),
                                phases=[f"put:1:1:{a.secs}s", f"put:8:1:{a.secs}s", f"bput:1:1:{a.secs}s", f"ping:1:1:{a.secs}s"])
                        for x in d:
                            emit("segments", name, segments=n, clients=n // per, **{k: x[k] for k in ("op", "conns", "p50_us", "p99_us",
                                 "max_us", "srv_cpu_s_per_1m_req", "rps", "errors", "others_cpu")}, end_p50_us=x.get("end_p50_us"))
        if "connect" in a.parts:  # how long a newcomer waits for its first answer, idle and under load
            with peer.Server(name, cmd, log=a.log) as s:
                s.wait_port(s.ports["rpc"])
                for loadop in ("", "exist:8:1", "exist:64:1", "bput:64:1"):
                    p = loadop and subprocess.Popen([load, "--addr", f"127.0.0.1:{s.ports['rpc']}", "--segments", "8", "--segment-size", str(16 << 40),
                                                     "bput:1:1:12800", f"{loadop}:{a.secs + 4}s"], stdout=subprocess.DEVNULL,
                                                    stderr=subprocess.DEVNULL)
                    time.sleep(1.5)
                    x = gen(s, "--segments", 0, phases=[f"connect:1:1:{a.secs + 1}s"])[0]
                    emit("connect", name, op=loadop or "idle", **{k: x[k] for k in ("requests", "errors", "p50_us", "p99_us", "max_us", "others_cpu")})
                    if p:
                        p.wait(60)
        if "keys" in a.parts:
            for n in ints(a.keys):
                with peer.Server(name, cmd, log=a.log) as s:
                    s.wait_port(s.ports["rpc"])
                    r0 = peer.rss_kb(s.pid)
                    d = gen(s, "--segments", 8, phases=[f"bput:4:1:{n}", f"put:1:1:{a.secs}s", f"put:8:1:{a.secs}s", f"exist:1:1:{a.secs}s",
                                                        f"get:8:1:{a.secs}s", f"bexist:1:1:{a.secs}s"])
                    fill = d[0]
                    emit("keys", name, keys=n, op="fill", secs=fill["secs"], keys_s=fill["items"] / 2 / fill["secs"], rss_kb0=r0,
                         rss_kb=fill["rss_kb_after"], bytes_per_key=(fill["rss_kb_after"] - r0) * 1024 / n,
                         cpu_us_per_key=fill["srv_cpu_s"] * 1e6 / n, errors=fill["errors"], max_us=fill["max_us"])
                    for x in d[1:]:
                        emit("keys", name, keys=n, **{k: x[k] for k in ("op", "conns", "rps", "p50_us", "p99_us", "max_us",
                                                                      "srv_cpu_s_per_1m_req", "errors", "others_cpu")})
        if "evict" in a.parts:
            for n, room in [(n, room) for n in ints(a.evict_keys) for room in (10, 1)]:
                with peer.Server(name, cmd, log=a.log) as s:
                    s.wait_port(s.ports["rpc"])
                    j = tempfile.mktemp(suffix=".json")
                    seg = room * n * MIB // 8
                    pre = int(n * 0.88) // 128 * 128
                    p = subprocess.Popen([load, "--addr", f"127.0.0.1:{s.ports['rpc']}", "--pid", str(s.pid), "--segments", "8", "--segment-size", str(seg),
                                          "--key-len", str(a.key_len), "--json", j, "--timeline", "20", f"bput:4:1:{pre}", "sleep:1",
                                          f"put:8:1:{a.evict_secs}s"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                    line = p.stdout.readline()
                    base = gen(s, "--segments", 0, phases=["miss:1:1:0.8s"])
                    probe = gen(s, "--segments", 0, phases=[f"miss:1:1:{a.evict_secs}s"])
                    rest = p.communicate(timeout=600)[0]
                    f, d = json.loads(line), json.loads(rest.splitlines()[-1])
                    tl = [(float(x), int(y), int(z)) for x, y, z in (l.split() for l in open(j + ".put.tl"))]
                    rates = sorted(y / max(1e-3, (tl[i][0] - (tl[i - 1][0] if i else 0))) for i, (x, y, z) in enumerate(tl))
                    emit("evict", name, capacity_keys=n, evicting="yes" if room == 1 else "no", prefill=pre, **holds(s), puts_s=d["items_per_s"], errors=d["errors"], first_error=d["first_error"],
                         put_p50_us=d["p50_us"], put_p99_us=d["p99_us"], put_p999_us=d["p999_us"], put_max_ms=d["max_us"] / 1e3, gap_ms=d["max_gap_ms"],
                         slowest_20ms_rps=rates[0] if rates else None, p5_rps=rates[len(rates) // 20] if rates else None,
                         median_rps=rates[len(rates) // 2] if rates else None, cpu_us_per_put=d["srv_cpu_s"] * 2e6 / max(1, d["requests"]),
                         probe_base_p99_us=base[0]["p99_us"], probe_base_max_ms=base[0]["max_us"] / 1e3, probe_p50_us=probe[0]["p50_us"],
                         probe_p99_us=probe[0]["p99_us"], probe_p999_us=probe[0]["p999_us"], probe_max_ms=probe[0]["max_us"] / 1e3,
                         rss_mb=peer.rss_kb(s.pid) / 1024, others_cpu=d["others_cpu"])
                    for q in (j, j + ".put.tl", j + ".bput.tl"):
                        if os.path.exists(q):
                            os.unlink(q)
R = [json.loads(l) for l in open(out)]
for part in ("start", "segments", "connect", "keys", "evict"):
    g = {}
    for d in R:
        if d["part"] == part:
            g.setdefault(tuple(d.get(k) for k in ("name", "segments", "clients", "keys", "capacity_keys", "evicting", "op", "conns")), []).append(d)
    if not g:
        continue
    cols = [k for k in dict.fromkeys(k for v in g.values() for d in v for k in d) if k != "part"]
    rows = []
    for v in g.values():
        row = []
        for c in cols:
            x = [d.get(c) for d in v if d.get(c) is not None]
            row.append("-" if not x else x[0] if isinstance(x[0], str) else f"{peer.med(x):,.2f}".rstrip("0").rstrip("."))
        rows.append(row)
    print(f"## {part}\n\n{peer.table(rows, cols)}\n")
print("raw:", out, file=sys.stderr)
