#!/usr/bin/env python3
"""Restarts a master that keeps its state, under load, and measures how soon which keys are readable again.

  restart.py --binary MCCTL [--keys 1000000] [--modes always,interval,never] [--signals KILL,TERM] [--rounds 3] [--json FILE]
             [--parts restart,memory,real] [--no-data-dir] [--dir DIR]

Nodes: the wheel's Python client with a segment, and `mcctl serve store`; each holds half of the keys. Values are real (64 to 512 bytes) and
name their key. Every 50th key is hard-pinned, and the segments are so large that nothing is evicted: a missing key is lost.
Load during each restart: the wheel's client puts new keys and reads them. Every acknowledged put must be readable afterwards.

Times count from the start of the new process (exec):
  port          a TCP connection is accepted, and ServiceReady answered
  first get     GetReplicaList of a known key is answered with its replicas, per node; first ping: when the node's first Ping arrived
  sampled       GetReplicaList of 2000 keys of both nodes is answered with their replicas
  all           a complete pass of BatchExistKey over all keys has found every key
  verified      the wheel's client has read all hard-pinned keys and compared the values (includes the time that reading takes)

Part `memory` compares the master's memory with and without a data directory. Part `real` restarts the real master with its snapshots.
`--no-data-dir` measures a master without a data directory, to test this program: all keys are lost.
"""
import argparse, json, os, shutil, subprocess, sys, threading, time

import common, rpc, values
from common import MIB, Agent, Master, Result, log, median_worst, peer, wait

LOW, HIGH = 64, 512
PIN_EVERY = 50
SAMPLE = 2000
LEASE_SECONDS = 10


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True, help="path of mcctl")
    ap.add_argument("--keys", type=int, default=1_000_000)
    ap.add_argument("--modes", default="always,interval,never")
    ap.add_argument("--signals", default="KILL,TERM")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--parts", default="restart,memory,real")
    ap.add_argument("--snapshot-seconds", type=int, default=60, help="spacing of the snapshots")
    ap.add_argument("--real-keys", type=int, default=100_000)
    ap.add_argument("--load-threads", type=int, default=4)
    ap.add_argument("--load-limit", type=int, default=60_000, help="keys that the load puts per restart")
    ap.add_argument("--load-seconds", type=float, default=2, help="load before the signal and after the restart")
    ap.add_argument("--recover-seconds", type=float, default=30, help="how long to wait for keys after a restart")
    ap.add_argument("--no-data-dir", action="store_true")
    ap.add_argument("--dir", help="working directory; kept")
    ap.add_argument("--json")
    return ap.parse_args()


class Keys:
    """the expected keys: numbers 0 to N-1, the first half on the wheel's node, the second on mcctl's"""

    def __init__(self, count):
        self.count, self.half = count, count // 2
        self.names = [values.key_of("k", n) for n in range(count)]
        self.expected = bytearray(b"\1" * count)
        self.frames, self.slices = [], []
        for i in range(0, count, 250):
            self.frames.append(rpc.batch_exist(self.names[i:i + 250]))
            self.slices.append((i, min(i + 250, count)))
        step = max(1, count // SAMPLE)
        self.sample = list(range(0, count, step))
        self.sample_frames = {n: rpc.get_replica_list(self.names[n]) for n in self.sample}

    def missing(self, connection):
        """the expected keys that the master does not have, by a complete pass"""
        out = []
        for (begin, end), body in zip(self.slices, connection.pipeline(self.frames)):
            for n, found in zip(range(begin, end), rpc.exist_flags(body)):
                if not found and self.expected[n]:
                    out.append(n)
        return out

    def unreadable(self, connection, numbers):
        bodies = connection.pipeline([self.sample_frames[n] for n in numbers])
        return [n for n, body in zip(numbers, bodies) if not rpc.ok(body)]

    def drop(self, numbers):
        for n in numbers:
            self.expected[n] = 0
        self.sample = [n for n in self.sample if self.expected[n]]


class Cluster:
    """a master, both nodes, and the wheel's client that fills and verifies"""

    def __init__(self, args, folder, master, keys):
        self.args, self.master, self.keys = args, master, keys
        self.listener = rpc.PingListener(master.rpc)
        master.start_ready()
        segment = (keys.count // 2 * 576 * 5 // 4 // (16 * MIB) + 8) * 16 * MIB
        self.node = Agent(folder, "wheel-node", master, segment)
        wheel_segments = wait("the wheel's segment", 30, master.segments)
        self.owners = {"wheel": self.new_clients(set())}
        self.own, _ = common.own_node(args.binary, master, folder, "own-node", segment)
        segments = wait("mcctl's segment", 60, lambda: len(master.segments()) == 2 and master.segments())
        self.owners["own"] = self.new_clients(self.owners["wheel"])
        self.own_segment = next(s for s in segments if s not in wheel_segments)
        self.wheel_segment = wheel_segments[0]
        self.client = Agent(folder, "wheel-client", master)

    def new_clients(self, known):
        """the clients that have pinged, apart from the known ones"""
        if not self.listener.s:
            return set()
        return wait("a ping", 20, lambda: set(self.listener.seen) - known)

    def fill(self):
        k, t = self.keys, time.monotonic()
        arguments = dict(prefix="k", low=LOW, high=HIGH, pin_every=PIN_EVERY)
        first = self.node.ask("fill", first=0, count=k.half, preferred=self.wheel_segment, **arguments)
        second = self.client.ask("fill", first=k.half, count=k.count - k.half, preferred=self.own_segment, **arguments)
        out = dict(seconds=round(time.monotonic() - t, 1), failed=first["failed"] + second["failed"],
                   pinned=first["pinned"] + second["pinned"], wheel_node=first, own_node=second)
        with rpc.Rpc(self.master.rpc) as c:
            missing = k.missing(c)
        if missing:
            log(f"{len(missing)} keys are missing after the fill; they are not expected later")
            k.drop(missing)
        out["missing_after_fill"] = len(missing)
        return out

    def verify_pinned(self, seconds):
        """All hard-pinned keys, by value. Repeats while some cannot be read."""
        end = time.monotonic() + seconds
        while True:
            found = self.client.ask("verify", prefix="k", first=0, count=self.keys.count, low=LOW, high=HIGH, step=PIN_EVERY)
            if found["wrong"] or not found["missing"] or time.monotonic() > end:
                return found

    def stop(self):
        self.listener.stop()
        for p in (self.client.process, self.node.process, self.own, self.master.process):
            p.stop()


def exec_to_port(process, port, seconds):
    """seconds until ServiceReady is answered"""
    while time.monotonic() - process.t0 < seconds:
        if process.ended():
            raise RuntimeError(f"the master exited with {process.p.returncode}:\n{process.text()[-2000:]}")
        try:
            c = rpc.Rpc(port, 5)
            if rpc.ok(c.call(rpc.request("ServiceReady"))):
                return time.monotonic() - process.t0, c
            c.close()
        except OSError:
            pass
        time.sleep(0.001)
    raise RuntimeError(f"the port did not answer within {seconds} s")


def restart(cluster, how, seconds):
    """stops and starts the master; the times"""
    k, master = cluster.keys, cluster.master
    out = dict(signal=how, rss_before_kb=peer.rss_kb(master.process.pid), high_water_before_kb=common.status_kb(master.process.pid, "VmHWM"))
    if cluster.directory:
        out["disk_before"] = common.directory_size(cluster.directory)
    before = master.metrics()
    out["hold_max_before_s"] = before.get("mcctl_master_state_hold_max_seconds")
    out["stop_s"] = round(master.process.end(common.SIGNALS[how], 120), 3)
    out["stop_code"] = master.process.p.returncode
    cluster.listener.clear()
    process = master.start()
    port_s, c = exec_to_port(process, master.rpc, seconds)
    out.update(port_s=round(port_s, 4), start_cpu_s=round(common.cpu_s(process.pid), 4))
    try:
        # one key of each node, until the first answer with replicas
        samples = {"wheel": [n for n in k.sample if n < k.half], "own": [n for n in k.sample if n >= k.half]}
        waiting = {owner: numbers[0] for owner, numbers in samples.items() if numbers}
        out["first_get_s"] = {}
        while waiting and time.monotonic() - process.t0 < seconds:
            for owner, n in list(waiting.items()):
                if rpc.ok(c.call(k.sample_frames[n])):
                    out["first_get_s"][owner] = round(time.monotonic() - process.t0, 4)
                    del waiting[owner]
            time.sleep(0.002)
        unreadable = list(k.sample)
        while unreadable and time.monotonic() - process.t0 < seconds:
            unreadable = k.unreadable(c, unreadable)
            if unreadable:
                time.sleep(0.005)
        out["sampled_s"] = None if unreadable else round(time.monotonic() - process.t0, 4)
        passes = 0
        while True:
            begin = time.monotonic()
            missing = k.missing(c)
            passes += 1
            now = time.monotonic() - process.t0
            if not missing or now > seconds:
                break
            time.sleep(0.1)
        out.update(all_s=None if missing else round(now, 4), exist_passes=passes, exist_pass_s=round(time.monotonic() - begin, 4),
                   lost=len(missing), lost_pinned=sum(n % PIN_EVERY == 0 for n in missing))
    finally:
        c.close()
    # A Ping to the connection of the old process does not count.
    first = {owner: cluster.listener.first(ids, process.t0 + port_s - 0.005) for owner, ids in cluster.owners.items()}
    out["first_ping_s"] = {owner: round(t - process.t0, 4) for owner, t in first.items() if t}
    pinned = cluster.verify_pinned(max(0, seconds - (time.monotonic() - process.t0)))
    out["verified_s"] = round(time.monotonic() - process.t0, 3)
    out["pinned_by_value"] = pinned
    out["rss_after_kb"] = peer.rss_kb(process.pid)
    out["high_water_after_kb"] = common.status_kb(process.pid, "VmHWM")
    out["log"] = [line for line in process.text().splitlines() if any(w in line.lower() for w in ("recover", "snapshot", "torn", "warn"))][:8]
    k.drop(missing)
    return out


def measured_restart(cluster, args, number, how):
    """a restart under load, and what became of the load's keys"""
    cluster.client.ask("load", prefix=f"load-{number}-", threads=args.load_threads, low=LOW, high=HIGH, limit=args.load_limit)
    time.sleep(args.load_seconds)
    # The agent answers one command at a time, but the load's threads run meanwhile.
    row = restart(cluster, how, args.recover_seconds)
    time.sleep(args.load_seconds)
    row["load"] = cluster.client.ask("stop")
    # What was acknowledged shortly before a signal must be readable, too.
    row["load_by_value"] = cluster.client.ask("check_load")
    row["load_cleared"] = cluster.client.ask("clear_load")
    return row


def disk_figures(cluster):
    size = common.directory_size(cluster.directory)
    n = cluster.keys.count
    return dict(size, bytes_per_key_used=round(size["used"] / n, 1), bytes_per_key_allocated=round(size["allocated"] / n, 1),
                listing=sorted(os.listdir(cluster.directory)))


def part_restart(args, result, root):
    keys = Keys(args.keys)
    modes = args.modes.split(",")
    rows, cluster, number = [], None, 0
    try:
        for mode in modes:
            flags = [] if args.no_data_dir else common.data_flags(os.path.join(root, "data"), mode, args.snapshot_seconds)
            if cluster is None:
                cluster = Cluster(args, root, Master(args.binary, root, flags), keys)
                cluster.directory = None if args.no_data_dir else os.path.join(root, "data")
                fill = cluster.fill()
                log(f"filled {args.keys} keys in {fill['seconds']} s ({fill['failed']} failed)")
                fill["rss_kb"] = peer.rss_kb(cluster.master.process.pid)
                if cluster.directory:
                    fill["disk"] = disk_figures(cluster)
                result.save(fill=fill)
            else:
                cluster.master.flags = flags
                row = restart(cluster, "TERM", args.recover_seconds)
                log(f"changed to --fsync {mode}: lost {row['lost']}")
                rows.append(dict(row, mode=mode, counted=False))
            for r in range(args.rounds):
                for how in args.signals.split(","):
                    number += 1
                    row = measured_restart(cluster, args, number, how)
                    rows.append(dict(row, mode=mode, round=r, counted=True))
                    log(f"{mode} {how} round {r + 1}: port {row['port_s']} first get {row['first_get_s']} (ping {row['first_ping_s']}) "
                        f"all {row['all_s']} lost {row['lost']} load {row['load']['acknowledged']} acknowledged, "
                        f"{row['load_by_value']['missing']} missing, {row['load_by_value']['wrong']} wrong")
                    result.save(restarts=rows, summary=summary(rows))
            if cluster.directory:
                result.save(**{f"disk_after_{mode}": disk_figures(cluster)})
    finally:
        if cluster:
            cluster.stop()


def summary(rows):
    out = {}
    for row in rows:
        if not row["counted"]:
            continue
        g = out.setdefault(f"{row['mode']} {row['signal']}", {})
        for name in ("port_s", "start_cpu_s", "sampled_s", "all_s", "verified_s", "stop_s", "exist_pass_s"):
            g.setdefault(name, []).append(row[name])
        gets = row["first_get_s"]
        g.setdefault("first_get_s", []).append(min(gets.values(), default=None))
        for owner in ("wheel", "own"):
            g.setdefault(f"first_get_{owner}_s", []).append(gets.get(owner))
            g.setdefault(f"first_ping_{owner}_s", []).append(row["first_ping_s"].get(owner))
        g.setdefault("lost", []).append(row["lost"])
        g.setdefault("load_missing", []).append(row["load_by_value"]["missing"])
        g.setdefault("wrong_values", []).append(row["load_by_value"]["wrong"] + row["pinned_by_value"]["wrong"] + row["load"]["wrong"])
        g.setdefault("load_longest_gap_s", []).append(max(row["load"]["longest_gap_s"].values()))
        g.setdefault("memory_ratio", []).append(round(row["rss_after_kb"] / row["rss_before_kb"], 3))
        g.setdefault("highest_memory_ratio", []).append(round(row["high_water_after_kb"] / row["rss_before_kb"], 3))
    return {name: {k: median_worst(v) for k, v in g.items()} for name, g in out.items()}


def part_memory(args, result, root):
    """memory of a master without and with a data directory, the same keys on paper segments"""
    rows = []
    generator = peer.build("mrpcload.c")
    for r in range(args.rounds):
        for name in ("off", "on"):
            data = os.path.join(root, "memory-data")
            shutil.rmtree(data, ignore_errors=True)
            master = Master(args.binary, root, common.data_flags(data, "interval", 5) if name == "on" else [], name=f"memory-{name}")
            process = master.start_ready()
            empty = peer.rss_kb(process.pid)
            p = subprocess.Popen([generator, "--addr", master.address, "--segments", "8", f"bput:4:1:{args.keys}", "sleep:12"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                filled = json.loads(p.stdout.readline())
                rss = peer.rss_kb(process.pid)
                highest, end = 0, time.monotonic() + 11   # two snapshots fit
                while time.monotonic() < end:
                    highest = max(highest, peer.rss_kb(process.pid))
                    time.sleep(0.02)
                rows.append(dict(name=name, round=r, keys=args.keys, empty_kb=empty, filled_kb=rss, settled_kb=peer.rss_kb(process.pid),
                                 highest_kb=max(rss, highest, common.status_kb(process.pid, "VmHWM")), fill_s=filled["secs"],
                                 errors=filled["errors"], disk=common.directory_size(data) if name == "on" else None))
            finally:
                p.terminate()
                p.wait(10)
                process.stop()
            log(f"memory {name}: {rows[-1]['filled_kb'] / 1024:.0f} MiB after the fill, at most {rows[-1]['highest_kb'] / 1024:.0f} MiB")
    ratio = {}
    for field in ("filled_kb", "settled_kb", "highest_kb"):
        pairs = [(on[field], off[field]) for on in rows for off in rows if (on["name"], off["name"]) == ("on", "off") and on["round"] == off["round"]]
        ratio[field] = median_worst([on / off for on, off in pairs])
    result.save(memory=dict(rows=rows, ratio_on_off=ratio))


def part_real(args, result, root):
    """The real master with its snapshots. It restores only keys whose read lease has not expired, so how long ago they were read matters."""
    rows = []
    for how, idle in (("TERM", 0), ("TERM", LEASE_SECONDS + 1), ("KILL", LEASE_SECONDS + 1)):
        path = os.path.join(root, f"real-{how}-{idle}")
        os.makedirs(path)
        flags = ["--enable_snapshot=true", "--enable_snapshot_restore=true", "--snapshot_interval_seconds=5",
                 "--snapshot_object_store_type=local", "--minloglevel=0"]
        master = Master(os.path.join(peer.peer(), "mooncake_master"), path, flags, env=dict(MOONCAKE_SNAPSHOT_LOCAL_PATH=os.path.join(path, "snapshots")),
                        name="real-master", real=True)
        keys = Keys(args.real_keys)
        os.makedirs(os.path.join(path, "snapshots"))
        cluster = Cluster(args, path, master, keys)
        cluster.directory = os.path.join(path, "snapshots")
        try:
            filled = cluster.fill()
            time.sleep(idle)
            end = time.time() + 0.5
            wait("a snapshot", 60, lambda: newest_real_snapshot(cluster.directory) > end, 0.2)
            time.sleep(1)
            row = measured_restart(cluster, args, 1, how)
            rows.append(dict(row, keys=args.real_keys, idle_s=idle, fill=filled, restore_log=[line for line in cluster.master.process.text().splitlines() if "estore" in line][:6]))
            log(f"the real master, {how}, keys not read for {idle} s: lost {row['lost']} of {args.real_keys}")
        finally:
            cluster.stop()
    result.save(real=rows)


def newest_real_snapshot(folder):
    newest = 0
    for root, _, names in os.walk(folder):
        newest = max([newest, *(os.path.getmtime(os.path.join(root, n)) for n in names if n == "latest.txt")])
    return newest


def main():
    args = parse()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-restart.")
    parts = dict(restart=part_restart, memory=part_memory, real=part_real)
    for name in args.parts.split(","):
        parts[name](args, result, root)
    result.save()
    if "summary" in result.d:
        rows = [[name, metric, f["median"], f["worst"]] for name, g in result.d["summary"].items() for metric, f in g.items() if f]
        print(peer.table(rows, ["mode, signal", "figure", "median", "worst"]))
    if "memory" in result.d:
        print(json.dumps(result.d["memory"]["ratio_on_off"]))
    for row in result.d.get("real", []):
        print(f"real master, {row['signal']}, keys not read for {row['idle_s']} s before the snapshot: lost {row['lost']} of {row['keys']} keys; port after {row['port_s']} s")


if __name__ == "__main__":
    main()
