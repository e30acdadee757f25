"""Shared helpers of the restart measurements (standard library only): processes, ports, a data directory's size, results.

Programs are stopped by their process ID. All ports are on loopback and below the ephemeral range, so that no outgoing connection can occupy
a master's port while the master is away.
"""
import atexit, json, os, random, re, select, shutil, signal, socket, statistics, struct, subprocess, sys, tempfile, threading, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "peers"))
import peer  # noqa: E402
import rpc  # noqa: E402

MIB = 1 << 20
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def log(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def port():
    """a free port outside the range that the kernel gives to outgoing connections"""
    low = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
    for _ in range(200):
        n = random.randrange(20000, min(low, 32768))
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", n))
                return n
            except OSError:
                pass
    raise RuntimeError("no free port between 20000 and the ephemeral range")


class Process:
    """a program with its log file; stopped at exit if it still runs"""

    def __init__(self, name, command, folder, env=None, stdin=None, stdout=None, **options):
        self.name, self.command, self.path = name, command, os.path.join(folder, name + ".log")
        self.log = open(self.path, "ab")
        self.log_begin = self.log.tell()
        self.t0 = time.monotonic()
        self.p = subprocess.Popen(command, stdin=stdin or subprocess.DEVNULL, stdout=stdout or self.log, stderr=self.log,
                                  env=dict(os.environ, **(env or {})), start_new_session=True, **options)
        self.pid = self.p.pid
        atexit.register(self.stop)

    def text(self):
        """what this process has written to its log"""
        with open(self.path, "rb") as f:
            f.seek(self.log_begin)
            return f.read().decode(errors="replace")

    def ended(self):
        return self.p.poll() is not None

    def end(self, how, seconds=60):
        """sends a signal and waits; returns the seconds until the process had ended"""
        t = time.monotonic()
        if not self.ended():
            os.kill(self.pid, how)
            try:
                self.p.wait(seconds)
            except subprocess.TimeoutExpired:
                log(f"{self.name}: still running {seconds} s after signal {how}; killing it")
                os.kill(self.pid, signal.SIGKILL)
                self.p.wait(10)
        return time.monotonic() - t

    def stop(self):
        atexit.unregister(self.stop)
        self.end(signal.SIGTERM, 30)
        if not self.log.closed:
            self.log.close()


class Master:
    """A master that is started, stopped and started again with the same command. Between starts, `flags` may change."""

    def __init__(self, program, folder, flags=(), env=None, name="master", real=False):
        self.program, self.folder, self.flags, self.env, self.name, self.real = program, folder, list(flags), env, name, real
        self.rpc, self.admin = port(), port()
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.rpc}"

    def command(self):
        first = [self.program] if self.real else [self.program, "serve", "master"]
        more = ["--logtostderr=1"] if self.real else []
        return [*first, "--rpc_address=127.0.0.1", f"--rpc_port={self.rpc}", "--metrics_host=127.0.0.1", f"--metrics_port={self.admin}",
                *more, *self.flags]

    def start(self, **options):
        self.process = Process(self.name, self.command(), self.folder, self.env, **options)
        return self.process

    def start_ready(self, seconds=60, **options):
        """starts it and waits until it answers"""
        process = self.start(**options)
        end = time.monotonic() + seconds
        while not rpc.ready(self.rpc):
            if process.ended():
                raise RuntimeError(f"{self.name} exited with {process.p.returncode}:\n{process.text()[-2000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not answer after {seconds} s:\n{process.text()[-2000:]}")
            time.sleep(0.005)
        return process

    def metrics(self):
        return peer.scrape(self.admin)

    def segments(self):
        return peer_lines(f"http://127.0.0.1:{self.admin}/get_all_segments")


def peer_lines(url):
    with urllib.request.urlopen(url, timeout=10) as r:
        return r.read().decode().split()


def wait(what, seconds, condition, step=0.02):
    """polls until `condition()` is true and returns its value; RuntimeError after `seconds`"""
    end = time.monotonic() + seconds
    while True:
        try:
            found = condition()
            if found:
                return found
        except OSError:
            pass
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(step)


def data_flags(directory, fsync="interval", snapshot_seconds=None, more=()):
    """the flags of a master that keeps its state"""
    flags = ["--data-dir", directory, "--fsync", fsync]
    if snapshot_seconds is not None:
        flags.append(f"--snapshot_interval_seconds={snapshot_seconds}")
    return flags + list(more)


def directory_size(path):
    """Sizes in a data directory, in bytes. `allocated`: blocks on disk, with the preallocated rest of the log. `used`: up to each file's
    last byte that is not zero."""
    out = dict(files=0, allocated=0, used=0, log_used=0, snapshot_used=0)
    for root, _, names in os.walk(path):
        for name in names:
            file = os.path.join(root, name)
            try:
                status = os.stat(file)
                used = used_bytes(file, status.st_size)
            except OSError:
                continue  # removed meanwhile
            out["files"] += 1
            out["allocated"] += status.st_blocks * 512
            out["used"] += used
            for kind in ("log", "snapshot"):
                if name.startswith(kind + "-"):
                    out[kind + "_used"] += used
    return out


def used_bytes(file, size):
    """the offset behind the last byte that is not zero"""
    step = MIB
    with open(file, "rb") as f:
        while size > 0:
            begin = max(0, size - step)
            f.seek(begin)
            found = len(f.read(size - begin).rstrip(b"\0"))
            if found:
                return begin + found
            size = begin
    return 0


def status_kb(pid, field):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return 0


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid):
    """processor time of a process in seconds, from its clock (finer than /proc/PID/stat)"""
    return time.clock_gettime((~pid << 3) | 2)


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def median_worst(values):
    values = [v for v in values if v is not None]
    return dict(median=round(statistics.median(values), 4), worst=round(max(values), 4), n=len(values)) if values else None


def version(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20).stdout.strip()


def conditions():
    """what the reader of a result must know about the machine"""
    mem = {line.split(":")[0]: line.split(":")[1].strip() for line in open("/proc/meminfo")}
    return dict(cpus=os.cpu_count(), load_average=os.getloadavg(), memory_available=mem.get("MemAvailable"), kernel=os.uname().release,
                at=time.strftime("%Y-%m-%dT%H:%M:%S%z"))


class Result:
    """a JSON document that is written after every step, so that an interrupted run leaves its figures"""

    def __init__(self, path, program, args):
        self.path = path
        arguments = {k: v for k, v in vars(args).items()}
        self.d = dict(script=os.path.basename(sys.argv[0]), version=version(program), arguments=arguments, begin=conditions())

    def save(self, **more):
        self.d.update(more)
        self.d["end"] = conditions()
        if self.path:
            with open(self.path + ".tmp", "w") as f:
                json.dump(self.d, f, indent=1, default=str)
            os.replace(self.path + ".tmp", self.path)


def folder(given, prefix):
    """a working directory on a real disk; removed at exit unless given"""
    if given:
        os.makedirs(given, exist_ok=True)
        return given
    path = tempfile.mkdtemp(prefix=prefix)
    os.chmod(path, 0o755)  # one case runs as another user
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def own_node(program, master, folder, name, segment, env=None):
    """`mcctl serve store`; returns the process and its REST port"""
    rest = port()
    command = [program, "serve", "store", "--master", master.address, "--segment-size", str(segment), "--local-hostname", "127.0.0.1",
               "--metadata-server", "P2PHANDSHAKE", "--local-buffer-size", "0", "--port", str(rest), "--host", "127.0.0.1"]
    return Process(name, command, folder, env), rest


class Agent:
    """The wheel's Python client in a process of its own (wheel_agent.py). `ask` runs a command and returns its answer."""

    def __init__(self, folder, name, master, segment=0, buffer=64 * MIB):
        self.process = Process(name, [peer.python(), os.path.join(HERE, "wheel_agent.py"), master.address, str(segment), str(buffer)], folder,
                               env=dict(PYTHONUNBUFFERED="1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = self.answer(60)
        if answer.get("setup") != 0:
            raise RuntimeError(f"{name}: setup returned {answer}; see {self.process.path}")

    def answer(self, seconds=900):
        end = time.monotonic() + seconds
        out = self.process.p.stdout
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise RuntimeError(f"{self.process.name}: no answer within {seconds} s")
            line = out.readline()
            if not line:
                raise RuntimeError(f"{self.process.name}: ended with {self.process.p.wait(5)}; see {self.process.path}")
            if line.startswith(b"@"):
                return json.loads(line[1:])

    def ask(self, do, seconds=900, **arguments):
        self.process.p.stdin.write((json.dumps(dict(do=do, **arguments)) + "\n").encode())
        self.process.p.stdin.flush()
        answer = self.answer(seconds)
        if "error" in answer:
            raise RuntimeError(f"{self.process.name}: {do}: {answer['error']}")
        return answer


def message_line(text, pattern):
    """the first line of a log that matches"""
    return next((line for line in text.splitlines() if re.search(pattern, line)), None)


class SnapshotWatch:
    """When snapshots are being written to a data directory, by inotify: from the creation of the temporary file to its rename. `windows` is a
    list of (begin, end), in seconds of the monotonic clock. The last one is open while `end` is None."""

    CREATE, MOVED_TO = 0x100, 0x80

    def __init__(self, directory):
        import ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC)
        if self.fd < 0 or self.libc.inotify_add_watch(self.fd, directory.encode(), self.CREATE | self.MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "inotify", directory)
        self.windows = []
        self.running = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.running:
            if not select.select([self.fd], [], [], 0.2)[0]:
                continue
            data = os.read(self.fd, 65536)
            now, at = time.monotonic(), 0
            while at < len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16:at + 16 + length].rstrip(b"\0").decode()
                at += 16 + length
                if not name.startswith("snapshot-"):
                    continue
                if mask & self.CREATE and name.endswith(".tmp"):
                    self.windows.append([now, None])
                elif mask & self.MOVED_TO and self.windows and self.windows[-1][1] is None:
                    self.windows[-1][1] = now

    def stop(self):
        """ends watching; the complete windows"""
        self.running = False
        self.thread.join()
        os.close(self.fd)
        return [tuple(w) for w in self.windows if w[1] is not None]
