"""A pool of registered memory, for put_from and get_into without a registration for each call."""

import os
import threading
import time
import weakref

from . import arguments
from .region import Region

_UNLIMITED = (1 << 64) - 1


class BufferLeaseView:
    """An exported view of a lease. Only a lease creates it."""

    def __init__(self, *args):
        raise TypeError("BufferLeaseView has no constructor")

    @property
    def buffer(self):
        raise TypeError("BufferLeaseView has no buffer: use BufferLease.buffer")


class BufferLease:
    """Memory of a pool for one caller. Return it with release() or with a `with` statement."""

    def __init__(self, *args):
        raise TypeError("BufferLease has no constructor: use BufferPool.acquire")

    @classmethod
    def _of(cls, pool, region, size):
        self = object.__new__(cls)
        self._pool, self._region, self._size, self._views = pool, region, size, []
        return self

    @property
    def size(self):
        """The requested number of bytes."""
        return self._size

    @property
    def ptr(self):
        """The address. Raises RuntimeError after release."""
        if self._region is None:
            raise RuntimeError("the buffer lease is closed")
        return self._region.address

    @property
    def buffer(self):
        """A writable memoryview of `size` bytes. Raises BufferError after release."""
        if self._region is None:
            raise BufferError("the buffer lease is closed")
        view = self._region.memory.view(self._region.address, self._size)
        # The view keeps the lease and its memory alive. The lease has a weak reference to the view.
        view.lease = self
        self._views = [reference for reference in self._views if reference() is not None]
        self._views.append(weakref.ref(view))
        return memoryview(view).cast("B") if self._size else memoryview(bytearray())

    def release(self):
        """Returns the memory to the pool. A second call has no effect.

        Raises RuntimeError while a memoryview of the memory exists.
        """
        if self._region is None:
            return
        if any(reference() is not None for reference in self._views):
            raise RuntimeError("cannot release the buffer while views of it exist")
        region, self._region = self._region, None
        self._pool._release(region)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        region = getattr(self, "_region", None)
        if region is not None:
            self._region = None
            self._pool._release(region)


class BufferPool:
    """A pool of registered memory of a store.

    max_bytes: how many bytes of free memory the pool keeps; 0 for no limit. min_size_class: the smallest size; sizes
    are this size times a power of two. max_size_class: larger buffers are not kept, and have their own size.
    alignment: alignment of the addresses in bytes, a power of two. max_regions: the highest number of buffers, or
    None. block_on_exhaustion: whether acquire waits for a free buffer when max_regions are in use. default_timeout:
    how many seconds it waits, or None for no limit. prewarm_size, prewarm_count: how many buffers of a size are
    registered at once.

    Raises RuntimeError if the store is not set up, and for values that are not valid.
    """

    def __init__(
        self,
        store,
        max_bytes=0,
        min_size_class=65536,
        max_size_class=None,
        alignment=8388608,
        block_on_exhaustion=True,
        default_timeout=None,
        max_regions=None,
        prewarm_size=None,
        prewarm_count=0,
    ):
        self._closed, self._free, self._regions, self._held = True, {}, 0, 0
        self._max_bytes = arguments.size("max_bytes", max_bytes) or _UNLIMITED
        self._min = arguments.size("min_size_class", min_size_class)
        self._alignment = arguments.size("alignment", alignment)
        prewarm_count = arguments.size("prewarm_count", prewarm_count)
        if not isinstance(block_on_exhaustion, bool):
            raise TypeError(f"argument 'block_on_exhaustion' must be bool, not {type(block_on_exhaustion).__name__}")
        if not hasattr(store, "register_buffer") or not hasattr(store, "unregister_buffer"):
            raise RuntimeError("the first argument of BufferPool must be a MooncakeDistributedStore")
        if not getattr(store, "_ready", True):
            raise RuntimeError("the MooncakeDistributedStore is not set up")
        if self._min == 0 or self._alignment == 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if self._alignment < 8 or self._alignment & (self._alignment - 1):
            raise RuntimeError("alignment must be a power of two, and at least 8")
        self._max = _UNLIMITED if max_size_class is None else _number("max_size_class", max_size_class)
        self._max_regions = _UNLIMITED if max_regions is None else _number("max_regions", max_regions)
        self._timeout = None if default_timeout is None else _seconds("default_timeout", default_timeout)
        self._block, self._store, self._closed = block_on_exhaustion, store, False
        self._process = os.getpid()
        self._changed = threading.Condition()
        if prewarm_size is not None:
            self.prewarm(_number("prewarm_size", prewarm_size), prewarm_count)

    def _class_of(self, size):
        """(size of the memory, whether it is kept) for a request."""
        kept = self._min
        while kept < size:
            kept *= 2
        return (kept, True) if kept <= self._max else (max(size, 1), False)

    def acquire(self, size, block=None, timeout=None):
        """Returns a BufferLease of `size` bytes.

        block: whether to wait for a free buffer (default: block_on_exhaustion). timeout: how many seconds (default:
        default_timeout). Raises RuntimeError if no buffer is free, the pool is closed, or it was created before a fork.
        """
        size = arguments.size("size", size)
        if block is not None and not isinstance(block, bool):
            raise RuntimeError(f"argument 'block' must be bool, not {type(block).__name__}")
        block = self._block if block is None else block
        timeout = self._timeout if timeout is None else _seconds("timeout", timeout)
        if timeout is not None and timeout < 0:
            raise RuntimeError("timeout must not be negative")
        if self._process != os.getpid():
            raise RuntimeError("the buffer pool belongs to the parent process: create a pool in this process")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("the buffer pool is closed")
                region = self._take(*self._class_of(size))
                if region is not None:
                    self._held += 1
                    return BufferLease._of(self, region, size)
                if not block:
                    raise RuntimeError("the buffer pool is exhausted")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("no buffer became free before the timeout")
                self._changed.wait(left)

    def buffer(self, size, block=None, timeout=None):
        """The same as acquire."""
        return self.acquire(size, block, timeout)

    def _take(self, size, kept):
        """A free or a new region, or None if max_regions exist and none can be replaced."""
        if kept and self._free.get(size):
            return self._free[size].pop()
        if self._regions >= self._max_regions:
            other = self._other(size)
            if other is None:
                return None
            self._drop(other)
        return self._add(size)

    def _add(self, size):
        """Creates a region. If that fails, the number of regions does not change."""
        region = Region(self._store, size, self._alignment)
        self._regions += 1
        return region

    def _free_bytes(self):
        return sum(size * len(regions) for size, regions in self._free.items())

    def _other(self, size):
        """Takes a free region of another size. Returns None if there is none."""
        return next((regions.pop() for each, regions in self._free.items() if regions and each != size), None)

    def _drop(self, region):
        self._regions -= 1
        region.end(self._store)

    def _release(self, region):
        if self._process != os.getpid():
            return
        with self._changed:
            self._held -= 1
            kept = self._class_of(region.size) == (region.size, True) and region.size <= self._max_bytes
            if kept and not self._closed:
                # Free regions of other sizes make room for the one that was used last.
                while self._free_bytes() + region.size > self._max_bytes:
                    self._drop(self._other(region.size) or self._free[region.size].pop())
                self._free.setdefault(region.size, []).append(region)
            else:
                self._drop(region)
            self._changed.notify()

    def prewarm(self, size, count):
        """Registers `count` buffers for requests of `size` bytes, at most up to max_bytes and max_regions."""
        size, count = arguments.size("size", size), arguments.size("count", count)
        size, kept = self._class_of(size)
        with self._changed:
            for _ in range(count if kept and not self._closed else 0):
                if self._regions >= self._max_regions or self._free_bytes() + size > self._max_bytes:
                    return
                self._free.setdefault(size, []).append(self._add(size))

    def close(self):
        """Unregisters the memory. Raises RuntimeError while leases exist. A second call has no effect."""
        if self._closed or self._process != os.getpid():
            return
        with self._changed:
            if self._held:
                raise RuntimeError("cannot close the buffer pool while leases exist")
            self._closed = True
            for regions in self._free.values():
                for region in regions:
                    self._drop(region)
            self._free = {}
            self._changed.notify_all()

    def __del__(self):
        try:
            self.close()
        except Exception:
            # Leases that are deleted together with the pool have not been released: their memory is not kept.
            self._closed = True


def _number(name, value):
    try:
        return arguments.size(name, value)
    except TypeError as error:
        raise RuntimeError(str(error)) from None


def _seconds(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RuntimeError(f"argument '{name}' must be a number of seconds, not {type(value).__name__}")
    return float(value)


RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView
__all__ = ["BufferPool", "RegisteredBufferPool"]
