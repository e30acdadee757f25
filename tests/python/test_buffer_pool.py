"""Tests of the buffer pool, over a store that only records registrations.

  python -m unittest tests/python/test_buffer_pool.py

The expected outcomes are those of the pool of mooncake 0.3.13.post1 over a client with a local buffer.
"""

import ctypes
import gc
import mmap
import os
import sys
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "src", "python"))
from mcctl_mooncake.buffer_pool import BufferLease, BufferLeaseView, BufferPool  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20


class Store:
    """Records which addresses are registered."""

    def __init__(self, code=0):
        self.registered, self.calls, self.code = {}, 0, code

    def register_buffer(self, address, size):
        self.calls += 1
        if self.code == 0:
            self.registered[address] = size
        return self.code

    def unregister_buffer(self, address):
        del self.registered[address]
        return 0


class Pool(unittest.TestCase):
    def setUp(self):
        self.store = Store()

    def pool(self, **keywords):
        return BufferPool(self.store, **keywords)

    def test_values_that_are_not_valid_are_refused(self):
        for error, keywords in (
            (TypeError, {"max_bytes": -1}),
            (TypeError, {"block_on_exhaustion": 1}),
            (RuntimeError, {"min_size_class": 0}),
            (RuntimeError, {"alignment": 0}),
            (RuntimeError, {"alignment": 3}),
            (RuntimeError, {"default_timeout": "1"}),
            (RuntimeError, {"max_regions": -1}),
        ):
            self.assertRaises(error, self.pool, **keywords)
        self.assertRaises(RuntimeError, BufferPool, object())
        self.store._ready = False
        self.assertRaises(RuntimeError, self.pool)

    def test_only_the_pool_creates_leases(self):
        self.assertRaises(TypeError, BufferLease)
        self.assertRaises(TypeError, BufferLeaseView)

    def test_a_lease_has_registered_memory_of_the_requested_size(self):
        pool = self.pool(alignment=4096)
        for size in (0, 1, 64 * KIB, 64 * KIB + 1, 3 * MIB):
            with pool.acquire(size) as lease:
                self.assertEqual((lease.size, len(lease.buffer), lease.buffer.format), (size, size, "B"))
                self.assertEqual(lease.ptr % 4096, 0)
                self.assertGreaterEqual(self.store.registered[lease.ptr], size)

    def test_writes_through_the_view_reach_the_memory(self):
        with self.pool().acquire(10) as lease:
            lease.buffer[:3] = b"abc"
            self.assertEqual(ctypes.string_at(lease.ptr, 3), b"abc")

    def test_a_released_lease_has_no_memory(self):
        lease = self.pool().acquire(5)
        lease.release()
        lease.release()
        self.assertEqual(lease.size, 5)
        with self.assertRaises(RuntimeError):
            lease.ptr
        with self.assertRaises(BufferError):
            lease.buffer

    def test_a_lease_with_views_is_not_released(self):
        lease = self.pool().acquire(100)
        part = lease.buffer[10:]
        self.assertRaises(RuntimeError, lease.release)
        del part
        lease.release()

    def test_a_view_keeps_a_dropped_lease(self):
        pool = self.pool(max_regions=1)
        view = pool.acquire(100).buffer
        self.assertRaises(RuntimeError, pool.acquire, 100, False)
        del view
        gc.collect()
        pool.acquire(100, False)

    def test_memory_of_the_same_size_class_is_reused(self):
        pool = self.pool()
        first = pool.acquire(100 * KIB)
        address = first.ptr
        first.release()
        second = pool.acquire(128 * KIB)
        self.assertEqual((second.ptr, self.store.calls), (address, 1))
        self.assertNotEqual(pool.acquire(1).ptr, address)

    def test_free_memory_is_limited_by_max_bytes(self):
        pool = self.pool(max_bytes=128 * KIB)
        leases = [pool.acquire(1) for _ in range(4)]
        for lease in leases:
            lease.release()
        self.assertEqual(len(self.store.registered), 2)
        pool.acquire(128 * KIB).release()
        self.assertEqual(list(self.store.registered.values()), [128 * KIB])

    def test_buffers_above_max_size_class_are_not_kept(self):
        pool = self.pool(max_size_class=128 * KIB)
        pool.acquire(128 * KIB + 1).release()
        self.assertEqual(self.store.registered, {})

    def test_an_exhausted_pool_waits_or_raises(self):
        pool = self.pool(max_regions=1)
        lease = pool.acquire(1)
        self.assertRaises(RuntimeError, pool.acquire, 1, False)
        started = time.monotonic()
        self.assertRaises(RuntimeError, pool.acquire, 1, timeout=0.1)
        self.assertGreaterEqual(time.monotonic() - started, 0.1)
        self.assertRaises(RuntimeError, pool.acquire, 1, timeout=-1)
        threading.Timer(0.05, lease.release).start()
        pool.acquire(1, timeout=5)
        self.assertRaises(RuntimeError, self.pool(max_regions=0, block_on_exhaustion=False).acquire, 1)
        self.assertRaises(RuntimeError, self.pool(max_regions=0, default_timeout=0.01).acquire, 1)

    def test_a_free_buffer_of_another_size_makes_room(self):
        pool = self.pool(max_regions=1)
        pool.acquire(1).release()
        pool.acquire(MIB, False)
        self.assertEqual(list(self.store.registered.values()), [MIB])

    def test_prewarm_registers_memory_once(self):
        pool = self.pool(prewarm_size=100, prewarm_count=2)
        self.assertEqual(len(self.store.registered), 2)
        leases = [pool.acquire(1) for _ in range(2)]
        self.assertEqual(self.store.calls, 2)
        self.assertRaises(TypeError, pool.prewarm, 1, -1)
        del leases

    def test_close_unregisters_and_refuses_open_leases(self):
        pool = self.pool()
        lease = pool.acquire(1)
        self.assertRaises(RuntimeError, pool.close)
        lease.release()
        pool.close()
        pool.close()
        pool.prewarm(1, 1)
        self.assertEqual(self.store.registered, {})
        self.assertRaises(RuntimeError, pool.acquire, 1)

    def test_a_dropped_pool_unregisters(self):
        pool = self.pool()
        pool.acquire(1).release()
        self.assertEqual(len(self.store.registered), 1)
        del pool
        gc.collect()
        self.assertEqual(self.store.registered, {})

    def test_a_failed_registration_raises(self):
        self.store.code = -600
        pool = self.pool(max_regions=1)
        self.assertRaises(RuntimeError, pool.acquire, 1, False)
        self.store.code = 0
        pool.acquire(1, False)

    def test_a_failed_prewarm_does_not_use_up_regions(self):
        self.store.code = -600
        pool = self.pool(max_regions=1)
        self.assertRaises(RuntimeError, pool.prewarm, 1, 1)
        self.store.code = 0
        pool.acquire(1, False)

    def test_a_forked_process_does_not_use_its_parents_pool(self):
        pool = self.pool()
        lease = pool.acquire(1)
        child = os.fork()
        if child == 0:
            refused = False
            try:
                pool.acquire(1, False)
            except RuntimeError:
                refused = True
            lease.release()
            pool.close()
            os._exit(0 if refused and len(self.store.registered) == 1 else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        lease.release()


class HostMemory(unittest.TestCase):
    """Over a store with a host memory allocator."""

    def setUp(self):
        self.allocated = allocated = {}

        class Allocator:
            limit = None

            def alloc(self, size):
                if self.limit is not None and size > self.limit:
                    raise MemoryError
                memory = mmap.mmap(-1, size)
                address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                allocated[address] = memory
                return address

            def free(self, address):
                return -1 if allocated.pop(address, None) is None else 0

        self.allocator, self.store = Allocator, Store()
        self.store._host_memory_allocator = Allocator

    def test_memory_is_allocated_and_freed(self):
        pool = BufferPool(self.store, alignment=8 * MIB, max_bytes=64 * KIB)
        with pool.acquire(10) as lease:
            lease.buffer[:3] = b"abc"
            self.assertEqual((ctypes.string_at(lease.ptr, 3), lease.ptr % (8 * MIB)), (b"abc", 0))
            self.assertEqual(len(self.allocated), 1)
        pool.acquire(MIB).release()
        self.assertEqual(len(self.allocated), 1, "the buffer above max_bytes")
        pool.close()
        self.assertEqual((self.allocated, self.store.registered), ({}, {}))

    def test_memory_that_is_not_registered_is_freed(self):
        self.store.code = -600
        self.assertRaises(RuntimeError, BufferPool(self.store).acquire, 1)
        self.assertEqual(self.allocated, {})

    def test_plain_memory_is_used_if_the_allocator_has_none(self):
        self.allocator.limit = 0
        with BufferPool(self.store).acquire(10) as lease:
            lease.buffer[:3] = b"abc"
            self.assertEqual((ctypes.string_at(lease.ptr, 3), self.allocated), (b"abc", {}))

    def test_a_lease_in_a_garbage_cycle_returns_usable_memory(self):
        pool, cycle = BufferPool(self.store), []
        cycle += [cycle, pool.acquire(10)]
        address = cycle[1].ptr
        del cycle
        gc.collect()
        self.assertEqual(pool.acquire(10, False).ptr, address)
        self.assertEqual(len(self.allocated), 1)

    def test_a_garbage_cycle_of_pool_and_lease_frees_the_memory(self):
        cycle = [BufferPool(self.store)]
        cycle += [cycle, cycle[0].acquire(10)]
        del cycle
        gc.collect()
        self.assertEqual((self.allocated, self.store.registered), ({}, {}))


if __name__ == "__main__":
    unittest.main()
