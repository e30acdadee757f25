"""Stores and values for the tests of the tensor methods."""

import ctypes
import importlib
import os
import sys
import unittest
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "src", "python")]
from mcctl_mooncake import parallelism, tensors  # noqa: E402
from servers import master  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


class Dictionary:
    """The byte methods that the tensor methods use, over a dict."""

    def __init__(self):
        self.objects = {}

    def setup(self, *_):
        return 0

    def close(self):
        return 0

    def put_parts(self, key, *parts, config=None, replace=False):
        if not key:
            return -600
        if replace or key not in self.objects:
            self.objects[key] = b"".join(bytes(part) for part in parts)
        return 0

    def upsert_parts(self, key, *parts, config=None):
        return self.put_parts(key, *parts, replace=True)

    def put(self, key, value, config=None):
        return self.put_parts(key, value)

    def upsert(self, key, value, config=None):
        return self.put_parts(key, value, replace=True)

    def put_from(self, key, address, size, config=None):
        return self.put_parts(key, ctypes.string_at(address, size))

    def upsert_from(self, key, address, size, config=None):
        return self.put_parts(key, ctypes.string_at(address, size), replace=True)

    def batch_put_from(self, keys, addresses, sizes, config=None):
        return [self.put_from(*one) for one in zip(keys, addresses, sizes)]

    def batch_upsert_from(self, keys, addresses, sizes, config=None):
        return [self.upsert_from(*one) for one in zip(keys, addresses, sizes)]

    def get_buffer(self, key):
        return self.objects.get(key)

    def batch_get_buffer(self, keys):
        return [self.objects.get(key) for key in keys]

    def get_into(self, key, address, size):
        data = self.objects.get(key)
        if data is None or len(data) > size:
            return -704 if data is None else -600
        ctypes.memmove(address, data, len(data))
        return len(data)

    def batch_get_into(self, keys, addresses, sizes):
        return [self.get_into(*one) for one in zip(keys, addresses, sizes)]

    def register_buffer(self, address, size):
        return 0

    def unregister_buffer(self, address):
        return 0

    def get(self, key):
        return self.objects.get(key, b"")


class DictionaryStore(tensors.TensorMethods, Dictionary):
    pass


def axis(kind, rank, size, split_dim=None, expert_id=None, stage_id=None, module=parallelism):
    one = module.ParallelAxis()
    one.kind, one.rank, one.size, one.split_dim, one.expert_id, one.stage_id = (
        kind,
        rank,
        size,
        split_dim,
        expert_id,
        stage_id,
    )
    return one


def axes(*given, module=parallelism):
    one = module.TensorParallelism()
    one.axes = [axis(*each, module=module) for each in given]
    return one


def target(mode, *given, module=parallelism):
    one = module.ReadTarget()
    one.mode, one.parallelism = mode, axes(*given, module=module) if given else None
    return one


def writer(rank, size, split_dim):
    return SimpleNamespace(rank=rank, size=size, split_dim=split_dim)


class Memory:
    """Registered memory of a store."""

    kept = []

    def __init__(self, store, size=4096, content=b""):
        self.memory = (ctypes.c_char * size)()
        self.kept.append(self.memory)
        self.memory[: len(content)] = content
        self.address, self.size = ctypes.addressof(self.memory), size
        store.register_buffer(self.address, size)


def master_address():
    """Returns the address in MCCTL_MASTER, or of a master that is started from MCCTL. Skips the tests without both.

    A started master ends after the tests of the module.
    """
    if os.environ.get("MCCTL_MASTER"):
        return os.environ["MCCTL_MASTER"]
    if not os.environ.get("MCCTL"):
        raise unittest.SkipTest("set MCCTL_MASTER=HOST:PORT or MCCTL=PROGRAM")
    return unittest.enterModuleContext(master(os.environ["MCCTL"]))


def connected(store, address):
    """Returns the store, set up with a segment of 256 MiB."""
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 256 << 20, 64 << 20, "tcp", "", address)
    if code != 0:
        raise unittest.SkipTest(f"setup returned {code}")
    return store


def optional(name):
    """Imports a module. Returns None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
