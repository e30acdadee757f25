#!/usr/bin/env python3
"""The price of a standby: processor time and latency of the leader's calls, alone, async and sync, beside the real master.

  price.py --binary MCCTL [--servers alone,async,sync,sync-data,real,real-oplog] [--rounds 3] [--repeats 8] [--secs 0.5] [--conns 1] [--json FILE] [--dir DIR]

All servers of a round run at once with their standbys, but only one is under load at any time: the load goes from one to the next after each
short phase, in changing order. A ratio compares phases that are neighbours in time. The first server is the base.

  put      PutStart and PutEnd, one key         bput    BatchPutStart and BatchPutEnd, 128 keys
  ping     Ping, which changes nothing

A ping-pong of 128 and 8192 bytes between two processes on loopback is measured before each round. All on loopback, with one etcd.
"""
import argparse, os, select, statistics, socket, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "restart"), os.path.join(os.path.dirname(HERE), "peers")]
import common, peer  # noqa: E402
from common import Process, Result, log, port, wait  # noqa: E402
import json, urllib.request  # noqa: E402


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--servers", default="alone,async,sync,sync-data,real,real-oplog", help="sync-data: with data directories")
    ap.add_argument("--before", help="another program, for servers whose names end with .before: --servers sync.before,sync,sync.again")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--repeats", type=int, default=8, help="phases per row, round and server")
    ap.add_argument("--secs", type=float, default=0.5, help="per timed phase")
    ap.add_argument("--conns", type=int, default=1)
    ap.add_argument("--dir")
    ap.add_argument("--json")
    return ap.parse_args()


PONG = "import socket,sys\ns=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True)\nc,_=s.accept(); " \
       "c.setsockopt(6,1,1)\nn=int(sys.argv[1])\nwhile True:\n d=c.recv(n)\n if not d: break\n while len(d)<n: d+=c.recv(n-len(d))\n c.sendall(d)"


def ping_pong(size, count=3000):
    """p50 in microseconds"""
    p = subprocess.Popen([sys.executable, "-c", PONG, str(size)], stdout=subprocess.PIPE)
    s = socket.create_connection(("127.0.0.1", int(p.stdout.readline())))
    s.setsockopt(6, 1, 1)
    times, data = [], b"x" * size
    for _ in range(count):
        t = time.perf_counter()
        s.sendall(data)
        left = size
        while left:
            left -= len(s.recv(left))
        times.append(time.perf_counter() - t)
    s.close()
    p.wait(5)
    return round(statistics.median(times) * 1e6, 1)


class HaSubject:
    def __init__(self, args, root, server, etcd, number):
        self.server, self.processes = server, []
        server, _, which = server.partition(".")
        binary = args.before if which == "before" else args.binary
        real = server.startswith("real")
        masters = 1 if server == "alone" else 2
        for n in range(masters):
            rpc, admin = port(), port()
            flags = [f"--rpc_address=127.0.0.1", f"--rpc_port={rpc}", f"--metrics_port={admin}", "--eviction_high_watermark_ratio=0.9"]
            if server == "alone":
                command = [binary, "serve", "master", "--metrics_host=127.0.0.1"]
            elif real:
                command = [os.path.join(peer.peer(), "mooncake_master"), "--logtostderr=1", f"--metrics_host=127.0.0.1", "--enable_ha=true", "--ha_backend_type=etcd",
                           f"--ha_backend_connstring={etcd}", f"--cluster_id={server}{number}", f"--enable_oplog={'true' if server == 'real-oplog' else 'false'}"]
            else:
                command = [binary, "serve", "master", "--metrics_host=127.0.0.1", "--enable_ha", f"--etcd_endpoints={etcd}", f"--cluster_id={self.server}{number}",
                           f"--ha-ack={server.partition('-')[0]}"]
                if server.endswith("-data"):
                    command.append("--data-dir=" + os.path.join(root, f"data-{self.server}-{n}-{number}"))
            process = Process(f"{self.server}-{n}-{number}", [*command, *flags], root)
            self.processes.append(process)
            if n == 0:
                self.rpc = rpc
                path = "/ha_status" if real else "/ready"
                wait(server, 40, lambda: self.get(admin, path).strip() == "serving" if real else self.get(admin, path) is not None)
            elif not real:
                wait(server + " in sync", 30, lambda: json.loads(self.get(admin, "/ha_status?format=json") or "{}").get("in_sync"))
        words = []
        for row, phases in steps(args):
            words += ["go", *phases]
        self.load = Process(f"load-{self.server}-{number}", [peer.build("mrpcload.c"), "--addr", f"127.0.0.1:{self.rpc}", "--pid", str(self.processes[0].pid), "--segments",
                                                        "8", "--value-size", "4096", *words], root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @staticmethod
    def get(admin, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}{path}", timeout=2) as r:
                return r.read().decode()
        except OSError:
            return "" if path == "/ha_status" else None

    def step(self, seconds):
        before = [peer.cpu(p.pid) for p in self.processes[1:]]
        self.load.p.stdin.write(b"\n")
        self.load.p.stdin.flush()
        if not select.select([self.load.p.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"{self.server}: no result within {seconds} s")
        line = self.load.p.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.server}: the load generator ended: {self.load.text()[-500:]}")
        standby = sum(peer.cpu(p.pid) - b for p, b in zip(self.processes[1:], before))
        return dict(json.loads(line), standby_cpu_s=standby)

    def stop(self):
        self.load.stop()
        for p in reversed(self.processes):
            p.end(9)


def steps(args):
    return [(row, [f"{row}:{args.conns}:1:{args.secs}s"]) for row in ("put", "bput", "ping") for _ in range(args.repeats)]


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-failover-price.")
    servers, rows, pongs = args.servers.split(","), [], []
    client, peer_port = port(), port()
    url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer_port}"
    etcd = Process("etcd", ["/usr/bin/etcd", "--name", "e", "--data-dir", os.path.join(root, "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url, "--initial-cluster", "e=" + peer_url], root)
    wait("etcd", 20, lambda: HaSubject.get(client, "/health"))
    for number in range(args.rounds):
        pongs.append({size: ping_pong(size) for size in (128, 8192)})
        subjects = [HaSubject(args, root, server, f"127.0.0.1:{client}", number) for server in servers]
        index = {}
        try:
            for at, (row, _) in enumerate(steps(args)):
                repeat = index[row] = index.get(row, -1) + 1
                turn = (at + number) % len(subjects)
                for s in subjects[turn:] + subjects[:turn]:
                    rows.append(dict(s.step(60), row=row, server=s.server, round=number, repeat=repeat))
        finally:
            for s in subjects:
                s.stop()
        log(f"round {number + 1}/{args.rounds}; ping-pong p50 us {pongs[-1]}")
        result.save(rows=rows, ping_pong=pongs)
    etcd.end(9)
    table = []
    for row in ("put", "bput", "ping"):
        for server in servers:
            mine = {(x["round"], x["repeat"]): x for x in rows if (x["row"], x["server"]) == (row, server)}
            base = {(x["round"], x["repeat"]): x for x in rows if (x["row"], x["server"]) == (row, servers[0])}
            med = lambda k: statistics.median(x[k] for x in mine.values())
            ratio = lambda k: statistics.median(mine[n][k] / base[n][k] for n in mine if base[n][k])
            requests = sum(x["rps"] * args.secs for x in mine.values())
            standby = sum(x["standby_cpu_s"] for x in mine.values()) / max(requests, 1) * 1e6
            table.append([row, server, f"{med('rps'):,.0f}", f"{med('srv_cpu_s_per_1m_req'):.2f}", f"{ratio('srv_cpu_s_per_1m_req'):.2f}", f"{standby:.2f}",
                          f"{med('p50_us'):.0f}", f"{med('p99_us'):.0f}", sum(x["errors"] for x in mine.values())])
    text = peer.table(table, ["row", "server", "requests/s", "leader CPU us/request", f"vs {servers[0]}, paired", "standby CPU us/request", "p50 us", "p99 us", "errors"])
    result.save(table=text)
    print(text)
    print("ping-pong p50 us:", {size: statistics.median(p[size] for p in pongs) for size in (128, 8192)})


main()
