#!/usr/bin/env python3
"""Runs inside the guest: the transfer engine over RDMA beside the real one and perftest, in turns. `rdma` boots the guest for it.

    bench_rdma.py --mcctl BIN [--rounds 9] [--seconds 4] [--ops write,read] [--blocks 65536,1048576] [--batches 16,128]
                  [--small 4096] [--version V] [--minutes 45] [--json FILE]

What a row is: both ends of one make, target on rxe0 and initiator on rxe1, default settings, one thread; perftest is ib_write_bw or
ib_read_bw with two queue pairs between the same devices and else its defaults. That is not quite the same work: perftest keeps 128
requests under way on either queue pair without a pause, polls without sleeping, and moves the same bytes again and again; an
initiator waits for each batch before it begins the next, and sleeps while it waits. Everything is measured in the same way, over a
window inside the run: bytes from the sending device's packet counter, CPU of both processes (user and system) from /proc, and of the
whole guest from /proc/stat, since the devices' own work is done by the kernel for nobody. Whoever does not take part is stopped
(SIGSTOP) meanwhile. No round is begun that would end after --minutes.
"""
import argparse
import json
import os
import re
import signal
import statistics
import sys
import time

sys.dont_write_bytecode = True  # the folder is the repository's
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/rdma-vm"))
from ends import OURS, VERSIONS, Engine, Target, bench, use  # noqa: E402
from guest import P2P, PACKET, Failed, Process, free_port, hw, need, packets, stop_all, wait_for  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("--mcctl", required=True)
ap.add_argument("--version", default=VERSIONS[0])
ap.add_argument("--rounds", type=int, default=9)
ap.add_argument("--seconds", type=int, default=4)
ap.add_argument("--ops", default="write,read")
ap.add_argument("--blocks", default="65536,1048576")
ap.add_argument("--batches", default="16,128")
ap.add_argument("--small", default="4096")
ap.add_argument("--minutes", type=float, default=45)
ap.add_argument("--json")
a = ap.parse_args()
use(a.mcctl)


def ints(text):
    return [int(x) for x in text.split(",") if x]


def guest_cpu():
    """CPU seconds that the guest has spent on anything."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def window(target, initiator, op):
    """Figures of a run under way: from half a second after bytes flow until well before its end."""
    data = "rxe1" if op == "write" else "rxe0"
    before = hw(data, "sent_pkts")
    end = time.monotonic() + 60
    while hw(data, "sent_pkts") - before < 16:
        need(initiator.p.poll() is None, f"{initiator.name} ended with {initiator.p.poll()}: {initiator.tail()}")
        need(time.monotonic() < end, f"{initiator.name} moved nothing: {initiator.tail()}")
        time.sleep(0.02)
    time.sleep(0.5)
    t0, p0, c0, g0 = time.monotonic(), hw(data, "sent_pkts"), target.cpu() + initiator.cpu(), guest_cpu()
    time.sleep(max(a.seconds - 2.0, 0.5))
    need(initiator.p.poll() is None, f"{initiator.name} ended early: {initiator.tail()}")
    t1, p1, c1, g1 = time.monotonic(), hw(data, "sent_pkts"), target.cpu() + initiator.cpu(), guest_cpu()
    gb = (p1 - p0) * PACKET / 1e9
    need(gb, f"{initiator.name} moved nothing in the window")
    return {"mb_s": gb * 1e3 / (t1 - t0), "cpu": (c1 - c0) / gb, "guest": (g1 - g0) / gb}


class Ends:
    """Both ends of one make: the target lives for the whole run."""

    def __init__(self, make, bytes_needed):
        self.make = make
        self.target = Target(make, P2P, "rxe0", [f"--buffer_size={bytes_needed}"])
        self.rest()

    def rest(self):
        self.target.process.signal(signal.SIGSTOP)

    def run(self, op, block, batch):
        self.target.process.signal(signal.SIGCONT)
        flags = [f"--segment_id={self.target.segment}", f"--operation={op}", f"--block_size={block}", f"--batch_size={batch}",
                 "--threads=1", f"--duration={a.seconds}", f"--buffer_size={block * batch}"]
        flags.append("--json" if self.make == OURS else "--report_unit=MB")
        p, _ = bench(self.make, "initiator", P2P, "rxe1", flags)
        try:
            figures = window(self.target.process, p, op)
            need(p.wait(90) == 0, f"{p.name}: {p.tail()}")
            # what it says itself of its whole run: packets that were sent twice are in the figure above, not in this
            m = re.search(r'"gb_per_s":\s*([\d.e-]+)|throughput ([\d.]+) MB/s', p.text())
            figures["said_mb_s"] = m and (float(m.group(1)) * 1e3 if m.group(1) else float(m.group(2)))
            return figures, p
        finally:
            if p.p.poll() is None:
                p.kill()
            self.rest()


def listens(port):
    """Asked of the kernel: perftest takes the first connection for its client's."""
    found = ""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as f:
            found += f.read()
    return re.search(rf":{port:04X} [0-9A-F]+:0000 0A ", found)


def perftest(op, block):
    port, program = free_port(), f"ib_{op}_bw"
    flags = ["-q", 2, "-s", block, "-x", 1, "-D", a.seconds + 1, "-f", 1, "-p", port, "-F"]
    server = Process(f"{program}-server", [program, "-d", "rxe0", *flags])
    wait_for(f"{server.name} on port {port}", lambda: listens(port))
    client = Process(f"{program}-client", [program, "-d", "rxe1", *flags, "127.0.0.1"])
    try:
        return window(server, client, op)
    finally:
        try:
            client.wait(30)
            server.wait(30)
        except Failed:
            pass
        for p in (client, server):
            p.kill()


def middle(values):
    """Median, and the two values between which it lies with some 95 %."""
    v = sorted(values)
    n = len(v)
    # from nine on the outermost are left out: of nine the second and the eighth hold the median with 96 %
    cut = max(0, int(n / 2 - 0.98 * n ** 0.5)) if n >= 9 else 0
    return statistics.median(v), v[cut], v[n - 1 - cut]


def ratio(rows, name, over, key):
    """Of the rounds that have both."""
    pairs = [(r[name][key], r[over][key]) for r in rows if name in r and over in r and r[name].get(key) and r[over].get(key)]
    return middle([x / y for x, y in pairs]) if pairs else None


def shown(m, digits=2):
    return "-" if m is None else f"{m[0]:.{digits}f} [{m[1]:.{digits}f}, {m[2]:.{digits}f}]"


def main():
    ops, blocks, batches = a.ops.split(","), ints(a.blocks), ints(a.batches)
    room = max([b * n for b in blocks for n in batches] + [1 << 20])
    real, ours = Ends(a.version, room), Ends(OURS, room)
    engine = Engine(a.version, P2P, "rxe1")
    engine.d.process.signal(signal.SIGSTOP)
    rounds = {}

    def note(key, name, figures):
        row = rounds.setdefault(key, {}).setdefault(turn, {})
        row[name] = figures
        if a.json:
            with open(a.json, "a") as f:
                f.write(json.dumps({"op": key[0], "block": key[1], "batch": key[2], "round": turn, "who": name, **figures}) + "\n")

    def attempt(key, name, do):
        try:
            note(key, name, do())
        except Failed as e:
            print(f"round {turn + 1} {key} {name}: {e}", flush=True)

    def laps_real(op, size):
        """The engine as a Python program calls it, one transfer at a time."""
        real.target.process.signal(signal.SIGCONT)
        engine.d.process.signal(signal.SIGCONT)
        try:
            remote = real.target.descriptor["buffers"][0]["addr"]
            got = engine.ask("laps", kind=op, segment=real.target.segment, remote=remote, length=size, count=150)
            need(got["rc"] == 0, f"the real engine answered {got['rc']}")
            return {"p50": statistics.median(got["us"][20:])}
        finally:
            engine.d.process.signal(signal.SIGSTOP)
            real.rest()

    def laps_ours(op, size):
        figures, p = ours.run(op, size, 1)
        text = p.text()
        d = json.loads(text[text.index("{"):text.rindex("}") + 1])
        return {"p50": d["batch_us_p50"], **figures}

    start = time.monotonic()
    for turn in range(a.rounds):
        began = time.monotonic()
        for op in ops:
            for block in blocks:
                todo = [((op, block, n), make.make if make is ours else "real", lambda make=make, n=n: make.run(op, block, n)[0])
                        for n in batches for make in (real, ours)]
                todo.append(((op, block, 0), "perftest", lambda: perftest(op, block)))
                for key, name, do in todo[turn % len(todo):] + todo[:turn % len(todo)]:
                    attempt(key, name, do)
            for size in ints(a.small):
                todo = [("real", lambda: laps_real(op, size)), (OURS, lambda: laps_ours(op, size))]
                for name, do in todo[::1 if turn % 2 else -1]:
                    attempt((op, size, 1), name, do)
        now = time.monotonic()
        print(f"round {turn + 1}/{a.rounds} took {now - began:.0f} s", file=sys.stderr, flush=True)
        if now - start + (now - began) > a.minutes * 60:
            break
    stop_all()
    report(rounds, ops, blocks, batches)
    return 0


def table(head, lines):
    print("\n| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head))
    for line in lines:
        print("| " + " | ".join(str(cell) for cell in line) + " |")


def report(rounds, ops, blocks, batches):
    """Medians with the interval that holds the median with some 95 % (of fewer than nine rounds: the extremes)."""
    speed, cost, small = [], [], []
    for op in ops:
        for block in blocks:
            bare = rounds.get((op, block, 0), {})
            for n in batches:
                rows = [dict(r, **bare.get(t, {})) for t, r in sorted(rounds.get((op, block, n), {}).items())]

                def of(name, key, digits=1):
                    v = [r[name][key] for r in rows if name in r]
                    return shown(middle(v) if v else None, digits)

                def over(name, key):
                    return shown(ratio(rows, OURS, name, key))
                what = [op, block, n]
                all_three = ("real", OURS, "perftest")
                speed.append([*what, *(of(name, "mb_s") for name in all_three), over("real", "mb_s"), over("perftest", "mb_s"),
                              over("real", "said_mb_s"), len(rows)])
                cost.append([*what, *(of(name, "cpu", 2) for name in all_three), over("real", "cpu"),
                             *(of(name, "guest") for name in all_three), over("real", "guest"), over("perftest", "guest")])
        for size in ints(a.small):
            rows = [r for _, r in sorted(rounds.get((op, size, 1), {}).items())]
            laps = {name: [r[name]["p50"] for r in rows if name in r] for name in ("real", OURS)}
            medians = [shown(middle(v) if v else None, 0) for v in laps.values()]
            small.append([op, size, *medians, shown(ratio(rows, OURS, "real", "p50")), len(rows)])
    what = ["op", "block", "batch"]
    table([*what, "real MB/s", "mcctl", "perftest", "mcctl/real", "mcctl/perftest", "mcctl/real by their own words", "rounds"], speed)
    table([*what, "CPU s/GB of both processes: real", "mcctl", "perftest", "mcctl/real", "CPU s/GB of the guest: real", "mcctl", "perftest",
           "mcctl/real", "mcctl/perftest"], cost)
    table(["op", "bytes", "p50 us: real", "mcctl", "mcctl/real", "rounds"], small)
    print(f"\nretransmissions meanwhile: {sum(hw(d, 'duplicate_request') + hw(d, 'retry_exceeded_err') for d in packets())}")


if __name__ == "__main__":
    sys.exit(main())
