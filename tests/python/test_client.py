"""Tests of the native client: values, buffers, sessions, threads, processes, and the loss of master and node.

  MCCTL=PROGRAM python -m unittest tests/python/test_client.py

The package mcctl_mooncake must be built (tests/python/run builds it). Each test has a master and a node of its own.
"""

import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import urllib.request
import uuid
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "src", "python")
# The sources come last, so that an installed package is tested if there is one.
sys.path.insert(0, HERE)
sys.path.append(SOURCES)
from servers import free_port, master, node  # noqa: E402

import mcctl_mooncake  # noqa: E402
from mcctl_mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig  # noqa: E402

# The directory with the tested package, for processes that the tests start.
PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(mcctl_mooncake.__file__)))

PROGRAM = os.environ["MCCTL"]
NO_SPACE, INVALID, NOT_READY, NOT_FOUND, EXISTS, LEASED, NO_TRANSFER = -200, -600, -703, -704, -705, -706, -800


def value(size):
    return os.urandom(size)


class Proxy:
    """Forwards connections to `target`, and delays the responses by `delay` seconds."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target, self.delay = (host, int(port)), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            threading.Thread(target=self.forward, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.forward, args=(far, near, True), daemon=True).start()

    def forward(self, source, target, is_answer):
        while data := source.recv(65536):
            time.sleep(self.delay if is_answer else 0)
            target.sendall(data)
        target.close()


class Client(unittest.TestCase):
    def setUp(self):
        self.admin = free_port()
        self.master = self.enterContext(master(PROGRAM, admin=self.admin))
        self.enterContext(node(PROGRAM, self.master))
        self.store = self.started()

    def started(self, segment=0, **kwargs):
        store = MooncakeDistributedStore()
        self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 0, "tcp", "", self.master, **kwargs), 0)
        self.addCleanup(store.close)
        return store

    def memory(self, size, fill=None):
        buffer = ctypes.create_string_buffer(fill or b"", size)
        self.addCleanup(lambda: buffer)
        return buffer, ctypes.addressof(buffer)

    def test_values_of_each_kind_come_back(self):
        payload = value(70_000)
        for kind in (bytes, bytearray, memoryview):
            key = uuid.uuid4().hex
            self.assertEqual(self.store.put(key, kind(payload)), 0)
            self.assertEqual(self.store.get(key), payload)
            handle = self.store.get_buffer(key)
            self.assertEqual((bytes(handle), handle.size()), (payload, len(payload)))
            self.assertEqual(ctypes.string_at(handle.ptr(), len(payload)), payload)
        self.assertEqual(self.store.put("text", memoryview(b"abcdef")[1:3]), 0)
        self.assertEqual(self.store.get("text"), b"bc")
        with self.assertRaises(TypeError):
            self.store.put("strided", memoryview(b"abcdef")[::2])

    def test_a_large_batch_keeps_the_order(self):
        keys = [f"k{i}" for i in range(500)]
        values = [value(1 + i * 37 % 5000) for i in range(500)]
        self.assertEqual(self.store.put_batch(keys, values), 0)
        self.assertEqual(self.store.get_batch(keys + ["none"]), values + [b""])
        self.assertEqual(self.store.batch_is_exist(["none", *keys[:3]]), [0, 1, 1, 1])

    def test_buffers_are_read_and_written_in_place(self):
        payload = value(3 << 20)
        buffer, address = self.memory(len(payload), payload)
        into, target = self.memory(len(payload))
        for registered in (False, True):
            if registered:
                self.assertEqual(self.store.register_buffer(address, len(payload)), 0)
                self.assertEqual(self.store.register_buffer(address + 4096, 4096), INVALID, "overlap")
            sizes = [1, 4096, 1 << 20, 2 << 20]
            keys = [f"{registered}{size}" for size in sizes]
            self.assertEqual(self.store.batch_put_from(keys, [address] * 4, sizes), [0] * 4)
            for key, size in zip(keys, sizes):
                ctypes.memset(target, 0, len(payload))
                self.assertEqual(self.store.get_into(key, target, len(payload)), size)
                self.assertEqual(into.raw[:size], payload[:size])
        self.assertEqual(self.store.unregister_buffer(address), 0)
        self.assertEqual(self.store.unregister_buffer(address), INVALID)

    def test_addresses_that_are_not_memory_are_refused(self):
        self.store.put("a", b"hello")
        for address in (0, 8, 1 << 60, (1 << 64) - 1):
            self.assertEqual(self.store.put_from("b", address, 100), INVALID)
            self.assertEqual(self.store.get_into("a", address, 100), INVALID)
            self.assertEqual(self.store.register_buffer(address, 100), INVALID)
        self.assertEqual(self.store.batch_put_from(["x", "y"], [0, 1], [10]), [INVALID] * 2)
        with self.assertRaises(TypeError):
            self.store.put_from("b", -1, 100)

    def test_parts_and_ranges_have_the_right_bytes(self):
        payload = value(10_000)
        buffer, address = self.memory(len(payload), payload)
        into, target = self.memory(len(payload))
        pieces, sizes = [address, address + 100, address + 5000], [100, 4900, 5000]
        self.assertEqual(self.store.batch_put_from_multi_buffers(["m"], [pieces], [sizes], ReplicateConfig()), [0])
        self.assertEqual(self.store.get("m"), payload)
        self.assertEqual(self.store.batch_get_into_multi_buffers(["m"], [[target + 9000, target]], [[1000, 9000]]), [10_000])
        self.assertEqual(into.raw, payload[1000:] + payload[:1000])
        read = self.store.get_into_ranges([target], [["m", "none"]], [[[0, 10], [20]]], [[[500, 9995], [0]]], [[[4, 10], [1]]])
        self.assertEqual(read, [[[4, INVALID], [NOT_FOUND]]])
        self.assertEqual(into.raw[:4], payload[500:504])

    def test_sessions_write_and_read_in_pieces(self):
        payload = value(1000)
        buffer, address = self.memory(1000, payload)
        into, target = self.memory(1000)
        self.assertEqual(self.store.batch_put_session_start(["s"], [1000]), [0])
        self.assertEqual(self.store.is_exist("s"), 0)
        write = self.store.batch_put_from_multi_buffer_ranges
        self.assertEqual(write(["s"], [[address + 600, address]], [[400, 600]], [[600, 0]]), [1000])
        self.assertEqual(write(["s"], [[address]], [[10]], [[995]]), [INVALID])
        self.assertEqual(self.store.batch_put_session_end(["s", "unknown"]), [0, INVALID])
        self.assertEqual(self.store.batch_get_session_start(["s", "none"]), [0, NOT_FOUND])
        read = self.store.batch_get_into_multi_buffer_ranges
        self.assertEqual(read(["s"], [[target]], [[300]], [[700]]), [300])
        self.assertEqual(into.raw[:300], payload[700:])
        self.assertEqual(self.store.batch_get_session_end(["s"]), 0)
        self.assertEqual(read(["s"], [[target]], [[300]], [[700]]), [INVALID])
        self.assertEqual(self.store.batch_put_session_start(["r"], [10]), [0])
        self.assertEqual(self.store.batch_put_session_revoke(["r"]), [0])
        self.assertEqual(self.store.is_exist("r"), 0)

    def test_a_put_of_a_key_with_a_write_session_fails_and_stores_nothing(self):
        payload = value(100)
        buffer, address = self.memory(100, payload)
        self.assertEqual(self.store.batch_put_session_start(["s"], [100]), [0])
        self.assertEqual(self.store.put("s", b"other"), NOT_READY)
        self.assertEqual(self.store.put_batch(["s", "t"], [b"other", b"t"]), NOT_READY)
        self.assertEqual(self.store.batch_put_session_start(["s"], [100]), [EXISTS])
        self.assertEqual(self.store.is_exist("s"), 0)
        write = self.store.batch_put_from_multi_buffer_ranges
        self.assertEqual(write(["s"], [[address]], [[100]], [[0]]), [100])
        self.assertEqual(self.store.batch_put_session_end(["s"]), [0])
        self.assertEqual(self.store.get("s"), payload)
        self.assertEqual(self.store.put("s", b"other"), 0, "an object that exists")

    def test_threads_write_to_one_session(self):
        size, count = 4096, 8
        payload = value(size * count)
        buffer, address = self.memory(size * count, payload)
        self.assertEqual(self.store.batch_put_session_start(["s"], [size * count]), [0])
        write, results = self.store.batch_put_from_multi_buffer_ranges, []

        def part(index):
            at = index * size
            results.append(write(["s"], [[address + at]], [[size]], [[at]]))

        threads = [threading.Thread(target=part, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [[size]] * count)
        self.assertEqual(self.store.batch_put_session_end(["s"]), [0])
        self.assertEqual(self.store.get("s"), payload)

    def test_threads_have_sessions_of_their_own(self):
        payload, wrong = value(20_000), []
        buffer, address = self.memory(len(payload), payload)

        def work(index):
            for call in range(10):
                key = f"{index}-{call}"
                codes = [
                    self.store.batch_put_session_start([key], [20_000]),
                    self.store.batch_put_from_multi_buffer_ranges([key], [[address]], [[20_000]], [[0]]),
                    self.store.batch_put_session_end([key]),
                ]
                if codes != [[0], [20_000], [0]] or self.store.get(key) != payload:
                    wrong.append((key, codes))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_groups_of_a_batch_belong_to_their_keys(self):
        config = ReplicateConfig()
        config.group_ids = ["g1", "g2", "g3"]
        buffer, address = self.memory(100, value(100))
        codes = self.store.batch_put_from(["g-a", "g-b", "g-c"], [address] * 3, [10, 0, 30], config)
        self.assertEqual(codes, [0, INVALID, 0])

    def test_many_threads_share_a_store(self):
        errors = []

        def work(index):
            for call in range(60):
                key, payload = f"{index}-{call}", value(100 * index + call + 1)
                if self.store.put(key, payload) or self.store.get(key) != payload:
                    errors.append(key)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_close_ends_calls_of_other_threads(self):
        self.store.put("k", value(1000))
        results = []

        def work():
            while True:
                found = self.store.get("k")
                results.append(len(found))
                if not found:
                    return

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while not results and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(self.store.close(), 0)
        for thread in threads:
            thread.join(20)
            self.assertFalse(thread.is_alive())
        self.assertEqual(set(results), {0, 1000})
        self.assertEqual((self.store.health_check(), self.store.get_hostname()), (1, ""))

    def run_python(self, code):
        env = dict(os.environ, PYTHONPATH=PACKAGES, MCCTL_LOG="error")
        code = "import os, sys\nfrom mcctl_mooncake.store import *\n" + textwrap.dedent(code)
        command = [sys.executable, "-c", code, self.master]
        return subprocess.run(command, env=env, timeout=60, capture_output=True, text=True)

    def test_a_forked_process_does_not_use_its_parents_client(self):
        done = self.run_python("""
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", sys.argv[1]) == 0
            assert store.put("parent", b"1") == 0
            if os.fork() == 0:
                assert (store.put("child", b"2"), store.get("parent"), store.health_check()) == (-600, b"", 1)
                own = MooncakeDistributedStore()
                assert own.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1]) == 0
                assert own.put("child", b"3") == 0
                sys.exit(5)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
            assert (store.get("parent"), store.get("child")) == (b"1", b"3")
        """)
        self.assertEqual((done.returncode, done.stderr.count("parent process")), (0, 1), done.stderr)

    def test_the_end_of_the_interpreter_unmounts_the_segments(self):
        done = self.run_python("""
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 0, "tcp", "", sys.argv[1]) == 0
            globals()["kept"] = store
            print(store.get_hostname())
            sys.exit(3)
        """)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("127.0.0.1:", done.stdout)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/get_all_segments") as response:
            listed = response.read().decode().split()
        self.assertEqual(len(listed), 1, "the node's segment")
        self.assertNotIn(done.stdout.strip(), listed)

    def test_a_contributing_client_is_read_by_others(self):
        own = self.started(segment=32 << 20)
        config = ReplicateConfig()
        config.preferred_segment = own.get_hostname()
        payload = value(1 << 20)
        self.assertEqual(own.put("mine", payload, config), 0)
        endpoint = own.get_replica_desc("mine")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint
        self.assertIn(f'peer="{endpoint}",transport="memory"', own.metrics())
        self.assertEqual(self.store.get("mine"), payload)

    def test_memory_without_permission_is_refused(self):
        self.assertEqual(self.store.put("k", bytes(4096)), 0)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        private_anonymous = 0x22
        for protection, put in [(0, INVALID), (1, 0)]:
            address = libc.mmap(None, 65536, protection, private_anonymous, -1, 0)
            for registered in [False, True]:
                if registered:
                    self.store.register_buffer(address, 65536)
                with self.subTest(protection=protection, registered=registered):
                    self.assertEqual(self.store.get_into("k", address, 65536), INVALID)
                    self.assertEqual(self.store.put_from(f"p{protection}{registered}", address, 4096), put)

    def test_memory_with_a_page_that_may_not_be_written_is_not_registered(self):
        self.assertEqual(self.store.put("k", bytes(65536)), 0)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        address = libc.mmap(None, 65536, 3, 0x22, -1, 0)
        self.assertEqual(self.store.register_buffer(address, 65536), 0)
        self.assertEqual(self.store.get_into("k", address, 65536), 65536)
        self.assertEqual(self.store.unregister_buffer(address), 0)
        self.assertEqual(libc.mprotect(address + 32768, 4096, 1), 0)
        self.assertEqual(self.store.register_buffer(address, 65536), INVALID)
        self.assertEqual(self.store.get_into("k", address, 65536), INVALID)

    def test_ctrl_c_ends_the_wait_for_a_master(self):
        script = """
            import sys
            from mcctl_mooncake.store import MooncakeDistributedStore
            print("begins", flush=True)
            try:
                MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1")
            except KeyboardInterrupt:
                sys.exit(7)
        """
        command = [sys.executable, "-c", textwrap.dedent(script)]
        # Without the interruption, the child does not end.
        env = dict(os.environ, PYTHONPATH=PACKAGES, MCCTL_SETUP_WAIT_SECONDS="86400")
        # This process may ignore the signal, for example as a background job, and a child inherits this setting.
        default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, preexec_fn=default)
        try:
            self.assertEqual(child.stdout.readline(), b"begins\n")
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.wait(timeout=60), 7)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    def test_daemon_threads_do_not_crash_the_end_of_the_interpreter(self):
        script = """
            import sys, threading, time
            from mcctl_mooncake.store import MooncakeDistributedStore
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1]) == 0
            def calls():
                while True:
                    store.is_exist("k")
            for _ in range(4):
                threading.Thread(target=calls, daemon=True).start()
            time.sleep(0.3)
            sys.exit(7)
        """
        for _ in range(3):
            command = [sys.executable, "-c", textwrap.dedent(script), self.master]
            child = subprocess.run(command, env=dict(os.environ, PYTHONPATH=PACKAGES), timeout=60)
            self.assertEqual(child.returncode, 7)

    def test_memory_of_a_killed_process_is_not_read_while_its_child_lives(self):
        script = """
            import os, sys, time
            from mcctl_mooncake.store import MooncakeDistributedStore
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 0, "tcp", "", sys.argv[1]) == 0
            child = os.fork()
            if child:
                print(store.get_hostname(), child, flush=True)
            time.sleep(60)
        """
        with mock.patch.dict(os.environ, MC_TRANSFER_TIMEOUT="1"):
            reader = self.started()
        command = [sys.executable, "-c", textwrap.dedent(script), self.master]
        with subprocess.Popen(command, env=dict(os.environ, PYTHONPATH=PACKAGES), stdout=subprocess.PIPE, text=True) as owner:
            name, child = owner.stdout.readline().split()
            try:
                config = ReplicateConfig()
                config.preferred_segment = name
                self.assertEqual(self.store.put("k", bytes(1 << 20), config), 0)
                self.assertEqual(reader.get("k"), bytes(1 << 20))
                owner.kill()
                owner.wait()
                # The child has the sockets of the killed process, so they do not show that it has ended.
                self.assertEqual(reader.get("k"), b"")
            finally:
                os.kill(int(child), 9)
                owner.stdout.close()

    def test_the_configuration_may_be_a_dictionary(self):
        port = free_port()
        store = MooncakeDistributedStore()
        settings = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "16mb",
                    "local_buffer_size": 0, "master_server_addr": self.master, "enable_client_http_server": "true",
                    "client_http_port": port}
        self.assertEqual(store.setup(settings), 0)
        self.addCleanup(store.close)
        store.put("k", b"v")
        store.get_batch(["k", "none"])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            text = response.read().decode()
        for line in ('result="hit"} 1', 'result="miss"} 1', "mooncake_transfer_read_bytes"):
            self.assertIn(line, text)
        self.assertLess(MooncakeDistributedStore().setup({"local_hostnam": "x", "metadata_server": "P2PHANDSHAKE",
                                                          "master_server_addr": "nowhere"}), 0)

    def test_a_lost_master_is_an_error_and_a_new_one_is_used(self):
        rpc, admin = free_port(), free_port()
        with master(PROGRAM, rpc, admin) as address:
            store = MooncakeDistributedStore()
            self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", 32 << 20, 0, "tcp", "", address), 0)
            self.addCleanup(store.close)
            self.assertEqual(store.put("k", b"v"), 0)
        began = time.monotonic()
        self.assertLess(store.put("k2", b"v"), 0)
        self.assertEqual(store.get("k"), b"")
        self.assertLess(time.monotonic() - began, 5)
        with master(PROGRAM, rpc, admin):
            self.assertEqual(store.is_exist("k"), 0)

    def test_a_put_whose_allocation_is_old_is_not_written(self):
        os.environ["MC_TRANSFER_TIMEOUT"] = "1"
        self.addCleanup(os.environ.pop, "MC_TRANSFER_TIMEOUT")
        with Proxy(self.master) as proxy:
            store = MooncakeDistributedStore()
            self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", proxy.address), 0)
            self.addCleanup(store.close)
            self.assertEqual(store.put("in time", b"1"), 0)
            # As if the process had been stopped between the allocation and the write.
            proxy.delay = 1.5
            began = time.monotonic()
            self.assertEqual(store.put("late", b"2"), -900)
            self.assertGreater(time.monotonic() - began, 1.5)
            proxy.delay = 0
            self.assertEqual((store.is_exist("late"), self.store.is_exist("late")), (0, 0))
            self.assertEqual(store.put("late", b"3"), 0, "the allocation was revoked")

    def keys_by_node(self, store):
        """Stores 40 objects, and returns the keys on each of two nodes."""
        keys = {}
        for index in range(40):
            self.assertEqual(store.put(f"n{index}", value(100)), 0)
            replica = store.get_replica_desc(f"n{index}")[0].get_memory_descriptor().buffer_descriptor
            keys.setdefault(replica.transport_endpoint, set()).add(f"n{index}")
        self.assertEqual(len(keys), 2, "objects on both nodes")
        return keys

    def found(self, store):
        """Reads the objects. Returns the keys of those that were read, and the duration in seconds."""
        keys = [f"n{index}" for index in range(40)]
        began = time.monotonic()
        values = store.get_batch(keys)
        return {key for key, data in zip(keys, values) if data}, time.monotonic() - began

    def test_a_stopped_node_fails_only_its_own_keys_within_the_timeout(self):
        self.enterContext(mock.patch.dict(os.environ, MC_TRANSFER_TIMEOUT="2", MCCTL_SHARED_MEMORY="0"))
        with node(PROGRAM, self.master) as other:
            store = self.started()
            keys = self.keys_by_node(store)
            other.stop()
            read, took = self.found(store)
            self.assertLess(took, 4)
            self.assertIn(read, list(keys.values()))

    def test_objects_of_a_stopped_node_are_read_through_shared_memory(self):
        self.enterContext(mock.patch.dict(os.environ, MC_TRANSFER_TIMEOUT="2"))
        with node(PROGRAM, self.master) as other:
            store = self.started()
            keys = self.keys_by_node(store)
            # The first read maps the memory of both nodes.
            self.found(store)
            shared = 'transport="shared-memory",direction="read"'
            if not all(f'peer="{name}",{shared}' in store.metrics() for name in keys):
                self.skipTest("the nodes do not share memory with this process")
            other.stop()
            read, took = self.found(store)
            self.assertLess(took, 4)
            self.assertEqual(read, set.union(*keys.values()))


if __name__ == "__main__":
    unittest.main()
