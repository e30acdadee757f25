"""Registered memory of a buffer pool, from the store's host memory allocator if it has one."""

import contextlib
import ctypes
import mmap


class _HostMemory:
    """Memory from a host memory allocator: nodes on the same host copy from it. It is freed with free() only.

    Raises MemoryError if the allocator cannot provide it.
    """

    def __init__(self, allocator, size):
        self.allocator = allocator
        self.start = allocator.alloc(size)

    def view(self, address, size):
        """`size` bytes at `address` as a ctypes array, valid until free()."""
        return (ctypes.c_char * size).from_address(address)

    def free(self):
        self.allocator.free(self.start)


class _PrivateMemory:
    """Anonymous memory, for a store without a host memory allocator."""

    def __init__(self, size):
        self.memory = mmap.mmap(-1, size)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def view(self, address, size):
        """`size` bytes at `address` as a ctypes array, which keeps the memory."""
        return (ctypes.c_char * size).from_buffer(self.memory, address - self.start)

    def free(self):
        """No effect: Python unmaps the memory together with the last view."""


def _allocate(store, size):
    allocator = getattr(store, "_host_memory_allocator", None)
    if allocator is not None:
        with contextlib.suppress(MemoryError):
            return _HostMemory(allocator(), size)
    return _PrivateMemory(size)


class Region:
    """Registered memory of one size class. `size` bytes at `address` are used.

    Raises RuntimeError if the memory cannot be registered.
    """

    def __init__(self, store, size, alignment):
        self.size = size
        # Allocated memory starts at a page boundary.
        self.memory = _allocate(store, size + (alignment if alignment > mmap.PAGESIZE else 0))
        self.address = self.memory.start + -self.memory.start % alignment
        if store.register_buffer(self.address, size) != 0:
            self.memory.free()
            raise RuntimeError(f"cannot register a buffer of {size} bytes with the store")

    def end(self, store):
        """Unregisters and frees the memory. No view of it may exist."""
        try:
            store.unregister_buffer(self.address)
        finally:
            self.memory.free()
