#!/usr/bin/env python3
"""HTTP metadata server: requests/s and latency with wrk.

  bench_meta.py [--server NAME=CMD ...] [--rounds 3] [--secs 2] [--conns 1,8,64] [--keys 1000] [--value-bytes 600]

Built-in: ours = mcctl serve metadata, python = python -m mooncake.http_metadata_server, embedded = mooncake_master with its own HTTP metadata
server.  CMD listens on 127.0.0.1:{http}, path /metadata?key=...  Needs wrk (apt-get install wrk).
"""
import argparse, json, re, subprocess, sys, tempfile, urllib.parse, urllib.request
import peer

ap = argparse.ArgumentParser()
ap.add_argument("--server", action="append")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--secs", type=int, default=2)
ap.add_argument("--conns", default="1,8,64")
ap.add_argument("--keys", type=int, default=1000)
ap.add_argument("--value-bytes", type=int, default=600)
ap.add_argument("--json")
a = ap.parse_args()
B = {"python": "{python} -m mooncake.http_metadata_server --host 127.0.0.1 --port {http}",
     "ours": "{mcctl} serve metadata --host 127.0.0.1 --port {http}",
     "embedded": peer.REAL_MASTER + " --enable_http_metadata_server=1 --http_metadata_server_host=127.0.0.1 --http_metadata_server_port={http}"}
servers = []
for s in a.server or ["embedded", "python", "ours"]:
    n, _, c = s.partition("=")
    servers.append((n, B.get(c or n, c)))
out = a.json or tempfile.mktemp(suffix=".jsonl")
LUA = """
local n, body = %d, string.rep("x", %d)
local hits = 0
request = function()
  hits = hits + 1
  local k = "/metadata?key=mooncake%%2Fram%%2Fnode" .. (hits %% n)
  if "%s" == "PUT" then return wrk.format("PUT", k, {["Content-Type"] = "application/json"}, body) end
  return wrk.format("GET", k)
end
"""
for r in range(a.rounds):
    for name, cmd in servers:
        with peer.Server(name, cmd) as s:
            up = s.wait_port(s.ports["http"])
            url = f"http://127.0.0.1:{s.ports['http']}"
            for i in range(a.keys):
                q = urllib.request.Request(f"{url}/metadata?key=mooncake%2Fram%2Fnode{i}", data=b"x" * a.value_bytes, method="PUT",
                                           headers={"Content-Type": "application/json"})
                urllib.request.urlopen(q, timeout=10).read()
            for op in ("GET", "PUT"):
                f = tempfile.NamedTemporaryFile("w", suffix=".lua")
                f.write(LUA % (a.keys, a.value_bytes, op))
                f.flush()
                for c in [int(x) for x in a.conns.split(",")]:
                    peer.quiet()
                    c0 = peer.cpu(s.pid)
                    t = subprocess.run(["wrk", "-t1", f"-c{c}", f"-d{a.secs}s", "--latency", "-s", f.name, url], capture_output=True,
                                       text=True, timeout=a.secs + 30).stdout
                    n = int(re.search(r"(\d+) requests in", t).group(1))
                    rps = float(re.search(r"Requests/sec:\s+([\d.]+)", t).group(1))
                    us = {"us": 1, "ms": 1e3, "s": 1e6}
                    pct = {k: float(v) * us[u] for k, v, u in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", t)}
                    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", t)
                    with open(out, "a") as o:
                        o.write(json.dumps(dict(name=name, op=op, conns=c, rps=rps, p50_us=pct.get("50"), p99_us=pct.get("99"),
                                                cpu_us=(peer.cpu(s.pid) - c0) * 1e6 / n if n else None, bad=int(bad.group(1)) if bad else 0,
                                                up_s=up, rss_kb=peer.rss_kb(s.pid))) + "\n")
        print(f"round {r + 1}/{a.rounds} {name} done", file=sys.stderr)
R = [json.loads(l) for l in open(out)]
rows = []
for op in ("GET", "PUT"):
    for c in [int(x) for x in a.conns.split(",")]:
        base = None
        for name, _ in servers:
            v = [d for d in R if (d["op"], d["conns"], d["name"]) == (op, c, name)]
            m = lambda k: peer.med([d[k] for d in v])
            base = base or m("rps")
            rows.append([op, c, name, f"{m('rps'):,.0f}", f"{m('p50_us'):,.0f}", f"{m('p99_us'):,.0f}", f"{m('cpu_us'):.1f}", f"{m('rps') / base:.2f}",
                         f"{m('rss_kb') / 1024:.0f}", f"{m('up_s'):.2f}", sum(d["bad"] for d in v)])
print(peer.table(rows, ["op", "conns", "server", "requests/s", "p50 us", "p99 us", "server CPU us/request", f"vs {servers[0][0]}", "RSS MiB",
                        "listening after s", "non-2xx"]))
print("raw:", out, file=sys.stderr)
