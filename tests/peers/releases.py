"""Starts real Mooncake masters and clients of each release, and mcctl's master, nodes and client. For tests/release-matrix and
tests/rolling-upgrade. Loopback only, except for the ports that the real programs bind to all addresses."""
import glob
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

RELEASES = ["0.3.6.post1", "0.3.7.post2", "0.3.8.post1", "0.3.9", "0.3.10.post2", "0.3.11.post1", "0.3.12.post1", "0.3.13.post1", "0.3.14"]
PEERS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(PEERS))
HOST, P2P = "127.0.0.1", "P2PHANDSHAKE"
MIB = 1 << 20
MASTER_LINE = re.compile(r"Master service started on port \d+: RPC (\S+?), admin http://([^\s,]+)(?:, metadata (\S+))?")
# A line of a log that explains a failure: of mcctl at debug level, and of glog.
TROUBLE = re.compile(r" (WARN|ERROR) | connection closed |result=\"(?!ok\")|^[EWF]\d{4} |^(Traceback|\w*Error\b)")
running, lock = [], threading.Lock()


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MOONCAKE_", "MC_", "MCCTL_"))}
    # 0.3.10.post2 otherwise copies to the address of another process with the same IP address, and crashes.
    env["MC_STORE_MEMCPY"] = "0"
    return env


def home(release):
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mcctl-peers", f"mooncake-{release}")


def not_installed(releases):
    return [release for release in releases if not os.path.exists(os.path.join(home(release), ".ready"))]


def port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def accepts(address):
    host, number = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(number)), 1).close()
        return True
    except OSError:
        return False


class Process:
    """A process with a log for its stdout and stderr, or only stderr if stdout is a pipe."""

    def __init__(self, command, log, piped=False):
        self.log = log
        with open(log, "ab") as out:
            pipe = subprocess.PIPE if piped else subprocess.DEVNULL
            self.process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.PIPE if piped else out, stderr=out, env=environment())
        with lock:
            running.append(self)

    def text(self, start=0):
        with open(self.log, "rb") as f:
            f.seek(start)
            return f.read().decode(errors="replace")

    def position(self):
        return os.path.getsize(self.log)

    def trouble(self, start=0, count=3):
        """The last lines since `start` that explain a failure."""
        found = [line for line in self.text(start).splitlines() if TROUBLE.search(line)]
        return [line[:400] for line in found[-count:]]

    def alive(self):
        return self.process.poll() is None

    def ended(self):
        rc = self.process.wait(10)
        return f"killed by {signal.Signals(-rc).name}" if rc < 0 else f"exit code {rc}"

    def stop(self, how=signal.SIGTERM, secs=20):
        if self.alive():
            self.process.send_signal(how)
            try:
                self.process.wait(secs)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        with lock:
            if self in running:
                running.remove(self)


def stop_all():
    with lock:
        rest = list(running)
    for one in rest:
        one.stop(signal.SIGKILL)


def wait(what, secs, f):
    end = time.monotonic() + secs
    while True:
        found = f()
        if found:
            return found
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not reached within {secs} s")
        time.sleep(0.05)


def endpoints(admin, key):
    """The addresses of an object's replicas. The query has the key without percent-encoding: 0.3.9 to 0.3.11 do not decode it."""
    with urllib.request.urlopen(f"http://{admin}/query_key?key={key}", timeout=5) as r:
        return re.findall(r'"(?:transport_endpoint_|segment_name_?)":\s*"([^"]+)"', r.read().decode())


def segments(admin):
    """The names of a master's segments. Empty if it does not respond."""
    try:
        with urllib.request.urlopen(f"http://{admin}/get_all_segments", timeout=10) as r:
            return r.read().decode().split()
    except OSError:
        return []


class Master(Process):
    """mcctl's master, or the real one of a release."""

    def __init__(self, log, mcctl=None, release=None, http=True, options=(), ports=None):
        # A real master can exit at its start: a port was taken in the meantime, and 0.3.12.post1 did so without a message.
        for attempt in range(3):
            self.attempts = attempt + 1
            if mcctl:
                rpc, admin, meta = ports or (0, 0, 0)
                command = [mcctl, "serve", "master", "--bind", HOST, "--rpc-port", str(rpc), "--port", "0", "--metrics-port", str(admin),
                           "--log-level", "debug"]
                command += ["--enable-http-metadata-server", "--http-metadata-server-port", str(meta)] if http else []
            else:
                rpc, admin, meta = ports or (port(), port(), port())
                command = [glob.glob(f"{home(release)}/lib/python3*/site-packages/mooncake/mooncake_master")[0],
                           f"--rpc_address={HOST}", f"--rpc_port={rpc}", f"--metrics_port={admin}"]
                command += ["--enable_http_metadata_server=true", f"--http_metadata_server_host={HOST}",
                            f"--http_metadata_server_port={meta}"] if http else []
                env = os.path.join(home(release), "peer.env")
                command = ["sh", "-c", '[ ! -e "$0" ] || . "$0"; exec "$@"', env, *command]
            start = os.path.getsize(log) if os.path.exists(log) else 0
            super().__init__([*command, *options], log, False)
            end = time.monotonic() + 20
            while self.alive() and time.monotonic() < end:
                if mcctl:
                    line = MASTER_LINE.search(self.text(start))
                    if line:
                        self.address, self.admin, self.metadata = line.groups()
                        return
                else:
                    self.address, self.admin = f"{HOST}:{rpc}", f"{HOST}:{admin}"
                    self.metadata = f"http://{HOST}:{meta}/metadata" if http else None
                    if accepts(self.address) and accepts(self.admin) and (not http or accepts(f"{HOST}:{meta}")):
                        return
                time.sleep(0.05)
            self.stop()
        raise RuntimeError(f"the master did not start: {self.text()[-600:]}")

    def ports(self):
        return [int(re.search(r":(\d+)(/|$)", a).group(1)) for a in (self.address, self.admin, self.metadata) if a]


class Node(Process):
    """mcctl's node."""

    def __init__(self, mcctl, log, master, metadata, segment):
        super().__init__([mcctl, "serve", "store", "--bind", HOST, "--port", "0", "--local-hostname", HOST, "--master", master,
                          "--log-level", "debug", "--metadata-server", metadata,
                          "--segment-size", str(segment), "--local-buffer-size", str(16 * MIB)], log)


class Worker(Process):
    """A real client that executes the commands of tests/peers/release_worker.py."""

    def __init__(self, release, log):
        self.release, self.buffer = release, b""
        shell = '[ ! -e "$0/peer.env" ] || . "$0/peer.env"; exec "$0/bin/python" "$1"'
        super().__init__(["sh", "-c", shell, home(release), os.path.join(PEERS, "release_worker.py")], log, True)

    def ask(self, do, secs=60, **fields):
        """The response, or {"error": reason} if the process ended or did not respond in time."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return {"error": f"{do}: {self.ended()}"}
        return self.answer(do, secs)

    def answer(self, do, secs=60):
        end = time.monotonic() + secs
        while True:
            *lines, self.buffer = self.buffer.split(b"\n")
            for i, line in enumerate(lines):
                if line.startswith(b"@"):
                    self.buffer = b"\n".join([*lines[i + 1:], self.buffer])
                    found = json.loads(line[1:])
                    return {"error": f"{do}: {found['error']}"} if "error" in found else found
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                self.stop(signal.SIGKILL)
                return {"error": f"{do}: no response within {secs} s"}
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                return {"error": f"{do}: {self.ended()}"}
            self.buffer += read

    def close(self):
        if self.alive():
            self.ask("close", 20)
        self.leave()

    def leave(self):
        """Closes stdin. The process exits without closing the client."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        self.stop(signal.SIGKILL)


def binary(given):
    """The program at `given`, or the release build. Exits if it does not exist."""
    path = given or os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "mcctl")
    if not os.access(path, os.X_OK):
        print(f"error: {path}: not found: build mcctl, or pass --mcctl BINARY", file=sys.stderr)
        sys.exit(2)
    return os.path.abspath(path)
