"""Shared helpers of the performance drivers (standard library only).

peer()            folder of the installed Mooncake wheel's package (tests/peers/install brings it on first use)
mcctl()           our release binary (MCCTL_BIN, or built by cargo on first use)
build(src)        compile one of the C helpers, returns the binary's path
KEEP_AWAKE=1      a process of the idle class spins on each CPU meanwhile, so that a wakeup costs what it costs on a CPU that
                  does not halt: under a hypervisor, halting and waking cost more than most requests, for whatever program
Server(name, command_template)   start / stop a server process; {rpc} {http} {metrics} {peer} {mcctl} {tools} {python} are filled in
"""
import atexit, functools, glob, os, re, shlex, signal, socket, statistics, subprocess, sys, time, urllib.request

signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))  # so that `timeout` lets the finally blocks stop the servers
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


# gives way to everybody else (class idle, nice 19), and ends with its parent
SPIN = "import os; os.nice(19); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); p = os.getppid()\n" \
       "while os.getppid() == p:\n for _ in range(10**5): pass"


def keep_awake():
    for n in os.sched_getaffinity(0):
        p = subprocess.Popen([sys.executable, "-c", SPIN], preexec_fn=lambda n=n: os.sched_setaffinity(0, [n]))
        atexit.register(p.kill)


if os.environ.get("KEEP_AWAKE") == "1":
    keep_awake()


@functools.cache
def venv():
    script = os.path.join(ROOT, "tests", "peers", "install")
    subprocess.run([script], check=True, timeout=1800)
    d = subprocess.run([script, "--print"], check=True, capture_output=True, text=True).stdout.strip()
    env = os.path.join(d, "peer.env")  # where the system lacks a library that the wheel needs
    if os.path.exists(env):
        os.environ["LD_LIBRARY_PATH"] = re.search(r'"(.*?)\$', open(env).read()).group(1)
    return d


def python():
    return os.path.join(venv(), "bin", "python")


def peer():
    return glob.glob(os.path.join(venv(), "lib", "python3*", "site-packages", "mooncake"))[0]


@functools.cache
def mcctl():
    given = os.environ.get("MCCTL_BIN")
    if given:
        return given
    subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "mcctl"], cwd=ROOT, check=True, timeout=3600)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "mcctl")


def build(src, *libs):
    out = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "bench-peers", os.path.splitext(src)[0])
    s = os.path.join(HERE, src)
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(s):
        os.makedirs(os.path.dirname(out), exist_ok=True)
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-march=native", "-o", out, s, "-lpthread", *libs],
                       check=True, timeout=120)
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu(pid):
    """user+system CPU seconds of a process so far"""
    with open(f"/proc/{pid}/stat") as f:
        p = f.read().rsplit(")", 1)[1].split()
    return (int(p[11]) + int(p[12])) / os.sysconf("SC_CLK_TCK")


def rss_kb(pid):
    with open(f"/proc/{pid}/status") as f:
        for l in f:
            if l.startswith("VmRSS"):
                return int(l.split()[1])
    return 0


def busy():
    """busy CPU seconds of the whole machine, without what is niced"""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (v[0] + v[2] + v[5] + v[6] + v[7]) / os.sysconf("SC_CLK_TCK")


def quiet(limit=0.35, timeout=None):
    """wait until the rest of the machine uses fewer than `limit` CPUs, for at most `timeout` seconds (env QUIET_WAIT, default 10)"""
    timeout = float(os.environ.get("QUIET_WAIT", "10")) if timeout is None else timeout
    end = time.monotonic() + timeout
    while timeout > 0:
        b = busy()
        time.sleep(0.25)
        if (busy() - b) / 0.25 < limit or time.monotonic() > end:
            return


def quieter(v):
    """the less disturbed half of repeated samples (they carry others_cpu)"""
    v = sorted(v, key=lambda d: d.get("others_cpu") or 0)
    return v[:(len(v) + 1) // 2]


class Server:
    def __init__(self, name, template, log=None, env=None, **kw):
        self.name = name
        self.ports = dict(rpc=free_port(), http=free_port(), metrics=free_port())
        self.ports.update(kw)
        fill = dict(self.ports, tools=HERE)
        for k, f in (("peer", peer), ("python", python), ("mcctl", mcctl)):
            if "{%s}" % k in template:
                fill[k] = f()
        if "{mrpcload}" in template:
            fill["mrpcload"] = build("mrpcload.c")
        if "{limits}" in template:
            fill["limits"] = build("limits.c")
        self.cmd = shlex.split(template.format(**fill))
        self.log = open(log or os.devnull, "ab")
        self.env = dict(os.environ, **(env or {}))

    def __enter__(self):
        self.t0 = time.monotonic()
        self.p = subprocess.Popen(self.cmd, stdout=self.log, stderr=self.log, env=self.env, start_new_session=True)
        self.pid = self.p.pid
        return self

    def wait_port(self, port, secs=20):
        end = time.monotonic() + secs
        while time.monotonic() < end:
            if self.p.poll() is not None:
                raise RuntimeError(f"{self.name}: exited with {self.p.returncode}: {self.cmd}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return time.monotonic() - self.t0
            except OSError:
                time.sleep(0.002)
        raise RuntimeError(f"{self.name}: port {port} never opened")

    def __exit__(self, *a):
        if self.p.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.p.wait(10)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)
                self.p.wait(10)
        self.log.close()


REAL_MASTER = ("{peer}/mooncake_master --rpc_address=127.0.0.1 --rpc_port={rpc} --metrics_host=127.0.0.1 "
               "--metrics_port={metrics} --logtostderr=1 --minloglevel=1")
OURS_MASTER = ("{mcctl} serve master --rpc_address=127.0.0.1 --rpc_port={rpc} --metrics_host=127.0.0.1 --metrics_port={metrics}")
FLOOR_MASTER = "{mrpcload} --serve {rpc}"
MASTERS = {"real": REAL_MASTER, "ours": OURS_MASTER, "floor": FLOOR_MASTER}


def parse_servers(items, default):
    """["name=command", ...] -> [(name, command)]"""
    out = []
    for it in items or default:
        n, _, c = it.partition("=")
        out.append((n, MASTERS.get(c or n, c)))
    return out


def wait_segments(port, n, secs=20):
    """until a master's admin port lists n segments"""
    end = time.monotonic() + secs
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/get_all_segments", timeout=5) as r:
                if len(r.read().split()) >= n:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"no {n} segments within {secs} s")


def scrape(port):
    """the Prometheus page as {line without value: value}; {} when there is none"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as r:
            text = r.read().decode(errors="replace")
    except OSError:
        return {}
    out = {}
    for line in text.splitlines():
        if line and line[0] != "#":
            k, _, v = line.rpartition(" ")
            try:
                out[k] = float(v)
            except ValueError:
                pass
    return out


def med(v):
    v = [x for x in v if x is not None]
    return statistics.median(v) if v else float("nan")


def table(rows, head):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    out += ["| " + " | ".join(str(c) for c in r) + " |" for r in rows]
    return "\n".join(out)
