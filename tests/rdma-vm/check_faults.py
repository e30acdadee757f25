"""Runs inside the guest: tests mcctl over RDMA under faults. Each fault must end in bounded time, with a message that names
its cause. The line of a case shows that message. After the fault is removed, transfers must work again.

    check_faults.py --mcctl BIN [--versions V,..] [--only PATTERN,..] [--list] [--out DIR]

`faults` boots the guest and runs this program.
"""
import argparse
import json
import os
import re
import resource
import socket
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True  # The folder belongs to the repository.
from ends import BATCH, BLOCK, MIB, OURS, Engine, Store, Target, bench, initiate, rest, use  # noqa: E402
from guest import (P2P, Cases, Failed, Process, Traffic, exchange, frame, need, packets, pairs, read_exactly, regions, sh,  # noqa: E402
                   wait_for)

ap = argparse.ArgumentParser()
ap.add_argument("--mcctl", required=True)
ap.add_argument("--versions", default="0.3.13.post1")
ap.add_argument("--only", action="append", default=[])
ap.add_argument("--list", action="store_true")
ap.add_argument("--out")
a = ap.parse_args()
use(a.mcctl)
REAL = a.versions.split(",")[0]


def initiator(segment, operation="write", seconds=60, devices="rxe1", block=BLOCK, batch=BATCH, env=None, more=()):
    """Starts mcctl's initiator and returns its process."""
    flags = [f"--segment_id={segment}", f"--operation={operation}", f"--block_size={block}", f"--batch_size={batch}",
             f"--duration={seconds}", "--json", *more]
    return bench(OURS, "initiator", P2P, devices, flags, env)[0]


def flowing(count=200):
    """Waits until the devices have sent `count` packets."""
    before = sum(packets().values())
    wait_for(f"{count} packets", lambda: sum(packets().values()) - before > count)


def error_text(p):
    """The lines of mcctl's error message."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", x).strip() for x in p.text().splitlines()]
    at = max((i for i, x in enumerate(lines) if x.startswith("error:")), default=len(lines) - 2)
    return " | ".join(x for x in lines[max(at, 0):at + 5] if x)[:500]


def fails(p, limit, words, codes=(1, 3, 4), never=()):
    """The process must exit within `limit` s with a code of `codes`. Its output must contain all of `words` and none of `never`."""
    began = time.monotonic()
    code = p.wait(limit)
    took, text = time.monotonic() - began, error_text(p)
    need(code in codes, f"ended with {code} after {took:.1f} s: {p.tail()}")
    lost = [w for w in words if w.lower() not in p.text().lower()]
    need(not lost, f"the message lacks {' and '.join(lost)}: {text}")
    odd = [w for w in never if w.lower() in p.text().lower()]
    need(not odd, f"the message contains {' and '.join(odd)}: {text}")
    return f"exit {code} after {took:.1f} s: {text}"


def works(target, devices="rxe1", initiator_make=OURS):
    more = ["--verify"] if initiator_make == OURS else []
    traffic = Traffic()
    r = initiate(initiator_make, P2P, devices, target.segment, "write", more=more)
    traffic.moved(r["bytes"], set())


# ------------------------------------------------------------------------------------------------------------------- peers
def target_killed(make):
    target = Target(make, P2P, "rxe0")
    p = initiator(target.segment)
    flowing()
    target.process.kill()
    return fails(p, 75, ["rxe1", target.segment])


def target_stopped():
    """SIGSTOP: a target needs no CPU for data, so transfers continue."""
    target = Target(OURS, P2P, "rxe0")
    p = initiator(target.segment, seconds=6)
    flowing()
    target.process.signal(19)
    code = p.wait(60)
    target.process.signal(18)
    need(code == 0, f"ended with {code}: {error_text(p)}")
    target.ends()
    return "completed"


def initiator_killed(make):
    target = Target(OURS, P2P, "rxe0")
    if make == OURS:
        p = initiator(target.segment)
    else:
        p = bench(make, "initiator", P2P, "rxe1", [f"--segment_id={target.segment}", "--operation=write", "--threads=1",
                                                   "--batch_size=16", "--duration=60"])[0]
    flowing()
    p.kill()
    works(target)
    target.ends()
    need(not pairs() and not regions(), f"left over: {pairs()} {regions()}")
    return "the next initiator was served; nothing is left over"


def restarted(make):
    """A node is killed and restarted under its name. A client that was connected to it uses it again."""
    s = Store(OURS, OURS, "http", nodes=0)
    s.nodes = [s.service(OURS, 0, "rxe1", 0)]
    client = s.rest
    s.nodes[0].wait_port(client)
    s.nodes.append(s.service(make, 1, "rxe0", 64 * MIB, host="127.0.0.1:17777"))
    s.wait_segments(1)
    value = "x" * 300_001

    def put(key):
        code, text = rest(client, "PUT", "/api/put", {"key": key, "value": value})
        return code == 200, f"put: {code} {text[:300]}"

    def get(key):
        code, text = rest(client, "GET", f"/api/get/{key}")
        return code == 200 and text == value.encode(), f"get: {code} {text[:300]}"
    for step in (put("first"), get("first")):
        need(*step)
    s.nodes[1].kill()
    began = time.monotonic()
    ok, lost = put("second")
    lost_after = time.monotonic() - began
    need(lost_after < 70, f"a put to the killed node took {lost_after:.1f} s")
    s.nodes[1] = s.service(make, 1, "rxe0", 64 * MIB, host="127.0.0.1:17777")
    began = time.monotonic()
    last = [""]

    def again():
        key = f"third/{time.monotonic()}"
        for do in (put, get):
            ok, last[0] = do(key.replace("/", "-"))
            if not ok:
                return False
        return True
    try:
        wait_for("puts and gets to work again", again, 90)
    except Failed as e:
        raise Failed(f"{e}: {last[0]}; {s.nodes[1].tail()}") from None
    return f"while it was down: {'stored' if ok else lost[:160]} ({lost_after:.1f} s); usable {time.monotonic() - began:.1f} s after its start"


def status_report():
    """The transport that a node reports in its metrics and in `mcctl status --node`, by peer and device."""
    s = Store(OURS, OURS, "http", nodes=0)
    s.nodes = [s.service(OURS, 0, "rxe1", 0)]
    client = s.rest
    s.nodes[0].wait_port(client)
    s.nodes.append(s.service(OURS, 1, "rxe0", 64 * MIB))
    s.wait_segments(1)
    code, text = rest(client, "PUT", "/api/put", {"key": "k", "value": "x" * 300_001})
    need(code == 200, f"put: {code} {text[:300]}")
    metrics = rest(client, "GET", "/metrics")[1].decode()
    for line in ('mcctl_node_peers{transport="rdma",state="up"} 1', 'mcctl_node_rdma_up{device="rxe1",port="1"} 1',
                 'mcctl_node_rdma_written_bytes_total{device="rxe1",port="1"} 300001', 'mcctl_node_rdma_endpoints{device="rxe1",port="1"} 1',
                 'mcctl_node_rdma_failures_total{device="rxe1",port="1",kind="peer"} 0'):
        need(line in metrics.splitlines(), f"no {line} in the metrics: {[x for x in metrics.splitlines() if 'rdma' in x and x[0] != '#']}")
    p = Process("status", [a.mcctl, "status", "--json", "--interval=0", f"--admin=127.0.0.1:{s.admin}", f"--node=127.0.0.1:{client}"])
    need(p.wait(30) == 0, f"status: {p.tail()}")
    d = json.loads(re.search(r"^\{.*\}$", p.text(), re.M).group(0))
    (node,) = d["nodes"]
    need([(x["transport"], x["state"], x["written_bytes"]) for x in node["peers"]] == [("rdma", "up", 300_001)], f"{node['peers']}")
    need([(x["device"], x["state"], x["written_bytes"]) for x in node["devices"]] == [("rxe1", "up", 300_001)], f"{node['devices']}")
    need([x["protocol"] for x in d["segments"]] == ["rdma"], f"{d['segments']}")
    return f"{node['peers'][0]} {node['devices'][0]}"


# ----------------------------------------------------------------------------------------------------------------- devices
def link(state):
    sh("ip", "link", "set", "eth1", state)
    expected = {"down": "1: DOWN", "up": "4: ACTIVE"}[state]

    def is_so():
        with open("/sys/class/infiniband/rxe1/ports/1/state") as f:
            return f.read().strip() == expected
    wait_for(f"port {state}", is_so, 20)


def link_down():
    target = Target(OURS, P2P, "rxe0")
    p = initiator(target.segment)
    flowing()
    link("down")
    try:
        first = fails(p, 75, ["rxe1 port 1", target.segment], never=["' not found"])
        need(re.search(r"port (state )?is (down|DOWN)", error_text(p)), f"the message does not report that the link is down: {first}")
        # An initiator that starts now must name the port.
        second = fails(initiator(target.segment), 30, ["rxe1", "port"])
    finally:
        link("up")
    # The target was running all the time.
    wait_for("the target to be reachable again", lambda: initiator(target.segment, seconds=1).wait(75) == 0, 150)
    target.ends()
    return f"{first} || {second} || up: transfers work again"


def address_lost():
    """The address of a GID is removed during a run over two devices."""
    both = "rxe0,rxe1"
    target = Target(OURS, P2P, both)
    p = initiator(target.segment, devices=both, seconds=20)
    flowing()
    sh("ip", "addr", "del", "192.168.100.2/24", "dev", "eth1")
    try:
        code = p.wait(90)
        result = f"exit {code}: {error_text(p) if code else 'continued over the other device'}"
        need(code in (0, 1, 3, 4), result)
    finally:
        sh("ip", "addr", "add", "192.168.100.2/24", "dev", "eth1")
        wait_for("the GID", lambda: "c0a8:6402" in open("/sys/class/infiniband/rxe1/ports/1/gids/1").read(), 20)
    return result


def device_removed():
    """One of two devices is removed during a run over both. It is added again for the cases after this one."""
    both = "rxe0,rxe1"
    target = Target(OURS, P2P, both)
    p = initiator(target.segment, devices=both, seconds=15)
    flowing()
    # Returns once no process has the device open, if the driver cannot force it.
    removal = Process("rdma-link-delete", ["rdma", "link", "delete", "rxe1"])
    try:
        code = p.wait(90)
        result = f"exit {code}: {error_text(p) if code else 'continued over the other device'}"
        need(code in (0, 1, 3, 4), result)
        target.process.kill()
        need(removal.wait(30) == 0, f"rdma link delete: {removal.tail()}")
        later = fails(initiator(target.segment, devices=both, seconds=1), 30, ["rxe1"]) if code else ""
    finally:
        removal.kill()
        target.process.kill()
        if "rxe1" not in os.listdir("/sys/class/infiniband"):
            sh("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "eth1")
            time.sleep(1)
    return f"{result} {later}"


def wrong_gid(index):
    target = Target(OURS, P2P, "rxe0")
    p = initiator(target.segment, env={"MC_GID_INDEX": str(index)})
    result = fails(p, 75, ["rxe1", "gid", str(index)])
    works(target)
    return result


def unequal_gid():
    """GID index 0 is link-local, which is another family than the peer's. The run may fail, but must end and name the GID."""
    target = Target(OURS, P2P, "rxe0")
    p = initiator(target.segment, env={"MC_GID_INDEX": "0"}, seconds=1)
    code = p.wait(90)
    need(code in (0, 1, 3, 4), f"ended with {code}")
    return "works" if code == 0 else fails(p, 1, ["rxe1", "gid"])


def other_row():
    """The peer's address is link-local. Our first GID index, which is IPv4, does not reach it. Another one does."""
    target = Target(OURS, P2P, "rxe0", env={"MC_GID_INDEX": "0"})
    alone = initiator(target.segment, env={"MC_GID_INDEX": "1"}, seconds=1)
    first = f"with GID index 1 alone: exit {alone.wait(90)}: {error_text(alone)[:200]}"
    p = initiator(target.segment, seconds=1, more=["--verify"])
    need(p.wait(90) == 0, f"{error_text(p)}; {first}")
    return first


def no_such_device():
    p, _ = bench(OURS, "target", P2P, "rxe7")
    return fails(p, 30, ["rxe7", "rxe0"], codes=(2, 4))


def memlock():
    command = [a.mcctl, "bench", "transfer", "--mode=target", "--protocol=rdma", "--device_name=rxe0", f"--buffer_size={16 * MIB}"]
    p = Process("target-memlock", command, user=65534, limits={resource.RLIMIT_MEMLOCK: MIB})
    words = ["rxe0", "memlock limit is 1 MiB", "needs 16 MiB", "ulimit -l unlimited"]
    return fails(p, 30, words, codes=(4,), never=["target is running"])


def memlock_node():
    """The same limit for a store node."""
    master = Store(OURS, OURS, "p2p", nodes=0)
    p = master.service(OURS, 0, "rxe0", 64 * MIB, limited=dict(user=65534, limits={resource.RLIMIT_MEMLOCK: MIB}))
    return fails(p, 60, ["rxe0", "memlock limit is 1 MiB", "needs", "ulimit -l unlimited"], codes=(4,))


def small_regions():
    """The maximum region is smaller than the segment: the descriptor has several buffers, and transfers cross their borders."""
    small = {"MC_MAX_MR_SIZE": str(MIB)}
    target = Target(OURS, P2P, "rxe0", [f"--buffer_size={8 * MIB}"], env=small)
    buffers = sorted((b["addr"], b["length"]) for b in target.descriptor["buffers"])
    need(len(buffers) >= 8 and all(n <= MIB for _, n in buffers), f"the buffers are {buffers}")
    need(sum(n for _, n in buffers) == 8 * MIB, f"the buffers are {buffers}")
    engine = Engine(REAL, P2P, "rxe1", skew=13)
    there = buffers[0][0] + MIB - 12345
    engine.ask("fill", at=1, length=3 * MIB, seed=4)
    engine.move("write", target.segment, 1, there, 3 * MIB)
    engine.move("read", target.segment, 4 * MIB + 7, there, 3 * MIB)
    need(engine.ask("check", at=4 * MIB + 7, length=3 * MIB, seed=4)["equal"], "the bytes across the borders differ")
    # The same with small regions at the initiator.
    for operation in ("write", "read"):
        r = initiate(OURS, P2P, "rxe1", engine.segment, operation, 700_001, 5, more=["--verify", f"--buffer_size={5 * 700_001}"], env=small)
        turn = r["batches"] - 1 if operation == "write" else 0
        need(engine.ask("blocks", length=700_001, count=5, round=turn)["equal"], "bytes across our borders are at wrong addresses")
    engine.borders()
    target.ends()
    return f"{len(buffers)} buffers"


def pair_limit():
    """Endpoints beyond MC_MAX_EP_PER_CTX replace older ones."""
    target = Target(OURS, P2P, "rxe0", env={"MC_MAX_EP_PER_CTX": "8"})
    most = 0
    for i in range(60):
        connection(target, local_nic_path=f"127.0.0.1:{20000 + i}@rxe1", qp_num=[900 + i, 1900 + i])
        most = max(most, len(pairs()))
    need(most <= 32, f"{most} queue pairs for 8 endpoints")
    works(target)
    target.ends()
    need(not pairs() and not regions(), f"left over: {pairs()} {regions()}")
    return f"at most {most} queue pairs"


def cycles(count):
    """A peer connects repeatedly, each time with other queue pairs."""
    target = Target(OURS, P2P, "rxe0")
    for i in range(count):
        reply = connection(target, qp_num=[2 * i + 1000, 2 * i + 1001])
        need(not reply["reply_msg"], f"connection {i}: {reply}")
    here, there = len(pairs()), len(regions())
    need(here <= 8, f"{here} queue pairs after {count} connections")
    works(target)
    target.ends()
    need(not pairs() and not regions(), f"left over: {pairs()} {regions()}")
    return f"{here} queue pairs and {there} regions after {count} connections; none after the exit"


# -------------------------------------------------------------------------------------------------------------- handshakes
GID1 = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:02"


def request(target, **other):
    d = {"local_gid": GID1, "local_lid": 0, "local_nic_path": "127.0.0.1:19999@rxe1", "payload": "",
         "peer_nic_path": f"{target.segment}@rxe0", "qp_num": [71, 72], "ready_ack": False, "reply_msg": ""}
    d.update(other)
    return {k: v for k, v in d.items() if v is not ...}


def connection(target, **other):
    return exchange(target.segment, 0, request(target, **other))


def raw(at, data, limit, stall=False):
    """Sends bytes to a handshake port. Returns its reply, or how it closed the connection."""
    host, _, port = at.rpartition(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), 20) as s:
        s.settimeout(limit)
        try:
            s.sendall(data)
            if not stall:
                s.shutdown(socket.SHUT_WR)
            n, kind = struct.unpack("<QB", read_exactly(s, 9))
            return f"type {kind}, {read_exactly(s, n - 1)[:200]}"
        except TimeoutError:
            raise Failed(f"neither answered nor closed within {limit} s") from None
        except (Failed, OSError) as e:
            return f"{e} ({time.monotonic() - began:.1f} s)"


def malformed_requests():
    """Every input to the handshake port is answered or the connection closed. The target keeps serving, without left-over pairs."""
    target = Target(OURS, P2P, "rxe0")
    before, held = len(pairs()), len(regions())
    bad = {
        "length 0": struct.pack("<Q", 0), "length 2^63": struct.pack("<QB", 1 << 63, 0), "length 64 MiB": struct.pack("<QB", 64 << 20, 0),
        "half a length": b"\x10\0\0", "half a frame": frame(0, request(target))[:40], "no JSON": frame(0, b"\xff\xfe{{{"),
        "deep JSON": frame(0, b"[" * 100_000), "old protocol, no JSON": struct.pack("<Q", 3) + b"{{{",
        "type 3, rubbish": frame(3, b"\0" * 100), "type 1, rubbish": frame(1, b"\0" * 100),
    }
    for what, data in bad.items():
        raw(target.segment, data, 30)
    # JSON that is not a connection message: answered with the error, or closed.
    wrong = {"null": None, "array": [], "number": 7, "string": "x", "empty": {}}
    for what, document in wrong.items():
        raw(target.segment, frame(0, document), 30)
    refused = {
        "unknown device": dict(peer_nic_path=f"{target.segment}@rxe9"), "another server": dict(peer_nic_path="10.9.9.9:1@rxe0"),
        "no peer path": dict(peer_nic_path=""), "no @": dict(peer_nic_path="abc"), "no local path": dict(local_nic_path=""),
        "local path without @": dict(local_nic_path="abc"), "one pair": dict(qp_num=[5]), "three pairs": dict(qp_num=[5, 6, 7]),
        "no pairs": dict(qp_num=[]), "4096 pairs": dict(qp_num=list(range(4096))), "bad GID": dict(local_gid="zz"),
        "null GID": dict(local_gid=":".join(["00"] * 16)), "short GID": dict(local_gid="00:01"),
        "negative pair": dict(qp_num=[-1, -2]), "pair of 2^40": dict(qp_num=[1 << 40, 2]), "pair is text": dict(qp_num=["5", "6"]),
        "lid of 2^20": dict(local_lid=1 << 20), "ack without connection": dict(ready_ack=True, local_nic_path="127.0.0.1:19998@rxe1"),
        "control channel": dict(ctrl_channel=True, peer_nic_path="__ctrl__", notify_qp_num=5, notify_rq_depth=4),
        "no GID, unknown server": dict(local_gid=..., local_nic_path="127.0.0.1:1@rxe1"),
    }
    results = []
    for what, other in refused.items():
        began = time.monotonic()
        try:
            reply = connection(target, **other)
            need(reply.get("reply_msg"), f"{what} was accepted: {reply}")
            results.append(f"{what}: {reply['reply_msg'][:80]}")
        except (Failed, OSError, ValueError, TypeError, AttributeError) as e:
            need("accepted" not in str(e), str(e))
            results.append(f"{what}: closed")
        took = time.monotonic() - began
        need(took < 25, f"{what} took {took:.1f} s")
        need(target.process.p.poll() is None, f"the target ended at {what}: {target.process.tail()}")
    # Twenty connections that send nothing must not delay others.
    host, _, port = target.segment.rpartition(":")
    quiet = [socket.create_connection((host, int(port)), 10) for _ in range(20)]
    began = time.monotonic()
    exchange(target.segment, 3, {})
    slow = time.monotonic() - began
    need(slow < 10, f"with 20 silent connections a probe took {slow:.1f} s")
    for s in quiet:
        s.close()
    need(len(pairs()) <= before + 4, f"{len(pairs())} queue pairs are left over, {before} before")
    need(len(regions()) == held, f"{len(regions())} regions, {held} before")
    works(target)
    works(target, initiator_make=REAL)
    target.ends()
    print("        " + "\n        ".join(results), flush=True)
    return f"{len(bad) + len(wrong) + len(refused)} kinds"


class FakeTarget:
    """A peer that publishes the descriptor of a real segment as its own. `answer` produces its reply to a connection request: a
    document, bytes, None (closes the connection) or ... (never answers)."""

    def __init__(self, answer, publish=None):
        self.true = Target(OURS, P2P, "rxe0")
        self.answer, self.publish, self.asked = answer, publish, 0
        self.s = socket.socket()
        self.s.bind(("127.0.0.1", 0))
        self.s.listen(64)
        self.segment = f"127.0.0.1:{self.s.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            c, _ = self.s.accept()
            threading.Thread(target=self._one, args=(c,), daemon=True).start()

    def _one(self, c):
        try:
            with c:
                n, kind = struct.unpack("<QB", read_exactly(c, 9))
                asked = json.loads(read_exactly(c, n - 1) or b"null")
                if kind == 1:
                    d = dict(self.true.descriptor, name=self.segment)
                    c.sendall(frame(1, self.publish(d) if self.publish else d))
                elif kind == 0:
                    self.asked += 1
                    reply = self.answer(self, asked)
                    if reply is ...:
                        time.sleep(600)
                    elif reply is not None:
                        c.sendall(reply if isinstance(reply, bytes) else frame(0, reply))
                else:
                    c.sendall(frame(kind, {}))
        except (OSError, Failed, ValueError):
            pass

    def reply(self, asked, **other):
        d = {"local_gid": GID1.replace("64:02", "64:01"), "local_lid": 0, "local_nic_path": asked["peer_nic_path"], "payload": "",
             "peer_nic_path": asked["local_nic_path"], "qp_num": [9001, 9002], "ready_ack": False, "reply_msg": ""}
        d.update(other)
        return {k: v for k, v in d.items() if v is not ...}


def malformed_reply(answer, words, limit=80, env=None):
    """The peer is running, so the message must not suggest that it is not."""
    fake = FakeTarget(answer)
    result = fails(initiator(fake.segment, seconds=5, env=env), limit, [fake.segment, "rxe1", "port 1", "GID 1", *words],
                 never=["is running"] if words else [])
    need(fake.asked, "no initiator connected")
    return f"{result} ({fake.asked} requests)"


def silent_pairs():
    """Queue pairs that do not exist: each slice is tried at most MC_RETRY_CNT times."""
    fake = FakeTarget(REPLIES["unknown-pairs"][0])
    p = initiator(fake.segment, seconds=5, env={"MC_RETRY_CNT": "2"})
    result = fails(p, 40, ["rxe1 port 1", "GID 1", f"{fake.segment}@rxe0", "completion", "transferring the bytes"], never=["is running", "timed out"])
    return f"{result} ({fake.asked} requests)"


def relayed(fake, asked):
    """Forwards the connection request to the real target, under the fake's name."""
    def renamed(d, old, new):
        return {k: v.replace(old, new) if isinstance(v, str) else v for k, v in d.items()}
    return renamed(exchange(fake.true.segment, 0, renamed(asked, fake.segment, fake.true.segment)), fake.true.segment, fake.segment)


def malformed_descriptor(publish, may_work, words=()):
    """Connected to a real peer, but with a wrong description of its memory and devices."""
    fake = FakeTarget(relayed, publish)
    p = initiator(fake.segment, seconds=1, more=["--verify"])
    result = fails(p, 80, [fake.segment, *words] if not may_work else [], codes=(0, 1, 3) if may_work else (1, 3),
                 never=["' not found"])
    works(fake.true)
    fake.true.ends()
    return "works" if p.p.returncode == 0 else result


def without(d, *names):
    return {k: v for k, v in d.items() if k not in names}


REPLIES = {
    "refuses": (lambda f, q: f.reply(q, reply_msg="not with you", qp_num=[]), ["not with you"]),
    "one-pair": (lambda f, q: f.reply(q, qp_num=[9001]), ["contains 1 queue pairs", "MC_NUM_QP_PER_EP"]),
    "no-pairs": (lambda f, q: f.reply(q, qp_num=[]), ["contains 0 queue pairs"]),
    "empty-document": (lambda f, q: {}, ["does not use RDMA", "--protocol rdma"]),
    "null": (lambda f, q: frame(0, b"null\n"), ["reply"]),
    "bad-gid": (lambda f, q: f.reply(q, local_gid="zz:zz"), ["'zz:zz'", "invalid GID"]),
    "other-paths": (lambda f, q: f.reply(q, local_nic_path="10.1.1.1:1@rxe0"), ["10.1.1.1:1@rxe0", "instead of"]),
    "no-json": (lambda f, q: frame(0, b"{{{{"), ["unreadable reply"]),
    "too-long": (lambda f, q: struct.pack("<QB", 1 << 40, 0), ["unreadable reply"]),
    "closes": (lambda f, q: None, []),
    "another-type": (lambda f, q: frame(1, b"{}"), ["does not use RDMA"]),
    "unknown-pairs": (lambda f, q: {} if q.get("ready_ack") else f.reply(q), ["no work completion"]),
    "unknown-gid": (lambda f, q: {} if q.get("ready_ack") else f.reply(q, local_gid=GID1.replace("64:02", "64:77")), []),
    "ack-refused": (lambda f, q: f.reply(q, reply_msg="no ack") if q.get("ready_ack") else f.reply(q), ["no ack"]),
    "never": (lambda f, q: ..., []),
}
# name: (the published descriptor, whether a transfer may succeed, the required parts of the message)
DESCRIPTORS = {
    "no-devices": (lambda d: dict(d, devices=[], buffers=[dict(b, rkey=[], lkey=[]) for b in d["buffers"]]), False, ["announces no RDMA device"]),
    "devices-without-keys": (lambda d: dict(d, devices=[]), False, ["one key per device"]),
    "no-matrix": (lambda d: without(d, "priority_matrix"), True),
    "unknown-device-in-matrix": (lambda d: dict(d, priority_matrix={"cpu:0": [["mlx5_9"], []]}), True),
    "short-rkeys": (lambda d: dict(d, buffers=[dict(b, rkey=[]) for b in d["buffers"]]), False),
    "wrong-rkeys": (lambda d: dict(d, buffers=[dict(b, rkey=[1 + r for r in b["rkey"]]) for b in d["buffers"]]), False),
    "outside": (lambda d: dict(d, buffers=[dict(b, addr=b["addr"] + (16 << 20)) for b in d["buffers"]]), False),
    "bad-gid": (lambda d: dict(d, devices=[dict(x, gid="zz") for x in d["devices"]]), False, ["announces the invalid GID 'zz'"]),
    "tcp": (lambda d: dict(d, protocol="tcp"), False),
    "huge-buffers": (lambda d: dict(d, buffers=[dict(b, addr=(1 << 64) - 5) for b in d["buffers"]]), False),
}


def main():
    cases = Cases(a.only, a.list, a.out)
    for make in (OURS, REAL):
        cases.run(f"killed/target-{make}", target_killed, make)
        cases.run(f"killed/initiator-{make}", initiator_killed, make)
    cases.run("stopped/target", target_stopped)
    cases.run(f"restarted/{OURS}", restarted, OURS, limit=300)
    cases.run(f"restarted/{REAL}", restarted, REAL, limit=300)
    cases.run("status", status_report)
    cases.run("gid/row-without-gid", wrong_gid, 7)
    cases.run("gid/no-such-row", wrong_gid, 5000)
    cases.run("gid/link-local", unequal_gid)
    cases.run("gid/other-row", other_row)
    cases.run("device/unknown", no_such_device)
    cases.run("memlock/target", memlock)
    cases.run("memlock/node", memlock_node)
    cases.run("small-regions", small_regions)
    cases.run("handshake/requests", malformed_requests, limit=300)
    for name, (answer, words) in REPLIES.items():
        cases.run(f"handshake/reply-{name}", malformed_reply, answer, words)
    for name, case in DESCRIPTORS.items():
        cases.run(f"handshake/descriptor-{name}", malformed_descriptor, *case)
    cases.run("pairs/silent", silent_pairs)
    cases.run("pairs/limit", pair_limit, limit=300)
    cases.run("pairs/1000-connections", cycles, 1000, limit=400)
    # Cases that disturb the devices come last.
    cases.run("device/address-lost", address_lost, limit=240)
    cases.run("device/link-down-and-up", link_down, limit=400)
    cases.run("device/one-of-two-removed", device_removed, limit=240)
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
