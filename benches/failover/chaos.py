"""Random faults of three masters, etcd, the network and the clients for a long time, with real clients and ours: no read is wrong, and no
acknowledged key is lost.

Each client writes, reads and removes the same keys repeatedly (chaos_agent.py). A master that is promoted and may lack changes drops all
objects; each client then receives `drop`. Needs root, Python 3.11, etcd, a C compiler and the wheel (tests/peers/install). --own-python DIR: a
directory with the module mcctl_mooncake (src/python, with its library); without it, all clients are real ones.
"""
import argparse, collections, contextlib, json, os, random, signal, subprocess, sys, tempfile, threading, time

import cluster as net
import peer
from cluster import ADDRESS, FailoverAgent, HaCluster, log, wait
from common import MIB, Process

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
/* Adds the number of seconds in the file CLOCK_JUMP to the wall clock. */
static volatile int64_t *jump;
__attribute__((constructor)) static void begin(void) {
  int fd = getenv("CLOCK_JUMP") ? open(getenv("CLOCK_JUMP"), O_RDONLY) : -1;
  void *p = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  if (p != MAP_FAILED) jump = p;
}
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  int code = next(id, t);
  if (code == 0 && jump && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += *jump;
  return code;
}
"""


class ChaosAgent(FailoverAgent):
    def __init__(self, name, host, folder, segment, prefix, others, own_python):
        module = "mcctl_mooncake.store" if own_python else "mooncake.store"
        script = os.path.join(net.HERE, "chaos_agent.py")
        command = [peer.python(), script, module, f"etcd://{ADDRESS['etcd']}:2379", ADDRESS[host], str(segment), prefix, *others]
        env = dict(PYTHONUNBUFFERED="1", MC_RPC_TIMEOUT_MS="3000", **({"PYTHONPATH": own_python} if own_python else {}))
        self.process = Process(name, net.within(host, command), folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def signal(self, number):
        # The process is the program that was executed in the namespace.
        os.kill(self.process.pid, number)


class Chaos:
    def __init__(self, c, agents, args, folder):
        self.c, self.agents, self.args, self.rng = c, agents, args, random.Random(args.seed)
        self.counts, self.drops, self.exits, self.dropped = collections.Counter(), 0, collections.Counter(), set()
        self.asking, self.is_over = threading.Lock(), False
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()
        self.jump = os.path.join(folder, "clock")
        self.heals = []

    # The masters.
    def leader(self):
        return next((m for m in self.c.masters if not m.process.ended() and m.serving()), None)

    def synced(self):
        return [m for m in self.c.masters if not m.process.ended() and m.in_sync()]

    def later(self, seconds, what):
        self.heals.append((time.monotonic() + seconds, what))

    def heal_due(self, everything=False):
        now = time.monotonic()
        for entry in [e for e in self.heals if everything or e[0] <= now]:
            self.heals.remove(entry)
            entry[1]()
        if everything:
            wait("the processes that were asked to end", 90, lambda: self.heal_due() or not self.heals, 0.1)

    def restart(self, master):
        if master.process.ended():
            self.exits[master.process.p.returncode] += 1
            # It may have ended before its status was read.
            if master.process.pid not in self.dropped and "dropped all objects" in master.process.text():
                self.note_drop(master.process.pid)
            master.start()

    def end(self, master, process):
        """starts another process as soon as this one has ended"""
        if process.ended() or master.process is not process:
            return self.restart(master)
        self.later(0.2, lambda: self.end(master, process))

    def note_drop(self, pid):
        """tells the clients that a master has dropped all objects"""
        self.dropped.add(pid)
        self.drops += 1
        for agent in self.agents:
            agent.signal(signal.SIGCONT)
        threads = [threading.Thread(target=agent.ask, args=("drop",), kwargs=dict(seconds=180)) for agent in self.agents]
        with self.asking:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        # The new leader gives none of the segments that it has found to new objects for 600 s. The memory of a new process it does.
        self.c.node.process.end(signal.SIGKILL)
        self.c.node = FailoverAgent("node", self.c.folder, self.args.segment_mib * MIB)
        with contextlib.suppress(RuntimeError):
            self.c.node.wait_ready()

    def watch(self):
        while not self.is_over:
            for m in self.c.masters:
                pid, status = m.process.pid, m.status()
                if status.get("dropped_objects", 0) > 0 and pid not in self.dropped:
                    self.note_drop(pid)
            time.sleep(0.3)

    # The faults. Each returns a name, or None if it does not apply now.
    def end_leader(self, number, needs_standby=True):
        leader = self.leader()
        if leader is None or needs_standby and not self.synced():
            return None
        process = leader.process
        leader.signal(number)
        self.later(self.rng.uniform(1, 5), lambda: self.end(leader, process))
        return f"leader: {signal.Signals(number).name}"

    def step_down(self):
        leader = self.leader()
        if leader is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([self.args.binary, "master", "step-down", "--admin", f"{leader.address}:9003"], timeout=30,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return "step-down"

    def stop_master(self):
        leads = self.rng.random() < 0.5
        master = self.leader() if leads else self.rng.choice(self.c.masters)
        if master is None or master.process.ended():
            return None
        master.signal(signal.SIGSTOP)
        self.later(self.rng.choice([0.3, 1, 3, 8, 15]), lambda: None if master.process.ended() else master.signal(signal.SIGCONT))
        return "master stopped, as on a suspended host"

    def kill_standby(self):
        leader = self.leader()
        standbys = [m for m in self.c.masters if m is not leader and not m.process.ended()]
        if leader is None or not standbys:
            return None
        standby = self.rng.choice(standbys)
        standby.process.end(signal.SIGKILL)
        self.later(self.rng.uniform(0.5, 4), lambda: self.restart(standby))
        return "standby: SIGKILL"

    def kill_all_in_sync(self):
        """only a copy that may lack changes is left, or none"""
        leader, synced = self.leader(), self.synced()
        if leader is None or self.rng.random() < 0.7:
            return None
        for m in [*synced, leader]:
            m.process.end(signal.SIGKILL)
            self.later(self.rng.uniform(1, 30), lambda m=m: self.restart(m))
        return "leader and all standbys in sync: SIGKILL"

    def etcd(self):
        process = self.c.etcd.process
        if self.rng.random() < 0.5:
            process.p.send_signal(signal.SIGSTOP)
            self.later(self.rng.uniform(0.5, 6), lambda: process.p.send_signal(signal.SIGCONT))
            return "etcd stopped"
        process.end(signal.SIGKILL)
        self.later(self.rng.uniform(0.5, 6), self.c.etcd.start)
        return "etcd: SIGKILL"

    def cut(self):
        names = ["m0", "m1", "m2", "etcd", "client"]
        a, b = self.rng.sample(names, 2)
        one_way = self.rng.random() < 0.4
        if one_way:
            net.ip("-n", a, "route", "add", "blackhole", ADDRESS[b] + "/32", check=False)
        else:
            with contextlib.suppress(subprocess.CalledProcessError):
                net.cut(a, b)
        self.later(self.rng.uniform(0.5, 6), lambda: net.heal(a, b))
        return "cut in one direction" if one_way else "cut"

    def isolate(self):
        name = self.rng.choice(["m0", "m1", "m2"])
        net.isolate(name)
        self.later(self.rng.uniform(0.5, 6), lambda: net.reconnect(name))
        return "host without a network"

    def stop_client(self):
        agent = self.rng.choice(self.agents)
        agent.signal(signal.SIGSTOP)
        self.later(self.rng.uniform(0.3, 3), lambda: agent.signal(signal.SIGCONT))
        return "client stopped"

    def jump_clock(self):
        with open(self.jump, "r+b") as f:
            f.write(self.rng.choice([-3600, -5, 0, 5, 86400]).to_bytes(8, "little", signed=True))
        return "wall clock of all masters jumps"

    def run(self, seconds):
        faults = [lambda: self.end_leader(signal.SIGKILL), lambda: self.end_leader(signal.SIGTERM), self.step_down, self.stop_master,
                  self.kill_standby, self.kill_all_in_sync, self.etcd, self.cut, self.isolate, self.stop_client, self.jump_clock]
        end, next_fault, next_report = time.monotonic() + seconds, time.monotonic(), time.monotonic() + 60
        while time.monotonic() < end:
            self.heal_due()
            if time.monotonic() >= next_fault:
                name = self.rng.choice(faults)()
                if name:
                    self.counts[name] += 1
                next_fault = time.monotonic() + self.rng.choice([0.3, 2, 4, 6])
            if time.monotonic() >= next_report:
                next_report += 60
                log(f"{sum(self.counts.values())} faults, {self.drops} promotions that dropped all objects")
            time.sleep(0.05)
        self.heal_due(everything=True)
        for name in ADDRESS:
            net.reconnect(name)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=None)
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--own-python", metavar="DIR")
    p.add_argument("--promote-after", default="20s")
    p.add_argument("--json")
    args = p.parse_args()
    args.binary = os.path.abspath(args.binary or peer.mcctl())
    args.real, args.ack, args.oplog, args.segment_mib = False, "sync", False, 512
    args.flags = [f"--when-not-in-sync=promote-after={args.promote_after}"]
    net.network()
    folder = tempfile.mkdtemp(prefix="chaos-")
    source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "shim.so")
    with open(source, "w") as f:
        f.write(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=60)
    with open(os.path.join(folder, "clock"), "wb") as f:
        f.write(bytes(8))
    os.environ.update(CLOCK_JUMP=os.path.join(folder, "clock"))
    # Only the masters get the shim: it is in their command.
    program, args.binary = args.binary, os.path.join(folder, "mcctl-with-shim")
    with open(args.binary, "w") as f:
        f.write(f'#!/bin/sh\nLD_PRELOAD={library} exec {program} "$@"\n')
    os.chmod(args.binary, 0o755)
    c = HaCluster(args, folder, masters=3)
    agents = []
    try:
        c.start()
        c.client.process.end(signal.SIGKILL)
        names = [("real1", None), ("real2", None)] + ([("own1", args.own_python), ("own2", args.own_python)] if args.own_python else [])
        for name, own in names:
            others = [other for other, _ in names if other != name]
            agents.append(ChaosAgent(name, "client", folder, 0, name, others, own and os.path.abspath(own)))
        for agent in agents:
            agent.wait_ready()
            agent.ask("load")
        chaos = Chaos(c, agents, args, folder)
        chaos.run(60 * args.minutes)
        for m in c.masters:
            chaos.restart(m)
            with contextlib.suppress(ProcessLookupError):
                m.signal(signal.SIGCONT)
        wait("a leader", 120, chaos.leader)
        time.sleep(5)
        chaos.is_over = True
        chaos.watcher.join()
        result = dict(minutes=args.minutes, seed=args.seed, faults=dict(chaos.counts), exits=dict(chaos.exits), lossy_promotions=chaos.drops,
                      clients={})
        for (name, _), agent in zip(names, agents):
            stopped = agent.ask("stop", seconds=180)
            checked = agent.ask("check", seconds=120, patience=60)
            result["clients"][name] = dict(stopped=stopped, checked=checked)
        print(json.dumps(result, indent=1))
        if args.json:
            with open(args.json, "w") as f:
                json.dump(result, f, indent=1)
        wrong = [p for r in result["clients"].values() for p in r["checked"].get("problems", ["no answer"])]
        lost = sum(r["checked"].get("lost", 1) for r in result["clients"].values())
        log(f"RESULT wrong {len(wrong)}, lost {lost}, faults {sum(chaos.counts.values())}; logs in {folder}")
        return 1 if wrong or lost else 0
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                agent.signal(signal.SIGCONT)
            agent.process.end(signal.SIGKILL)
        c.stop()


if __name__ == "__main__":
    sys.exit(main())
