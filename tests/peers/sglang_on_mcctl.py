"""Starts and stops mcctl's master and store node, and a real SGLang that uses them. For tests/sglang-l3 and tests/sglang-replay.
Loopback only."""
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def say(text):
    print(text, flush=True)


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stop(p, how=signal.SIGTERM, secs=30):
    if p.poll() is None:
        os.kill(p.pid, how)
        try:
            p.wait(secs)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait(10)


def wait(what, secs, f):
    end = time.monotonic() + secs
    while time.monotonic() < end:
        try:
            found = f()
            if found:
                return found
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{what}: not reached within {secs} s")


def get(url, secs=30):
    with urllib.request.urlopen(url, timeout=secs) as r:
        return r.read().decode()


def post(url, document, secs=120):
    body = json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=body, headers={"content-type": "application/json"}), timeout=secs) as r:
        return r.read().decode()


def binary(given):
    """Returns the program at `given`, or builds a release."""
    if given:
        return given
    if not shutil.which("cargo"):
        say("error: mcctl not found: pass --mcctl BINARY")
        sys.exit(2)
    subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "mcctl"], cwd=ROOT, check=True)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "mcctl")


class Stack:
    """Master, node and, once started, SGLang as a pure client. The logs go to the folder `run`.

    `client` is "real" (Mooncake's wheel), or mcctl's client: "run" (its launcher) or "dynamic" (a backend). The folder `package`
    contains mcctl_mooncake. Without it, the package is the one installed in SGLang's environment."""

    def __init__(self, mcctl, run, segment_size, client="real", package=None):
        self.run, self.started, self.sglang = run, [], None
        rpc, self.admin, self.rest, http = port(), port(), port(), port()
        self.master_address, self.http = f"127.0.0.1:{rpc}", http
        self.sglang_url = f"http://127.0.0.1:{http}"
        self.master_command = [mcctl, "serve", "master", "--rpc_address=127.0.0.1", f"--rpc_port={rpc}", "--metrics_host=127.0.0.1",
                               f"--metrics_port={self.admin}"]
        self.node_command = [mcctl, "serve", "store", "-D", "local_hostname=127.0.0.1", "-D", "metadata_server=P2PHANDSHAKE", "-D",
                             f"master_server_address={self.master_address}", "-D", f"global_segment_size={segment_size}", "-D",
                             "local_buffer_size=0", "-D", "protocol=tcp", "--port", str(self.rest)]
        self.sglang_arguments = ["--hicache", "mooncake", "--master", self.master_address, "--metadata", "P2PHANDSHAKE", "--segment-bytes",
                                 "0", *self.client_arguments(client, package)]
        self.master_env, self.node_env, self.sglang_env = {}, {}, {}

    @staticmethod
    def client_arguments(client, package):
        return ["--client", client] + (["--client-package", os.path.abspath(package)] if package else [])

    def start(self, name, *command, **kw):
        log = open(os.path.join(self.run, name + ".log"), "ab")
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=kw.pop("stdout", log), stderr=log, start_new_session=True, **kw)
        self.started.append(p)
        return p

    def segments(self):
        return len(get(f"http://127.0.0.1:{self.admin}/get_all_segments").split())

    def start_master(self):
        self.master = self.start("master", *self.master_command, env=dict(os.environ, **self.master_env))
        return self.master

    def __enter__(self):
        try:
            self.start_master()
            wait("the master", 20, lambda: get(f"http://127.0.0.1:{self.admin}/health"))
            self.start("node", *self.node_command, env=dict(os.environ, **self.node_env))
            wait("the node to be mounted", 60, lambda: self.segments() == 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for p in reversed(self.started):
            stop(p)

    def start_sglang(self, patience_s, *more):
        """Exits if SGLang cannot be installed."""
        say("starting SGLang (the first start installs it, which takes minutes)")
        self.sglang = self.start("sglang", os.path.join(ROOT, "tests", "peers", "sglang-endpoint"), "--port", str(self.http),
                                 *self.sglang_arguments, *more, stdout=subprocess.PIPE,
                                 env=dict(os.environ, MCCTL_ENDPOINT_WAIT_S=str(patience_s), **self.sglang_env))
        if not self.sglang.stdout.readline().decode().startswith("READY"):
            code = self.sglang.wait(30)
            say(f"FAILED the endpoint did not start (exit {code}); see {self.run}/sglang.log")
            sys.exit(code if code == 3 else 1)


class Rendered(Stack):
    """The same, with the command lines and environment that `mcctl render` writes for fixtures/deploy/laptop.toml, with free ports
    and the tiny model."""

    def __init__(self, mcctl, run, segment_size, client="real", package=None):
        super().__init__(mcctl, run, segment_size, client, package)
        mcctl, size = os.path.abspath(mcctl), segment_size.lower()
        # The deployment file spells the store's 1gb as 1GiB.
        size = f"{size[:-2]}{size[-2].upper()}iB" if size.endswith(("gb", "mb")) else size
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        values = {"master.rpc_port": self.master_address.rsplit(":", 1)[1], "master.admin_port": self.admin, "nodes.rest_port": self.rest,
                  "serving.port": self.http, "nodes.segment": size, "model.path": os.path.join(home, "mcctl-peers", "tiny-llama"),
                  "host.bin_dir": os.path.dirname(mcctl),
                  "serving.client": {"real": "upstream", "run": "mcctl", "dynamic": "mcctl-dynamic"}[client]}
        sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        file = os.path.join(ROOT, "fixtures", "deploy", "laptop.toml")
        for form in ("env", "sglang"):
            subprocess.run([mcctl, "render", form, file, "--out", os.path.join(run, form), *sets], check=True, stdout=subprocess.DEVNULL)
        self.master_command, self.master_env = self.read("master")
        self.node_command, self.node_env = self.read("store-0")
        command, self.sglang_env = self.read("server-0")
        # The script must contain the same command.
        with open(os.path.join(run, "sglang", "127.0.0.1", "laptop-server-0.sh")) as f:
            script = f.read()
        if shlex.split(script[script.index("\nexec ") + 6:].replace("\\\n", " ")) != command:
            raise RuntimeError("render env and render sglang disagree")
        self.sglang_arguments = ["--as-given", *self.client_arguments(client, package), "--", *command[command.index("sglang.launch_server") + 1:]]

    def read(self, role):
        """Returns the command line and variables of an environment file."""
        with open(os.path.join(self.run, "env", "127.0.0.1", f"laptop-{role}.env")) as f:
            lines = f.read().splitlines()
        command = shlex.split(next(line[4:] for line in lines if line.startswith("#   ")))
        words = [word for line in lines if not line.startswith("#") for word in shlex.split(line)]
        return command, dict(word.split("=", 1) for word in words)
