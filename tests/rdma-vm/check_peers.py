"""Runs inside the guest: mcctl and the real Mooncake transfer bytes over RDMA, each as target and initiator, store and client.

    check_peers.py --mcctl BIN [--versions V,V,..] [--real] [--few] [--only PATTERN,..] [--list] [--out DIR]

`peers` boots the guest and runs this program. Its help describes the flags.
"""
import argparse
import json
import os
import re
import sys
import threading

sys.dont_write_bytecode = True  # The folder belongs to the repository.
from ends import MIB, OURS, VERSIONS, Engine, Store, Target, initiate, metadata, rest, use, wheel  # noqa: E402
from guest import P2P, PEERS, Cases, Process, Traffic, need  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("--mcctl", required=True)
ap.add_argument("--versions", default=",".join(VERSIONS))
ap.add_argument("--real", action="store_true", help="also real against real, to detect errors of the harness")
ap.add_argument("--few", action="store_true", help="three sizes only")
ap.add_argument("--only", action="append", default=[])
ap.add_argument("--list", action="store_true")
ap.add_argument("--out")
a = ap.parse_args()
MODULE = os.path.realpath(os.path.join(PEERS, "../../src/python"))
use(a.mcctl)


def sides(count):
    """(devices of the target, devices of the initiator)"""
    return ("rxe0", "rxe1") if count == 1 else ("rxe0,rxe1", "rxe0,rxe1")


def benches(target_make, initiator_make, how, count):
    meta = metadata(how)
    theirs, mine = sides(count)
    target = Target(target_make, meta, theirs)
    target.check(theirs)
    results = []
    for operation in ("write", "read"):
        traffic = Traffic()
        more = ["--verify"] if initiator_make == OURS else []
        r = initiate(initiator_make, meta, mine, target.segment, operation, more=more)
        need(r["batches"], "no batch was transferred")
        sent = traffic.moved(r["bytes"], {"rxe0", "rxe1"})
        results.append(f"{operation} {r['mb_s']:.1f} MB/s [{sent}]")
    target.ends()
    return " ".join(results)


def doctors(target_make, how, count):
    """mcctl doctor reports that every path to a target works, twice, and the target keeps working."""
    meta = metadata(how)
    theirs, mine = sides(count)
    target = Target(target_make, meta, theirs)
    results = []
    for _ in range(2):
        p = Process("doctor", [a.mcctl, "doctor", "--only", "peer", "--json", "--timeout", "20s", "--local-hostname", "127.0.0.1",
                               "--rdma-peer", target.segment, "--device-name", mine, *([] if meta == P2P else ["--metadata-server", meta])])
        code = p.wait(120)
        need(code == 0, f"mcctl doctor ended with {code}: {p.tail(6)}")
        d = json.loads(re.search(r"^\{.*^\}|^\{.*\}$", p.text(), re.S | re.M).group(0))
        paths = d["rdma_peers"][0]["ways"]
        need(len(paths) == count * count and all(w["ok"] and w["read"]["bytes"] == 16384 for w in paths), f"{paths}")
        results.append(" ".join(f"{w['write_us']['median']:.0f}" for w in paths))
    r = initiate(OURS, meta, mine, target.segment, "write", more=["--verify"])
    need(r["batches"], "no batch was transferred afterwards")
    target.ends()
    return f"{' and '.join(results)} us round trip"


# ------------------------------------------------------------------------------------------------------------- every byte
FEW = [1, 4095, 65537]
ALL = FEW if a.few else [1, 3, 63, 64, 65, 4095, 4096, 65535, 65537, 81921, MIB + 1, 4 * MIB - 1, 4 * MIB]


def real_initiator_bytes(target_make, version, how, count, sizes):
    """A real engine writes to our memory and reads it back with the bytes around it. Every byte must be at its address."""
    meta = metadata(how)
    theirs, mine = sides(count)
    target = Target(target_make, meta, theirs)
    engine = Engine(version, meta, mine)
    remote = next(b["addr"] for b in target.descriptor["buffers"] if b["length"] >= 16 * MIB)
    edge = 16
    traffic, moved = Traffic(), 0
    for i, size in enumerate(sizes):
        there, here, back = remote + 4097 + 2 * i, 1 + 2 * i, 8 * MIB + 5
        engine.ask("blank", at=here, length=size + 2 * edge)
        engine.move("write", target.segment, here, there - edge, size + 2 * edge)
        engine.ask("fill", at=here, length=size, seed=i + 3)
        engine.move("write", target.segment, here, there, size)
        engine.move("read", target.segment, back, there - edge, size + 2 * edge)
        need(engine.ask("check", at=back + edge, length=size, seed=i + 3)["equal"], f"{size} B at an odd address differ after a round trip")
        for what, at in (("before", back), ("after", back + edge + size)):
            need(engine.ask("zeros", at=at, length=edge)["equal"], f"a byte {what} the {size} B was changed")
        moved += 3 * size
    # Memory that is not registered is refused, and the peer keeps working.
    end = max(b["addr"] + b["length"] for b in target.descriptor["buffers"])
    rc = engine.ask("write", segment=target.segment, at=0, remote=end - 5, length=10)["rc"]
    need(rc != 0, "a write past the end of the registered memory was accepted")
    engine.ask("fill", at=1, length=777, seed=9)
    engine.move("write", target.segment, 1, end - 777, 777)
    engine.move("read", target.segment, 4096, end - 777, 777)
    need(engine.ask("check", at=4096, length=777, seed=9)["equal"], "the last bytes differ after a round trip")
    engine.borders()
    sent = traffic.moved(moved, {"rxe0", "rxe1"})
    target.ends()
    return f"{len(sizes)} sizes [{sent}]"


def our_initiator_bytes(version, how, count, sizes):
    """mcctl writes and reads a real engine's memory, which starts at an odd address. The engine checks its contents."""
    meta = metadata(how)
    theirs, mine = sides(count)
    engine = Engine(version, meta, theirs, skew=13)
    traffic, moved = Traffic(), 0
    for size in sizes:
        batch = 3 if size < 4 * MIB - 1 else 2
        more = [f"--buffer_size={size * batch}", "--verify"]
        r = initiate(OURS, meta, mine, engine.segment, "write", size, batch, more=more)
        turn = r["batches"] - 1
        need(engine.ask("blocks", length=size, count=batch, round=turn)["equal"], f"{batch} x {size} B are not in the engine's memory")
        engine.borders()
        moved += 2 * r["bytes"]
        # The initiator first writes the pattern of turn 0.
        r = initiate(OURS, meta, mine, engine.segment, "read", size, batch, more=more)
        need(engine.ask("blocks", length=size, count=batch, round=0)["equal"], "a read changed the engine's memory")
        engine.borders()
        moved += r["bytes"]
    sent = traffic.moved(moved, {"rxe0", "rxe1"})
    return f"{len(sizes)} sizes [{sent}]"


def our_bytes(how, count, sizes):
    """mcctl to mcctl."""
    meta = metadata(how)
    theirs, mine = sides(count)
    target = Target(OURS, meta, theirs)
    traffic, moved = Traffic(), 0
    for size in sizes:
        batch = 3 if size < 4 * MIB - 1 else 2
        for operation in ("write", "read"):
            more = [f"--buffer_size={size * batch}", "--verify"]
            moved += initiate(OURS, meta, mine, target.segment, operation, size, batch, more=more)["bytes"]
    sent = traffic.moved(moved, {"rxe0", "rxe1"})
    target.ends()
    return f"{len(sizes)} sizes [{sent}]"


def large(size):
    """One operation of `size` bytes is written, read back and compared."""
    target = Target(OURS, P2P, "rxe0", [f"--buffer_size={size}"])
    traffic = Traffic()
    r = initiate(OURS, P2P, "rxe1", target.segment, "write", size, 1, more=["--verify", f"--buffer_size={size}"], limit=300)
    sent = traffic.moved(2 * r["bytes"], {"rxe0", "rxe1"})
    target.ends()
    return f"{r['mb_s']:.1f} MB/s with comparison [{sent}]"


def real_client(master_make, node_make, how, devices, module=False):
    """The complete suite of the real Python client, or of mcctl's with `module`."""
    s = Store(master_make, node_make, how, devices=devices[0])
    traffic = Traffic()
    w = wheel(VERSIONS[0])
    launcher, env = ["-m", "mcctl_mooncake.run", "--"] if module else [], dict(w.env() or {})
    if module:
        # The bytes go over RDMA although the nodes are on this host.
        env.update(PYTHONPATH=MODULE, MCCTL_SHARED_MEMORY="0")
    p = Process("suite", [w.python(), *launcher, os.path.join(PEERS, "client_suite.py"), "--master", s.address, "--metadata", s.meta, "--nodes", 2,
                          "--device", devices[1], "--batch", 16, "--largest", 8 * MIB, "--small", 250,
                          "--local-buffer", 40 * MIB], env)
    code = p.wait(400)
    text = p.text()
    wrong = [x for x in text.splitlines() if x.startswith("FAILED")]
    last = re.findall(r"\d+ passed, \d+ failed", text)
    need(code == 0 and last, f"{last or code}: {' | '.join(wrong)[:900] or p.tail()}")
    sent = traffic.moved(60 * MIB, {"rxe0", "rxe1"})
    return f"{last[0]} [{sent}]"


def payload(seed, size):
    """Bytes of object `seed`, as tests/peers/payload.py computes them, but without numpy."""
    mask, out = (1 << 64) - 1, bytearray()
    for i in range(min((size + 7) // 8, 512)):
        z = (seed + i + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        out += (z ^ (z >> 31)).to_bytes(8, "little")
    return bytes(out[:size])


def own_client(master_make, node_make, how, devices):
    """mcctl's client and the real one: each reads what the other wrote."""
    s = Store(master_make, node_make, how, devices=devices[0])
    python = s.client("client", 0, 24 * MIB, devices[1])
    traffic = Traffic()
    for i, size in enumerate((1, 4096, MIB, 4 * MIB)):
        key = f"size/{size}"
        # The worker generates the bytes, because the guest's Python has no numpy.
        answer = python.ask("put", key=f"python/{size}", seed=300 + i, size=size)
        need(answer["rc"] == 0, f"put of {size} B by the real client: {answer}")
        s.own("get", f"python/{size}", "-o", "/tmp/got")
        with open("/tmp/got", "rb") as f:
            got = f.read()
        need(len(got) == size and got[:4096] == payload(300 + i, size)[:4096], f"{size} B of the real client differ")
        s.own("put", key, "/tmp/got")
        s.own("get", key, "-o", "/tmp/again")
        with open("/tmp/again", "rb") as f:
            need(f.read() == got, f"{size} B differ after a round trip")
        answer = python.ask("get", key=key, seed=300 + i, size=size)
        need(answer["size"] == size and answer["same"], f"{key} as the real client reads it: {answer}")
    s.own("put", key, "/tmp/got", codes=(1,))
    s.own("put", key, "--value", "another", "--upsert")
    need("another" in s.own("get", key), "the value after an upsert")
    s.own("get", "none", codes=(1,))
    s.own("put", "two", "/tmp/got", "--replicas", "2")
    answer = python.ask("replicas", key="two")
    need(len(set(answer["endpoints"])) == 2, f"two replicas are at {answer}")
    s.own("rm", "--all", "--force", "--yes")
    p = Process("bench", [a.mcctl, "bench", "store", "--object-size", "1mb", "--batch", 16, "--objects", 16, "--verify", "--master", s.address,
                          "--admin", f"127.0.0.1:{s.admin}", "--metadata-server", s.meta, "--local-hostname", "127.0.0.1",
                          "--protocol", "rdma", "--device-name", devices[1], "--timeout", "60s"])
    code = p.wait(180)
    need(code == 0, f"mcctl bench store ended with {code}: {p.tail(4)}")
    sent = traffic.moved(40 * MIB, {"rxe0", "rxe1"})
    python.ask("close")
    return f"[{sent}]"


def both_at_once():
    """Two nodes without a connection put at the same time, so that both connect to each other at once."""
    s = Store(OURS, OURS, "p2p", nodes=1, segment=32 * MIB)
    s.nodes[0].wait_port(s.rest)
    python = s.client("client", 32 * MIB, 16 * MIB, "rxe1")
    s.nodes.append(python.process)
    s.wait_segments(2)
    count, size, wrong, together = 10, 100_001, [], threading.Barrier(2)

    def ours():
        together.wait(30)
        for i in range(count):
            code, text = rest(s.rest, "PUT", "/api/put", {"key": f"ours-{i}", "value": "y" * size})
            if code != 200:
                wrong.append(f"our put {i}: {code} {text[:200]}")

    def theirs():
        together.wait(30)
        for i in range(count):
            answer = python.ask("put", key=f"theirs-{i}", seed=i, size=size)
            if answer["rc"]:
                wrong.append(f"the real client's put {i}: {answer}")
    threads = [threading.Thread(target=f) for f in (ours, theirs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(150)
    need(not wrong, "; ".join(wrong)[:700])
    for i in range(count):
        code, got = rest(s.rest, "GET", f"/api/get/theirs-{i}")
        need(code == 200 and len(got) == size and got[:4096] == payload(i, 4096), f"theirs-{i} as we read it: {code}, {len(got)} B")
        answer = python.ask("get", key=f"ours-{i}", seed=i, size=size)
        need(answer["size"] == size, f"ours-{i} as the real client reads it: {answer}")
    held = {python.ask("replicas", key=f"{who}-{i}")["endpoints"][0] for who in ("ours", "theirs") for i in range(count)}
    need(len(held) == 2, f"all objects are on {held}: nothing was transferred between the nodes")
    return ""


# ------------------------------------------------------------------------------------------------------------------ the run
def main():
    versions = [v for v in a.versions.split(",") if v]
    cases = Cases(a.only, a.list, a.out)
    both = [("p2p", 1), ("p2p", 2), ("http", 1), ("http", 2)]

    def case_suffix(how, count):
        return f"{how}/{count}-device{'s' if count > 1 else ''}"
    if a.real:
        for v in versions:
            for how, count in both:
                cases.run(f"real/bench/{v}-to-{v}/{case_suffix(how, count)}", benches, v, v, how, count)
            cases.run(f"real/bytes/{v}-to-{v}/p2p/1-device", real_initiator_bytes, v, v, "p2p", 1, FEW)
        cases.run("real/store/p2p", real_client, VERSIONS[0], VERSIONS[0], "p2p", ("rxe0", "rxe1"), limit=600)
    for how, count in both:
        cases.run(f"bench/mcctl-to-mcctl/{case_suffix(how, count)}", benches, OURS, OURS, how, count)
    for v in versions:
        for how, count in both:
            cases.run(f"bench/{v}-to-mcctl/{case_suffix(how, count)}", benches, OURS, v, how, count)
            cases.run(f"bench/mcctl-to-{v}/{case_suffix(how, count)}", benches, v, OURS, how, count)
    for make in (OURS, *versions):
        cases.run(f"doctor/{make}/p2p/2-devices", doctors, make, "p2p", 2)
        cases.run(f"doctor/{make}/http/1-device", doctors, make, "http", 1)
    cases.run("bytes/mcctl-to-mcctl/p2p/1-device", our_bytes, "p2p", 1, ALL, limit=300)
    cases.run("bytes/mcctl-to-mcctl/http/2-devices", our_bytes, "http", 2, FEW)
    for v in versions:
        for how, count in both:
            sizes = ALL if (how, count) in (("p2p", 1), ("http", 2)) and v == VERSIONS[0] else FEW
            cases.run(f"bytes/{v}-to-mcctl/{case_suffix(how, count)}", real_initiator_bytes, OURS, v, how, count, sizes, limit=300)
            cases.run(f"bytes/mcctl-to-{v}/{case_suffix(how, count)}", our_initiator_bytes, v, how, count, sizes, limit=300)
    # Stores: mcctl's master and client implement the protocol of one release.
    cases.run("both-at-once", both_at_once, limit=300)
    cases.run("bytes/256mb/mcctl-to-mcctl", large, 256 * MIB, limit=400)
    one, two = ("rxe0", "rxe1"), ("rxe0,rxe1", "rxe0,rxe1")
    cases.run("store/real-client/mcctl/p2p/1-device", real_client, OURS, OURS, "p2p", one, limit=600)
    cases.run("store/real-client/mcctl/http/2-devices", real_client, OURS, OURS, "http", two, limit=600)
    cases.run("store/real-client/mcctl-master-real-nodes/p2p/1-device", real_client, OURS, VERSIONS[0], "p2p", one, limit=600)
    cases.run("store/real-client/real-master-mcctl-nodes/p2p/1-device", real_client, VERSIONS[0], OURS, "p2p", one, limit=600)
    # mcctl's Python client, if tests/python/run has built it.
    if os.path.exists(os.path.join(MODULE, "mcctl_mooncake/_native.abi3.so")):
        cases.run("store/module/mcctl/http/2-devices", real_client, OURS, OURS, "http", two, True, limit=600)
        cases.run("store/module/real/p2p/2-devices", real_client, VERSIONS[0], VERSIONS[0], "p2p", two, True, limit=600)
    cases.run("store/mcctl-client/real/p2p/1-device", own_client, VERSIONS[0], VERSIONS[0], "p2p", one, limit=600)
    cases.run("store/mcctl-client/real/http/2-devices", own_client, VERSIONS[0], VERSIONS[0], "http", two, limit=600)
    cases.run("store/mcctl-client/mcctl/http/1-device", own_client, OURS, OURS, "http", one, limit=600)
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
