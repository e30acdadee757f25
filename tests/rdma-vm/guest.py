"""Shared by the programs that run inside the virtual machine (standard library only): processes with a log and a time limit, the real
peers, the counters of the devices, and cases with one line of output each.

A case is a function that raises on failure. All processes that it started are then stopped, by process id.
"""
import fnmatch
import glob
import http.client
import json
import os
import queue
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(os.path.dirname(HERE), "peers")
# Time limit to start, answer or stop, in seconds. Generous, because the machine is emulated and the host is busy.
PATIENCE = 60
# Payload of a packet at the active MTU of rdma-vm's devices, bytes.
PACKET = 4096
P2P = "P2PHANDSHAKE"


class Failed(Exception):
    pass


def need(ok, why):
    if not ok:
        raise Failed(why)


def wait_for(what, done, limit=PATIENCE):
    end = time.monotonic() + limit
    while True:
        found = done()
        if found:
            return found
        need(time.monotonic() < end, f"{what}: not reached within {limit} s")
        time.sleep(0.05)


# --------------------------------------------------------------------------------------------------------------- processes
class Process:
    """One process with its output in a log. `limits`: {resource: bytes}; `user`: a uid to run as."""

    running = []
    logs = "/tmp/logs"
    number = 0

    def __init__(self, name, command, env=None, stdin=None, limits=None, user=None):
        os.makedirs(self.logs, exist_ok=True)
        Process.number += 1
        self.name = name
        self.path = os.path.join(self.logs, f"{Process.number:03d}-{name}.log")
        self.log = open(self.path, "wb")

        def prepare():
            import resource
            for what, most in (limits or {}).items():
                resource.setrlimit(what, (most, most))
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
        self.began = time.monotonic()
        self.p = subprocess.Popen([str(c) for c in command], env=environment(env), stdin=stdin or subprocess.DEVNULL,
                                  stdout=subprocess.PIPE if stdin else self.log, stderr=self.log, start_new_session=True,
                                  preexec_fn=prepare if limits or user is not None else None)
        Process.running.append(self)

    def text(self):
        with open(self.path, "rb") as f:
            return f.read().decode(errors="replace")

    def wait_line(self, pattern, limit=PATIENCE):
        """Waits for a match of `pattern` in the log and returns it."""
        def look():
            m = re.search(pattern, self.text())
            need(m or self.p.poll() is None, f"{self.name} ended with {self.p.poll()} before it printed {pattern!r}: {self.tail()}")
            return m
        return wait_for(f"{pattern!r} of {self.name}", look, limit)

    def wait_port(self, port, limit=PATIENCE):
        def look():
            need(self.p.poll() is None, f"{self.name} ended with {self.p.poll()}: {self.tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            except OSError:
                return False
        wait_for(f"port {port} of {self.name}", look, limit)

    def wait(self, limit):
        """Returns the exit code. A process that still runs after `limit` s has failed."""
        try:
            return self.p.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} still runs after {limit} s: {self.tail()}") from None

    def signal(self, number):
        if self.p.poll() is None:
            os.kill(self.p.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.p.wait()

    def stop(self, limit=20):
        self.signal(signal.SIGTERM)
        return self.wait(limit)

    def cpu(self):
        """User and system CPU time of the process, seconds."""
        with open(f"/proc/{self.p.pid}/stat") as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")

    def tail(self, lines=3):
        return " / ".join(x.strip() for x in self.text().splitlines()[-lines:] if x.strip())[-700:]


def environment(more):
    """The environment without the variables of Mooncake, and with `more`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MC_", "MOONCAKE_", "NCCL_"))}
    env.update(PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", MCCTL_LOG=env.get("MCCTL_LOG", "info"))
    env.update(more or {})
    return env


def stop_all():
    for p in Process.running:
        if p.p.poll() is None:
            p.kill()
    Process.running.clear()


def sh(*command, check=True):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, errors="replace")
    need(done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout.strip()[-300:]}")
    return done.stdout


_next_port = 18_100


def free_port():
    """A port outside the ranges from which the real engine chooses (12300-14300, 15000-17000)."""
    global _next_port
    while True:
        _next_port += 1
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", _next_port))
                return _next_port
            except OSError:
                pass


# --------------------------------------------------------------------------------------------------------------- real peers
class Wheel:
    """An installed release of the real Mooncake."""

    def __init__(self, version):
        self.version = version
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ["HOME"], ".cache")
        self.venv = os.path.join(cache, "mcctl-peers", f"mooncake-{version}")
        found = glob.glob(os.path.join(self.venv, "lib/python3*/site-packages/mooncake"))
        need(found, f"Mooncake {version} is not in {self.venv}: run tests/peers/install {version}")
        self.package = found[0]
        self.folders = ""
        env = os.path.join(self.venv, "peer.env")
        if os.path.exists(env):
            self.folders = re.search(r'"(.*?)\$', open(env).read()).group(1)

    def env(self, more=None):
        e = {"PYTHONPATH": PEERS, **(more or {})}
        if self.folders:
            e["LD_LIBRARY_PATH"] = self.folders
        return e

    def program(self, name):
        path = os.path.join(self.package, name)
        if not os.access(path, os.X_OK):  # The launchers of older wheels set this. The change stays in the guest.
            os.chmod(path, 0o755)
        return path

    def python(self):
        return os.path.join(self.venv, "bin/python")


class Dialogue:
    """A worker that answers each JSON line with a line that begins with '@'."""

    def __init__(self, name, command, env):
        self.process = Process(name, command, env, stdin=subprocess.PIPE)
        self.answers = queue.Queue()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self):
        for line in self.process.p.stdout:
            if line.startswith(b"@"):
                self.answers.put(json.loads(line[1:]))
            else:
                self.process.log.write(line)
                self.process.log.flush()
        self.answers.put(None)

    def receive(self, limit=PATIENCE):
        try:
            answer = self.answers.get(timeout=limit)
        except queue.Empty:
            raise Failed(f"{self.process.name} did not answer within {limit} s: {self.process.tail()}") from None
        if answer is None:
            raise Failed(f"{self.process.name} ended with {self.process.wait(10)}: {self.process.tail()}")
        self.note("<", answer)
        return answer

    def note(self, direction, what):
        """Writes a request (>) or an answer (<) into the worker's log, among its own lines."""
        self.process.log.write(f"{direction} {json.dumps(what)[:300]} ({time.monotonic() - self.process.began:.2f} s)\n".encode())
        self.process.log.flush()

    def ask(self, do, limit=PATIENCE, **fields):
        self.note(">", {"do": do, **fields})
        try:
            self.process.p.stdin.write((json.dumps({"do": do, **fields}) + "\n").encode())
            self.process.p.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.process.name} ended with {self.process.p.wait()}: {self.process.tail()}") from None
        return self.receive(limit)


# ------------------------------------------------------------------------------------------------------------------ devices
def devices():
    return sorted(os.listdir("/sys/class/infiniband"))


def hw(device, counter):
    with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}") as f:
        return int(f.read())


def packets():
    """{device: packets sent}."""
    return {d: hw(d, "sent_pkts") for d in devices()}


def unsent_packets():
    """{device: packets that it could not send}."""
    return {d: hw(d, "send_err") for d in devices()}


def loopback():
    """Bytes received on `lo`, over which TCP runs between processes of the guest."""
    with open("/sys/class/net/lo/statistics/rx_bytes") as f:
        return int(f.read())


class Traffic:
    """Packets of the devices, and bytes of `lo`, since its creation."""

    def __init__(self):
        self.packets, self.lo = packets(), loopback()

    def moved(self, bytes_moved, over):
        """Fails unless the devices sent these bytes, with packets from each device of `over`, and TCP did not."""
        now = packets()
        sent = {d: n - self.packets.get(d, 0) for d, n in now.items()}
        lo = loopback() - self.lo
        need(sum(sent.values()) * PACKET >= 0.95 * bytes_moved,
             f"{bytes_moved} bytes were reported as transferred, but the devices sent {sent} packets of at most {PACKET} B")
        idle = [d for d in over if not sent.get(d)]
        need(not idle, f"{' and '.join(idle)} sent nothing: {sent}")
        need(lo < 1_000_000 + bytes_moved / 4, f"{lo} of {bytes_moved} bytes went over lo")
        return " ".join(f"{d}:{n}" for d, n in sorted(sent.items()))


def pairs():
    """The existing queue pairs, except those of the kernel."""
    found = json.loads(sh("rdma", "-j", "resource", "show", "qp") or "[]")
    return [q for q in found if q.get("type") == "RC"]


def regions():
    return json.loads(sh("rdma", "-j", "resource", "show", "mr") or "[]")


# ------------------------------------------------------------------------------------------------------- the handshake port
def frame(kind, document):
    text = document if isinstance(document, bytes) else (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()
    return struct.pack("<QB", len(text) + 1, kind) + text


def read_exactly(s, n):
    got = b""
    while len(got) < n:
        more = s.recv(n - len(got))
        if not more:
            raise Failed(f"closed after {len(got)} of {n} bytes")
        got += more
    return got


def exchange(at, kind, document, limit=20):
    """One request to a handshake port and its reply."""
    host, _, port = at.rpartition(":")
    with socket.create_connection((host, int(port)), limit) as s:
        s.settimeout(limit)
        s.sendall(frame(kind, document))
        n, answered = struct.unpack("<QB", read_exactly(s, 9))
        need(0 < n <= 1 << 20, f"a reply of {n} bytes")
        body = read_exactly(s, n - 1)
        need(answered == kind, f"type {kind} was answered with type {answered}")
        return json.loads(body)


def descriptor(segment, metadata):
    """The segment's published descriptor, once it lists memory."""
    def look():
        try:
            if metadata == P2P:
                d = exchange(segment, 1, {})
            else:
                url = f"{metadata}?key={urllib.parse.quote(f'mooncake/ram/{segment}', safe='')}"
                with urllib.request.urlopen(url, timeout=10) as r:
                    d = json.loads(r.read())
        except (OSError, ValueError, Failed, http.client.HTTPException):
            return None
        return d if d and d.get("buffers") else None
    return wait_for(f"memory in the descriptor of {segment}", look)


# -------------------------------------------------------------------------------------------------------------------- cases
class Cases:
    """Runs functions as cases: one line of output and a time limit each. Processes that are left over are stopped."""

    def __init__(self, only, listing=False, out=None, known=()):
        self.only = [x for o in only for x in o.split(",") if x]
        self.listing, self.out, self.known = listing, out, list(known)
        self.passed, self.failed, self.chosen = [], [], 0

    def chooses(self, name):
        return not self.only or any(fnmatch.fnmatch(name, o) or fnmatch.fnmatch(name, o + "/*") for o in self.only)

    def run(self, name, function, *args, limit=180):
        if not self.chooses(name):
            return
        self.chosen += 1
        if self.listing:
            print(name)
            return
        shutil.rmtree(Process.logs, ignore_errors=True)

        def late(*_):
            raise Failed(f"took more than {limit} s")
        began, unsent = time.monotonic(), unsent_packets()
        old = signal.signal(signal.SIGALRM, late)
        signal.alarm(limit)
        try:
            result = function(*args)
            why = None
        except Failed as e:
            why = str(e)
        except Exception as e:  # An error in a case fails the case, not the run.
            why = f"{type(e).__name__}: {e}"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, old)
            stop_all()
        took = time.monotonic() - began
        lost = sum(max(n - unsent.get(d, 0), 0) for d, n in unsent_packets().items())
        if why and lost:
            # rxe then loses answers, and completes reads successfully without their bytes. The peers may be correct.
            why += f" [rxe could not send {lost} packets during the case]"
        if why is None:
            self.passed.append(name)
            print(f"ok      {name} ({took:.1f} s){' ' + result if result else ''}", flush=True)
            return
        self.failed.append(name)
        print(f"FAILED  {name} ({took:.1f} s): {why}", flush=True)
        if self.out and os.path.isdir(Process.logs):
            shutil.copytree(Process.logs, os.path.join(self.out, name.replace("/", "_")), dirs_exist_ok=True)

    def end(self):
        if not self.chosen:
            print(f"no case matches {' or '.join(self.only)}", file=sys.stderr)
            return 2
        if self.listing:
            return 0
        print(f"{len(self.passed)} ok, {len(self.failed)} failed", flush=True)
        return 1 if self.failed else 0
