"""Faults of masters, etcd and the network under a real client and a real node: what is lost, and for how long.

A client puts a key and reads another every 50 ms, each in a thread. Needs root (network namespaces of its own, which end with it), Python
3.11, etcd (/usr/bin/etcd) and the real Mooncake wheel (tests/peers/install).
"""
import argparse, json, os, signal, statistics, subprocess, sys, tempfile, threading, time

import cluster as net
import peer
from cluster import ADDRESS, HaCluster, HaMaster, log, wait

BEFORE, AFTER = 4.0, 12.0


class Run:
    """one fault: what it does, and for how long the load goes on afterwards"""

    def __init__(self, c, args):
        self.c, self.args, self.at, self.note = c, args, None, {}

    def fault(self):
        self.at = time.monotonic()

    def kill_leader(self):
        self.fault()
        self.c.leader.process.end(signal.SIGKILL)


def kill(r):
    r.kill_leader()
    return AFTER


def term(r):
    r.fault()
    r.c.leader.signal(signal.SIGTERM)
    return AFTER


def step_down(r):
    r.fault()
    subprocess.run([r.args.binary, "master", "step-down", "--admin", f"{r.c.leader.address}:9003"], check=True, timeout=20,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return AFTER


def stopped(seconds):
    def fault(r):
        r.fault()
        r.c.leader.signal(signal.SIGSTOP)
        time.sleep(seconds)
        r.c.leader.signal(signal.SIGCONT)
        return AFTER
    return fault


def etcd_away(seconds, then_kill=False):
    def fault(r):
        r.fault()
        r.c.etcd.process.end(signal.SIGKILL)
        time.sleep(seconds)
        r.c.etcd.start()
        if then_kill:
            time.sleep(9)
            r.kill_leader()
        return AFTER
    return fault


def etcd_stopped_then_kill(r):
    r.c.etcd.process.p.send_signal(signal.SIGSTOP)
    time.sleep(3)
    r.c.etcd.process.p.send_signal(signal.SIGCONT)
    time.sleep(9)
    r.kill_leader()
    return AFTER


def cut_pair(a, b, seconds, then=None):
    def fault(r):
        name = dict(leader=r.c.leader.name, standby=r.c.standbys[0].name, etcd="etcd", client="client")
        r.fault()
        net.cut(name[a], name[b])
        if then:
            then(r)
        time.sleep(seconds)
        net.heal(name[a], name[b])
        return AFTER
    return fault


def host_lost(r):
    r.fault()
    net.isolate(r.c.leader.name)
    return AFTER + 30


def standby(signal_number, seconds=0):
    def fault(r):
        s = r.c.standbys[0]
        r.fault()
        s.signal(signal_number)
        if signal_number == signal.SIGKILL:
            s.process.end(signal.SIGKILL)
        if signal_number == signal.SIGSTOP:
            time.sleep(seconds)
            s.signal(signal.SIGCONT)
        return AFTER
    return fault


def rss(master):
    return peer.rss_kb(master.process.pid) // 1024


def standby_joins(r):
    s = r.c.standbys[0]
    s.process.end(signal.SIGKILL)
    time.sleep(3)
    r.fault()
    r.note["rss_mib_before"] = rss(r.c.leader)
    s.start()
    t = time.monotonic()
    wait("the standby in sync", 120, s.in_sync, 0.01)
    r.joined = (t, time.monotonic())
    r.note.update(in_sync_after_s=round(time.monotonic() - t, 3), rss_mib_after=rss(r.c.leader), standby_rss_mib=rss(s))
    return AFTER


def lost_without_standby(r):
    """the standby leaves the set in sync, and then the leader is lost for good, and its changes with it"""
    s = r.c.standbys[0]
    net.cut(r.c.leader.name, s.name)
    time.sleep(5)
    if r.args.heal:
        net.heal(r.c.leader.name, s.name)
    r.kill_leader()
    t = time.monotonic()
    wait("the standby to lead", 150, s.serving, 0.02)
    r.note["promoted_after_s"] = round(time.monotonic() - t, 3)
    r.note["may_lack_records"] = s.status().get("may_lack_records")
    return AFTER


def burst_kill(r):
    """20,000 keys in batches of 500 and one batch of 3,000, and then a kill at once"""
    for prefix, count, batch in (("burst", 20_000, 500), ("batch", 3000, 3000)):
        # In the process that has the memory: the wheel's TCP transport does not accept so many transfers to another one at once.
        done = r.c.node.ask("fill", prefix=prefix, first=0, count=count, batch=batch)
        r.note[f"{prefix}_acknowledged"] = done["acknowledged"]
    r.kill_leader()
    return AFTER


def kill_two(r):
    """three masters: the second leader is killed 5 s after the first"""
    r.kill_leader()
    time.sleep(5)
    r.c.leader = next(m for m in r.c.standbys if m.serving())
    r.note["second_at_s"] = round(time.monotonic() - r.at, 3)
    r.c.leader.process.end(signal.SIGKILL)
    return AFTER + 5


def all_kill(r):
    """with --data: all masters are killed and started again"""
    r.fault()
    for m in r.c.masters:
        m.process.end(signal.SIGKILL)
    for m in r.c.masters:
        m.start()
    t = time.monotonic()
    wait("a leader", 60, lambda: any(m.serving() for m in r.c.masters), 0.005)
    r.note["serving_after_start_s"] = round(time.monotonic() - t, 3)
    return AFTER + 8


def slow_disk(role, calls):
    """with --data: these system calls of a master take 200 ms, for 15 s"""
    def fault(r):
        m = r.c.leader if role == "leader" else r.c.standbys[0]
        r.fault()
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(m.process.pid), "-e", f"trace={calls}", "-e",
                                   f"inject={calls}:delay_enter=200000"])
        time.sleep(15)
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        return AFTER
    return fault


def upgrade(r):
    """rolling upgrade to --next, and back: the standby, a hand-over, the other one; what happens is in the notes"""
    r.fault()
    r.note["steps"] = []
    for binary in (r.args.next, r.args.binary):
        for nth in range(2):
            t = time.monotonic()
            if nth == 1:
                subprocess.run([r.args.binary, "master", "step-down", "--admin", f"{r.c.leader.address}:9003"], check=True, timeout=20,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                r.c.leader = r.c.standbys[0]
            s = r.c.standbys[0]
            s.process.end(signal.SIGTERM)
            s.start(binary)
            wait("the standby in sync", 60, s.in_sync, 0.005)
            r.note["steps"].append(dict(at_s=round(t - r.at, 2), without_standby_s=round(time.monotonic() - t, 2), binary=os.path.basename(binary)))
            time.sleep(3)
    return 3.0


FAULTS = {
    "kill": kill, "term": term, "step-down": step_down, "stop-3": stopped(3), "stop-8": stopped(8), "stop-30": stopped(30),
    "etcd-5": etcd_away(5), "etcd-60": etcd_away(60), "etcd-restart-kill": etcd_away(0, True), "etcd-stop-kill": etcd_stopped_then_kill,
    "leader-etcd-cut": cut_pair("leader", "etcd", 30), "leader-standby-cut": cut_pair("leader", "standby", 30),
    "standby-etcd-cut": cut_pair("standby", "etcd", 30), "client-etcd-cut-kill": cut_pair("client", "etcd", 20, kill),
    "host-lost": host_lost, "standby-kill": standby(signal.SIGKILL), "standby-stop-30": standby(signal.SIGSTOP, 30),
    "standby-joins": standby_joins, "lost-without-standby": lost_without_standby, "kill-two": kill_two, "burst-kill": burst_kill,
}
# These need more flags.
OTHER = {
    "all-kill": all_kill, "standby-disk-sync": slow_disk("standby", "fdatasync,fsync"), "standby-disk-write": slow_disk("standby", "pwrite64,fdatasync,fsync"),
    "leader-disk-sync": slow_disk("leader", "fdatasync,fsync"), "upgrade": upgrade,
}


class Poll(threading.Thread):
    """when each master serves, every 2 ms"""

    def __init__(self, masters):
        super().__init__(daemon=True)
        self.masters, self.running, self.since = masters, True, {}
        self.start()

    def run(self):
        while self.running:
            for m in self.masters:
                if m.serving():
                    self.since.setdefault(m.name, []).append(time.monotonic())
            time.sleep(0.002)


def gaps(calls, kind, begin):
    """the longest time between two successes behind `begin`, and when it began"""
    ends = [begin] + sorted(end for k, _, end, ok in calls if k == kind and ok and end > begin)
    return max(((b - a, a) for a, b in zip(ends, ends[1:])), default=(None, None))


def one(name, args, folder):
    os.makedirs(folder)
    c = HaCluster(args, folder, 3 if name == "kill-two" else 2, dict(pair.split("=", 1) for pair in args.client_env))
    try:
        c.start()
        filled = c.client.ask("fill", prefix="resident", first=0, count=args.keys, batch=500)
        c.client.ask("load", prefix="load", pause=0.05)
        time.sleep(BEFORE)
        run = Run(c, args)
        before = c.leader
        poll = Poll([m for m in c.masters if m is not before])
        tail = (FAULTS | OTHER)[name](run)
        time.sleep(tail)
        poll.running = False
        done = c.client.ask("stop")
        checks = [agent.ask("check", patience=15) for agent in (c.client, c.node)]
        checked = {what: sum((check[what] for check in checks[1:]), checks[0][what]) for what in checks[0]}
        if hasattr(run, "joined"):
            puts = [(begin, end - begin) for k, begin, end, ok in done["calls"] if k == "put"]
            within = [took for begin, took in puts if run.joined[0] <= begin <= run.joined[1]]
            outside = [took for begin, took in puts if not run.joined[0] <= begin <= run.joined[1]]
            run.note.update(puts_while_joining=len(within), longest_put_while_joining_ms=round(max(within, default=0) * 1000, 2),
                            longest_put_otherwise_ms=round(max(outside) * 1000, 2), median_put_ms=round(statistics.median(outside) * 1000, 2))
        calls = [call for call in done["calls"] if call[2] >= run.at - 1]
        serving = min((t for times in poll.since.values() for t in times if t >= run.at), default=None)
        gap, _ = gaps(done["calls"], "put", run.at - 0.2)
        get_gap, _ = gaps(done["calls"], "get", run.at - 0.2)
        return dict(
            fault=name, resident=filled["acknowledged"], loaded=done["acknowledged"], **run.note,
            serving_s=serving and round(serving - run.at, 3), put_gap_s=gap and round(gap, 3), get_gap_s=get_gap and round(get_gap, 3),
            failed_puts=sum(k == "put" and not ok for k, _, _, ok in calls), failed_gets=sum(k == "get" and not ok for k, _, _, ok in calls),
            longest_call_s=round(max(end - begin for _, begin, end, _ in calls), 3), hung=done["hung"],
            lost=checked["lost"], wrong=checked["wrong"], checked=checked["checked"], examples=checked["examples"])
    finally:
        c.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("faults", nargs="*", default=list(FAULTS), help="which faults: " + ", ".join(FAULTS) + "; by name only: " + ", ".join(OTHER))
    p.add_argument("--next", help="upgrade: the other program")
    p.add_argument("--binary", default="target/release/mcctl", help="our program")
    p.add_argument("--real", action="store_true", help="the real masters instead of ours")
    p.add_argument("--oplog", action="store_true", help="with --real: with their oplog")
    p.add_argument("--ack", default="sync", choices=["sync", "async"])
    p.add_argument("--keys", type=int, default=100_000, help="keys before the fault")
    p.add_argument("--segment-mib", type=int, default=512)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--heal", action="store_true", help="lost-without-standby: reconnect the masters before")
    p.add_argument("--client-env", nargs="*", default=[], metavar="NAME=VALUE", help="variables of the client and the node, e.g. MC_RPC_TIMEOUT_MS=2000")
    p.add_argument("--data", action="store_true", help="our masters have data directories")
    p.add_argument("--flags", nargs="*", default=[], help="more flags of our masters, without their dashes")
    p.add_argument("--json", help="file for the results")
    p.add_argument("--dir", help="keep the logs here")
    args = p.parse_args()
    args.flags, args.binary = ["--" + f for f in args.flags], os.path.abspath(args.binary)
    net.network()
    root, results = args.dir or tempfile.mkdtemp(prefix="failover-"), []
    for n in range(args.rounds):
        for name in args.faults:
            for attempt in range(2):
                try:
                    results.append(dict(round=n, **one(name, args, os.path.join(root, f"{name}-{n}-{attempt}"))))
                    break
                except RuntimeError as error:
                    results.append(dict(round=n, fault=name, error=str(error)[:500]))
            log(json.dumps(results[-1]))
            if args.json:
                with open(args.json, "w") as f:
                    json.dump(dict(args=vars(args), results=results), f, indent=1)
    for name in args.faults:
        good = [r for r in results if r["fault"] == name and "error" not in r]
        for what in ("serving_s", "put_gap_s", "get_gap_s", "longest_call_s", "failed_gets", "lost", "wrong"):
            found = [r[what] for r in good if r.get(what) is not None]
            if found:
                print(f"{name:22} {what:16} median {statistics.median(found):10.3f}  worst {max(found):10.3f}  rounds {len(found)}")


main()
