"""The ends of a transfer over RDMA: bench targets and initiators, engines controlled by a worker, and stores.

Each has a make: OURS (mcctl), or the version of an installed release of the real Mooncake. `use` sets the path of mcctl.
"""
import json
import os
import re
import urllib.error
import urllib.request

from guest import P2P, PATIENCE, PEERS, Dialogue, Process, Wheel, descriptor, free_port, need, wait_for

KIB, MIB = 1 << 10, 1 << 20
# All cases run with the first release, and some with the others.
VERSIONS = ["0.3.13.post1", "0.3.12.post1", "0.3.10.post2"]
OURS = "mcctl"
mcctl = None
wheels = {}


def use(binary):
    """Sets the path of mcctl."""
    global mcctl
    mcctl = binary


def wheel(version):
    if version not in wheels:
        wheels[version] = Wheel(version)
    return wheels[version]


def metadata(how):
    """The metadata argument of both ends. Starts mcctl's metadata service, except for P2PHANDSHAKE."""
    if how == "p2p":
        return P2P
    port = free_port()
    Process("metadata", [mcctl, "serve", "metadata", "--host", "127.0.0.1", "--port", port]).wait_port(port)
    return f"http://127.0.0.1:{port}/metadata"


# -------------------------------------------------------------------------------------------------- the two bench programs
BLOCK, BATCH = 64 * KIB, 4


def bench(make, mode, meta, devices, more=(), env=None):
    """A target or an initiator of one make."""
    name = "127.0.0.1" if meta == P2P else f"{mode}-{Process.number}"
    flags = [f"--mode={mode}", f"--metadata_server={meta}", f"--local_server_name={name}", "--protocol=rdma",
             f"--device_name={devices}", *more]
    if not any(f.startswith("--buffer_size") for f in more):
        flags.append(f"--buffer_size={16 * MIB}")
    if make == OURS:
        return Process(f"{mode}-mcctl", [mcctl, "bench", "transfer", *flags], env), name
    w = wheel(make)
    return Process(f"{mode}-{make}", [w.program("transfer_engine_bench"), *flags], w.env(env)), name


class Target:
    def __init__(self, make, meta, devices, more=(), env=None):
        self.process, name = bench(make, "target", meta, devices, ["--threads=1", f"--batch_size={BATCH}", *more], env)
        at = self.process.wait_line(r"listening on ([\w.\[\]:-]+:\d+)").group(1)
        self.segment = at if meta == P2P else name
        self.descriptor = descriptor(self.segment, meta)
        self.make = make

    def check(self, devices):
        """Checks what every engine requires of a target's descriptor."""
        d = self.descriptor
        need(d["protocol"] == "rdma", f"the target offers {d['protocol']}")
        names = [x["name"] for x in d["devices"]]
        need(sorted(names) == sorted(devices.split(",")), f"the target's descriptor names {names}")
        for b in d["buffers"]:
            need(len(b["rkey"]) == len(b["lkey"]) == len(names), f"{b} for {names}")
        listed = {n for rows in d["priority_matrix"].values() for row in rows for n in row}
        need(listed == set(names), f"the matrix has {listed}, the descriptor {names}")

    def ends(self):
        need(self.process.p.poll() is None, f"the target ended by itself: {self.process.tail()}")
        if self.make == OURS:
            code = self.process.stop()
            need(code == 0, f"the target ended with {code}: {self.process.tail()}")


def initiate(make, meta, devices, segment, operation, block=BLOCK, batch=BATCH, seconds=1, more=(), env=None, limit=90):
    """Runs an initiator. Returns {bytes, seconds, batches, mb_s}."""
    flags = [f"--segment_id={segment}", f"--operation={operation}", f"--block_size={block}", f"--batch_size={batch}",
             "--threads=1", f"--duration={seconds}", *more]
    flags += ["--json"] if make == OURS else ["--report_unit=MB"]
    p, _ = bench(make, "initiator", meta, devices, flags, env)
    code = p.wait(limit)
    text = p.text()
    need(code == 0, f"{make} {operation} of {block} x {batch} ended with {code}: {p.tail(4)}")
    if make == OURS:
        d = json.loads(re.search(r"^\{.*^\}|^\{.*\}$", text, re.S | re.M).group(0))
        return {"bytes": d["bytes"], "seconds": d["seconds"], "batches": d["batches"], "mb_s": d["gb_per_s"] * 1e3}
    m = re.search(r"duration ([\d.]+), batch count (\d+), throughput ([\d.]+) MB/s", text)
    need(m, f"no result: {p.tail()}")
    batches = int(m.group(2))
    return {"bytes": batches * block * batch, "seconds": float(m.group(1)), "batches": batches, "mb_s": float(m.group(3))}


ENGINE_BYTES = 14 * MIB


class Engine:
    """The real engine in a Python worker, which can inspect its memory."""

    def __init__(self, version, meta, devices, skew=0, size=ENGINE_BYTES, env=None):
        w = wheel(version)
        self.d = Dialogue(f"engine-{version}", [w.python(), os.path.join(PEERS, "engine_worker.py")], w.env(env))
        name = "127.0.0.1" if meta == P2P else f"engine-{Process.number}"
        started = self.d.ask("start", name=name, metadata=meta, bytes=size, device=devices, skew=skew)
        need(started["rc"] == 0, f"the engine did not start: {started}")
        self.segment = f"127.0.0.1:{started['port']}" if meta == P2P else name
        self.address = started["address"]

    def ask(self, do, **fields):
        return self.d.ask(do, **fields)

    def move(self, kind, segment, at, remote, length):
        rc = self.ask(kind, segment=segment, at=at, remote=remote, length=length)["rc"]
        need(rc == 0, f"{kind} of {length} B at {remote:#x} returned {rc}: {self.d.process.tail()}")

    def borders(self):
        need(self.ask("borders")["whole"], "bytes outside the registered range were written")


# ------------------------------------------------------------------------------------------------------------------- store
class Store:
    """A master of one make with nodes of one make, protocol rdma."""

    def __init__(self, master_make, node_make, how, devices="rxe0", nodes=2, segment=96 * MIB, version=VERSIONS[0]):
        self.version, self.how = version, how
        self.rpc, self.admin, self.http = free_port(), free_port(), free_port()
        flags = ["--rpc_address=127.0.0.1", f"--rpc_port={self.rpc}", "--metrics_host=127.0.0.1", f"--metrics_port={self.admin}",
                 "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1",
                 f"--http_metadata_server_port={self.http}", "--client_ttl=60"]
        if master_make == OURS:
            self.master = Process("master", [mcctl, "serve", "master", *flags])
        else:
            w = wheel(version)
            self.master = Process("master", [w.program("mooncake_master"), *flags, "--logtostderr=1"], w.env())
        for port in (self.rpc, self.admin, self.http):
            self.master.wait_port(port)
        self.meta = P2P if how == "p2p" else f"http://127.0.0.1:{self.http}/metadata"
        self.address = f"127.0.0.1:{self.rpc}"
        self.nodes = []
        for i in range(nodes):
            if node_make == OURS or i == 0:
                self.nodes.append(self.service(node_make, i, devices, segment))
            else:
                d = self.client(f"node{i}", segment, 16 * MIB, devices)
                self.nodes.append(d.process)
        self.wait_segments(nodes)

    def service(self, make, i, devices, segment, host="127.0.0.1", env=None, limited=None):
        """A node as an operator starts one: mcctl serve store, or mooncake_store_service."""
        config = f"/tmp/node{i}.json"
        with open(config, "w") as f:
            json.dump({"local_hostname": host, "metadata_server": self.meta, "master_server_address": self.address,
                       "global_segment_size": segment, "local_buffer_size": 16 * MIB, "protocol": "rdma", "device_name": devices}, f)
        self.rest = free_port()
        if make == OURS:
            return Process(f"node{i}", [mcctl, "serve", "store", "--config", config, "--host", "127.0.0.1", "--port", self.rest], env,
                           **(limited or {}))
        w = wheel(self.version)
        return Process(f"node{i}", [w.python(), "-m", "mooncake.mooncake_store_service", "--config", config, "--port", self.rest],
                       w.env(env))

    def client(self, name, segment, local, devices):
        w = wheel(self.version)
        d = Dialogue(name, [w.python(), os.path.join(PEERS, "client_worker.py"), self.address, self.meta, "127.0.0.1", segment,
                            local, devices], w.env())
        answer = d.receive()
        need(answer["setup"] == 0, f"setup of {name}: {answer}, {d.process.tail()}")
        return d

    def segments(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/get_all_segments", timeout=10) as r:
                return r.read().split()
        except OSError:
            return []

    def wait_segments(self, n, limit=PATIENCE):
        def look():
            for p in [self.master, *self.nodes]:
                need(p.p.poll() is None, f"{p.name} ended with {p.p.poll()}: {p.tail()}")
            return len(self.segments()) == n
        wait_for(f"{n} mounted segments", look, limit)

    def own(self, *args, codes=(0,), limit=PATIENCE):
        """Runs `mcctl store ...` and returns its output."""
        flags = ["--master", self.address]
        if args[0] in ("put", "get"):
            flags += ["--metadata-server", self.meta, "--local-hostname", "127.0.0.1", "--protocol", "rdma", "--device-name", "rxe1"]
        else:
            flags += ["--admin", f"127.0.0.1:{self.admin}"]
        p = Process("store", [mcctl, "store", *args, *flags])
        code = p.wait(limit)
        need(code in codes, f"mcctl store {' '.join(args)} ended with {code}: {p.tail(4)}")
        return p.text()


def rest(port, method, path, body=None):
    """A request to a node's REST port: status and body."""
    q = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=body and json.dumps(body).encode(),
                               headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(q, timeout=75) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()
