"""Masters, etcd, a node and a client, each in a network namespace of its own, so that any two can be cut from each other."""
import contextlib, http.client, json, os, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "restart"), os.path.join(os.path.dirname(HERE), "peers")]
import common, peer  # noqa: E402
from common import MIB, Process, log, wait  # noqa: E402

ADDRESS = dict(m0="10.99.0.1", m1="10.99.0.2", m2="10.99.0.3", client="10.99.0.50", node="10.99.0.60", etcd="10.99.0.100")
RPC, ADMIN, HA = 50051, 9003, 50061


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, timeout=10, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


def network():
    """a bridge with a port for each namespace; runs in a namespace that ends with this program"""
    if os.environ.get("FAILOVER_NETWORK") != "own":
        os.environ["FAILOVER_NETWORK"] = "own"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True, timeout=10)
    ip("link", "set", "lo", "up")
    ip("link", "add", "hub", "type", "bridge")
    ip("addr", "add", "10.99.0.254/24", "dev", "hub")
    ip("link", "set", "hub", "up")
    for name, address in ADDRESS.items():
        ip("netns", "add", name)
        ip("link", "add", "v" + name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", "v" + name, "master", "hub", "up")
        ip("-n", name, "addr", "add", address + "/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        # The wheel opens a connection for each transfer, so that a fast client soon has no ports left.
        setting = "sysctl -q net.ipv4.ip_local_port_range='1024 65000' net.ipv4.tcp_tw_reuse=1"
        subprocess.run(within(name, ["sh", "-c", setting]), check=True, timeout=10)


def cut(a, b):
    """drops every packet between two of them"""
    for one, other in ((a, b), (b, a)):
        ip("-n", one, "route", "add", "blackhole", ADDRESS[other] + "/32")


def heal(a, b):
    for one, other in ((a, b), (b, a)):
        ip("-n", one, "route", "del", "blackhole", ADDRESS[other] + "/32", check=False)


def isolate(name):
    ip("link", "set", "v" + name, "down")


def reconnect(name):
    ip("link", "set", "v" + name, "up")


def within(name, command):
    return ["ip", "netns", "exec", name, *command]


class Etcd:
    def __init__(self, folder):
        self.folder, self.data = folder, os.path.join(folder, "etcd-data")
        self.start()

    def start(self):
        url, peer_url = f"http://{ADDRESS['etcd']}:2379", "http://127.0.0.1:2380"
        self.process = Process("etcd", within("etcd", [
            "/usr/bin/etcd", "--name", "e", "--data-dir", self.data, "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url, "--initial-cluster", "e=" + peer_url]), self.folder)

    def healthy(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return get(ADDRESS["etcd"], 2379, "/health")[0] == 200


def get(host, port, path, seconds=1.0):
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class HaMaster:
    """a master of the cluster, ours or the real one"""

    def __init__(self, name, args, folder, number=0):
        self.name, self.args, self.folder, self.address, self.number = name, args, folder, ADDRESS[name], number
        self.process = None

    def start(self, binary=None):
        self.number += 1
        etcd = f"{ADDRESS['etcd']}:2379"
        common_flags = [f"--rpc_address={self.address}", f"--rpc_port={RPC}", f"--metrics_port={ADMIN}", "--default_kv_lease_ttl=5000"]
        if self.args.real:
            command = [os.path.join(peer.peer(), "mooncake_master"), "--enable_ha=true", "--ha_backend_type=etcd",
                       f"--ha_backend_connstring={etcd}", f"--enable_oplog={'true' if self.args.oplog else 'false'}", "--logtostderr=1"]
        else:
            command = [binary or self.args.binary, "serve", "master", "--enable_ha", f"--etcd_endpoints={etcd}", f"--ha-port={HA}",
                       f"--ha-ack={self.args.ack}", "--metrics_host=0.0.0.0", *self.args.flags]
            if getattr(self.args, "data", False):
                command.append("--data-dir=" + os.path.join(self.folder, "data-" + self.name))
        self.process = Process(f"{self.name}-{self.number}", within(self.name, [*command, *common_flags]), self.folder)
        return self

    def signal(self, number):
        os.kill(self.process.pid, number)

    def status(self):
        """ours: the document of /ha_status; {} if it does not answer"""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return json.loads(get(self.address, ADMIN, "/ha_status?format=json")[1])
        return {}

    def serving(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.args.real:
                return get(self.address, ADMIN, "/ha_status", 0.2)[1].strip() == "serving"
            return get(self.address, ADMIN, "/ready", 0.2)[0] == 200
        return False

    def in_sync(self):
        if self.args.real:
            return True
        status = self.status()
        return bool(status.get("in_sync")) and not status.get("serving")


class FailoverAgent:
    """agent.py in the namespace of `name`"""

    def __init__(self, name, folder, segment=0, env=None):
        script = os.path.join(HERE, "agent.py")
        master = f"etcd://{ADDRESS['etcd']}:2379"
        command = [peer.python(), script, master, ADDRESS[name], str(segment), str(256 * MIB)]
        self.process = Process(name, within(name, command), folder, env=dict(PYTHONUNBUFFERED="1", **(env or {})),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait_ready(self):
        answer = self.answer(60)
        if answer.get("setup") != 0:
            raise RuntimeError(f"{self.process.name}: setup returned {answer}; see {self.process.path}")

    answer, ask = common.Agent.answer, common.Agent.ask


class HaCluster:
    """masters, etcd, a node and a client; `stop` ends what `start` has started, even if it failed"""

    def __init__(self, args, folder, masters=2, env=None):
        self.args, self.folder, self.env = args, folder, env
        self.etcd = self.node = self.client = None
        self.masters = [HaMaster(f"m{i}", args, folder) for i in range(masters)]
        self.leader = self.masters[0]

    def start(self):
        self.etcd = Etcd(self.folder)
        wait("etcd", 20, self.etcd.healthy)
        self.leader.start()
        wait("a leader", 30, self.leader.serving)
        for standby in self.standbys:
            standby.start()
        self.wait_in_sync()
        self.node = FailoverAgent("node", self.folder, self.args.segment_mib * MIB, self.env)
        self.node.wait_ready()
        self.client = FailoverAgent("client", self.folder, 0, self.env)
        self.client.wait_ready()

    @property
    def standbys(self):
        return [m for m in self.masters if m is not self.leader]

    def wait_in_sync(self, seconds=120):
        if self.args.real:
            time.sleep(3)
        for standby in self.standbys:
            wait(f"{standby.name} in sync", seconds, standby.in_sync)

    def stop(self):
        for agent in (self.client, self.node):
            if agent:
                agent.process.end(signal.SIGKILL)
        for master in self.masters:
            if master.process and not master.process.ended():
                with contextlib.suppress(ProcessLookupError):
                    master.signal(signal.SIGCONT)
                master.process.end(signal.SIGKILL)
        if self.etcd:
            self.etcd.process.end(signal.SIGKILL)
        for name in ADDRESS:
            reconnect(name)
            for other in ADDRESS:
                if name < other:
                    heal(name, other)
