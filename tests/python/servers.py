"""Starts mcctl's master and nodes for a test."""

import contextlib
import os
import signal
import socket
import subprocess
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    """Waits until something listens on the port"""
    for _ in range(200):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


class Server:
    """A running program. It is killed at the end, if it is not stopped before."""

    def __init__(self, command, port):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(port)

    def stop(self):
        """Stops the process without ending it"""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self):
        """Lets a stopped process continue"""
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self):
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def master(program, rpc=None, admin=None):
    """Starts a master on loopback and yields its address."""
    rpc, admin = rpc or free_port(), admin or free_port()
    command = [program, "serve", "master", "--rpc-port", str(rpc), "--metrics-port", str(admin), "--bind", "127.0.0.1"]
    server = Server(command, rpc)
    try:
        yield f"127.0.0.1:{rpc}"
    finally:
        server.end()


@contextlib.contextmanager
def node(program, address, size="64mb"):
    """Starts a node of the master at `address` and yields it."""
    rest = free_port()
    command = [program, "serve", "store", "--master", address, "--metadata-server", "P2PHANDSHAKE", "--segment-size", size]
    command += ["--port", str(rest), "--host", "127.0.0.1", "--local-hostname", "127.0.0.1"]
    server = Server(command, rest)
    try:
        yield server
    finally:
        server.end()
