"""The calls of the method table: good arguments for every method, and the cases derived from them.

`GOOD` has a function for each public method. It receives a `Context` and returns the positional arguments of a call
that succeeds. `cases` derives the wrong calls from them by the names and types of the arguments in api-0.3.13.json.
"""

import ctypes
import json
import mmap
import os
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
API = json.load(open(os.path.join(HERE, "api-0.3.13.json")))
STORE = API["classes"]["MooncakeDistributedStore"]
# Their good call needs a fresh client, or ends the client.
OWN_CLIENT = {"setup", "setup_dummy", "init_all", "close", "remove_all"}
# Memory stays mapped: an address that returns with a later mapping overlaps the earlier registration.
MEMORY = []


def arguments(signature):
    """[(name, type, has a default)] without self, from the text of a signature."""
    text, depth, parts = signature[signature.index("(") + 1 : signature.rindex(")")], 0, [""]
    for c in text:
        depth += c in "[(" or -(c in "])")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    found = []
    for part in parts:
        name, _, rest = part.strip().partition(": ")
        if name and name not in ("self", "*args"):
            kind, equals, _ = rest.partition(" = ")
            found.append((name, kind, bool(equals)))
    return found


class Context:
    """The resources of a case: a client, fresh keys, registered memory, and torch if it is installed."""

    def __init__(self, module, store, ready, master, torch):
        self.module, self.store, self.ready, self.master, self.torch = module, store, ready, master, torch
        self.files = []

    def key(self):
        return f"methods-{uuid.uuid4().hex}-key"

    def put(self, value=b"0123456789abcdef"):
        key = self.key()
        if self.ready:
            self.store.put(key, value)
        return key

    def buffer(self, size=4096, content=b"", register=True):
        memory = mmap.mmap(-1, max(size, 4096))
        memory[: len(content)] = content
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        MEMORY.append(memory)
        if self.ready and register:
            self.store.register_buffer(address, len(memory))
        return address

    def config(self, **fields):
        config = self.module.ReplicateConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    def tensor(self, rows=4):
        return self.torch.arange(rows * 4, dtype=self.torch.float32).reshape(rows, 4)

    def put_tensor(self, tp=0):
        key = self.key()
        if self.ready:
            if tp:
                self.store.put_tensor_with_tp(key, self.tensor(), 0, tp, 0)
            else:
                self.store.put_tensor(key, self.tensor())
        return key

    def tensor_bytes(self):
        header, _, _, _ = self.module._serialize_tensor(self.tensor())
        return bytes(header) + self.tensor().numpy().tobytes()

    def tp(self, rank=0, size=2):
        axis = self.module.ParallelAxis()
        axis.kind, axis.rank, axis.size, axis.split_dim = "tp", rank, size, 0
        parallelism = self.module.TensorParallelism()
        parallelism.axes = [axis]
        return parallelism

    def segment_file(self):
        path = f"/dev/shm/methods-{os.getpid()}-{uuid.uuid4().hex}"
        with open(path, "wb") as f:
            f.truncate(16 << 20)
        self.files.append(path)
        return path

    def started_put(self, size=16):
        key = self.key()
        if self.ready:
            self.store.batch_put_session_start([key], [size])
        return key

    def started_get(self):
        key = self.put()
        if self.ready:
            self.store.batch_get_session_start([key])
        return key

    def segment(self, allocated):
        if not self.ready:
            return ["0-0"]
        if allocated:
            return self.store.allocate_and_mount_segment(16 << 20)["segment_ids"]
        return self.store.mount_segment(self.segment_file(), 16 << 20)["segment_ids"]

    def only(self, count):
        """Removes all objects and puts `count` new ones."""
        if self.ready:
            self.store.remove_all(True)
            for _ in range(count):
                self.put()

    def close(self):
        for path in self.files:
            os.unlink(path)


def setup(c):
    return ["127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", c.master]


def tensor_into(c):
    return [c.put_tensor(), c.buffer(), 4096]


def tensors_into(c):
    return [[c.put_tensor(), c.put_tensor()], [c.buffer(), c.buffer()], [4096, 4096]]


def tensor_from(c):
    content = c.tensor_bytes()
    return [c.key(), c.buffer(4096, content), len(content)]


def tensors_from(c):
    one, two = tensor_from(c), tensor_from(c)
    return [[one[0], two[0]], [one[1], two[1]], [one[2], two[2]]]


GOOD = {
    "_get_pyclient_capsule": lambda c: [],
    "alloc_from_mem_pool": lambda c: [4096],
    "allocate_and_mount_segment": lambda c: [16 << 20],
    "batch_get_buffer": lambda c: [[c.put(), c.put(b"second")]],
    "batch_get_into": lambda c: [[c.put(), c.put(b"second")], [c.buffer(), c.buffer()], [4096, 4096]],
    "batch_get_into_multi_buffer_ranges": lambda c: [[c.started_get()], [[c.buffer()]], [[8]], [[4]]],
    "batch_get_into_multi_buffers": lambda c: [[c.put()], [[c.buffer(), c.buffer()]], [[8, 8]]],
    "batch_get_replica_desc": lambda c: [[c.put()]],
    "batch_get_session_end": lambda c: [[c.started_get()]],
    "batch_get_session_start": lambda c: [[c.put()]],
    "batch_get_tensor": lambda c: [[c.put_tensor(), c.put_tensor()]],
    "batch_get_tensor_into": tensors_into,
    "batch_get_tensor_into_cuda": lambda c: [[c.put_tensor()], [c.tensor()]],
    "batch_get_tensor_with_parallelism": lambda c: [[c.put_tensor(), c.put_tensor()]],
    "batch_get_tensor_with_parallelism_into": tensors_into,
    "batch_get_tensor_with_tp": lambda c: [[c.put_tensor(2), c.put_tensor(2)], 1, 2],
    "batch_get_tensor_with_tp_into": lambda c: [[c.put_tensor(2)], [c.buffer()], [4096], 1, 2],
    "batch_is_exist": lambda c: [[c.put(), c.key()]],
    "batch_pub_tensor": lambda c: [[c.key(), c.key()], [c.tensor(), c.tensor()], c.config()],
    "batch_pub_tensor_with_tp": lambda c: [[c.key()], [c.tensor()], c.config(), 0, 2, 1],
    "batch_put_from": lambda c: [[c.key(), c.key()], [c.buffer(), c.buffer()], [16, 32]],
    "batch_put_from_multi_buffer_ranges": lambda c: [[c.started_put()], [[c.buffer()]], [[16]], [[0]]],
    "batch_put_from_multi_buffers": lambda c: [[c.key()], [[c.buffer(), c.buffer()]], [[8, 8]]],
    "batch_put_session_end": lambda c: [[c.started_put()]],
    "batch_put_session_revoke": lambda c: [[c.started_put()]],
    "batch_put_session_start": lambda c: [[c.key()], [16]],
    "batch_put_tensor": lambda c: [[c.key(), c.key()], [c.tensor(), c.tensor()]],
    "batch_put_tensor_from": tensors_from,
    "batch_put_tensor_with_parallelism": lambda c: [[c.key(), c.key()], [c.tensor(), c.tensor()], [c.tp(), c.tp(1)]],
    "batch_put_tensor_with_parallelism_from": tensors_from,
    "batch_put_tensor_with_tp": lambda c: [[c.key()], [c.tensor()], 0, 2, 1],
    "batch_put_tensor_with_tp_from": lambda c: [*tensors_from(c), 0, 2, 0],
    "batch_remove": lambda c: [[c.put(), c.key()], True],
    "batch_replica_clear": lambda c: [[c.put()]],
    "batch_upsert_from": lambda c: [[c.put(), c.key()], [c.buffer(), c.buffer()], [16, 32]],
    "batch_upsert_pub_tensor": lambda c: [[c.key(), c.key()], [c.tensor(), c.tensor()], c.config()],
    "batch_upsert_tensor": lambda c: [[c.put_tensor(), c.key()], [c.tensor(), c.tensor()]],
    "batch_upsert_tensor_from": tensors_from,
    "batch_upsert_tensor_with_parallelism": lambda c: [[c.key(), c.key()], [c.tensor(), c.tensor()], [c.tp(), c.tp(1)]],
    "batch_upsert_tensor_with_parallelism_from": tensors_from,
    "close": lambda c: [],
    "create_copy_task": lambda c: [c.put(), ["127.0.0.1:1"]],
    "create_move_task": lambda c: [c.put(), "127.0.0.1:1", "127.0.0.1:2"],
    "get": lambda c: [c.put()],
    "get_batch": lambda c: [[c.put(), c.put(b"second")]],
    "get_buffer": lambda c: [c.put()],
    "get_hostname": lambda c: [],
    "get_into": lambda c: [c.put(), c.buffer(), 4096],
    "get_into_ranges": lambda c: [[c.buffer()], [[c.put()]], [[[8]]], [[[4]]], [[[8]]]],
    "get_offload_rpc_read_count": lambda c: [],
    "get_replica_desc": lambda c: [c.put()],
    "get_size": lambda c: [c.put()],
    "get_tensor": lambda c: [c.put_tensor()],
    "get_tensor_into": tensor_into,
    "get_tensor_into_cuda": lambda c: [c.put_tensor(), c.tensor()],
    "get_tensor_with_parallelism": lambda c: [c.put_tensor()],
    "get_tensor_with_parallelism_into": tensor_into,
    "get_tensor_with_tp": lambda c: [c.put_tensor(2), 1, 2],
    "get_tensor_with_tp_into": lambda c: [c.put_tensor(2), c.buffer(), 4096, 1, 2],
    "health_check": lambda c: [],
    "init_all": lambda c: ["tcp", "", 16 << 20],
    "is_exist": lambda c: [c.put()],
    "load_tensor_from_safetensor": lambda c: [c.key(), c.segment_file()],
    "mount_segment": lambda c: [c.segment_file(), 16 << 20],
    "pub_tensor": lambda c: [c.key(), c.tensor(), c.config()],
    "pub_tensor_with_tp": lambda c: [c.key(), c.tensor(), c.config(), 0, 2, 1],
    "put": lambda c: [c.key(), b"0123456789abcdef"],
    "put_batch": lambda c: [[c.key(), c.key()], [b"first", b"second"]],
    "put_from": lambda c: [c.key(), c.buffer(), 16],
    "put_from_with_metadata": lambda c: [c.key(), c.buffer(), c.buffer(), 16, 8],
    "put_parts": lambda c: [c.key(), b"first", bytearray(b"second")],
    "put_tensor": lambda c: [c.key(), c.tensor()],
    "put_tensor_from": tensor_from,
    "put_tensor_with_parallelism": lambda c: [c.key(), c.tensor(), c.tp()],
    "put_tensor_with_parallelism_from": lambda c: [*tensor_from(c), c.tp()],
    "put_tensor_with_tp": lambda c: [c.key(), c.tensor(), 0, 2, 1],
    "put_tensor_with_tp_from": lambda c: [*tensor_from(c), 0, 2, 0],
    "query_task": lambda c: [(1, 2)],
    "register_buffer": lambda c: [c.buffer(register=False), 4096],
    "remove": lambda c: [c.put(), True],
    "remove_all": lambda c: c.only(2) or [True],
    "remove_by_regex": lambda c: [c.put() + "$", True],
    "save_tensor_to_safetensor": lambda c: [c.put_tensor(), c.segment_file()],
    "setup": setup,
    "setup_dummy": lambda c: [16 << 20, 16 << 20, "127.0.0.1:1"],
    "unmount_and_free_segment": lambda c: [c.segment(True)],
    "unmount_local_disk_segment": lambda c: [],
    "unmount_segment": lambda c: [c.segment(False)],
    "unregister_buffer": lambda c: [c.buffer()],
    "upsert": lambda c: [c.put(), b"0123456789abcdef"],
    "upsert_batch": lambda c: [[c.put(), c.key()], [b"first", b"second"]],
    "upsert_from": lambda c: [c.put(), c.buffer(), 16],
    "upsert_parts": lambda c: [c.put(), b"first", b"second"],
    "upsert_pub_tensor": lambda c: [c.key(), c.tensor(), c.config()],
    "upsert_tensor": lambda c: [c.put_tensor(), c.tensor()],
    "upsert_tensor_from": tensor_from,
    "upsert_tensor_with_parallelism": lambda c: [c.key(), c.tensor(), c.tp()],
    "upsert_tensor_with_parallelism_from": lambda c: [*tensor_from(c), c.tp()],
}
# Methods that write: an unknown key is the good case for them.
WRITES = ("put", "batch_put", "pub", "batch_pub", "upsert", "batch_upsert", "load_", "create_")


def replaced(position, value):
    """A change of one argument. `value` may be a function of (context, argument)."""

    def change(c, args):
        args[position] = value(c, args[position]) if callable(value) else value
        return args

    return change


def changes(name):
    """[(case, change)] for a method, derived from its arguments' names and types."""
    args = arguments(STORE[name][0]) if STORE[name] else []
    found = []
    for i, (arg, kind, _) in enumerate(args):
        found.append((f"wrong-type-{arg}", replaced(i, lambda c, _: object())))
        if kind == "str" and arg in ("key", "arg0"):
            found.append(("empty-key", replaced(i, "")))
            if not name.startswith(WRITES):
                found.append(("unknown-key", replaced(i, lambda c, _: c.key())))
        elif kind == "list[str]" and arg in ("keys", "base_keys", "arg0"):
            found.append(("no-keys", replaced(i, [])))
            found.append(("more-keys", replaced(i, lambda c, keys: [*keys, c.key()])))
            if not name.startswith(WRITES):
                found.append(("unknown-keys", replaced(i, lambda c, keys: [c.key() for _ in keys])))
        elif kind == "int" and arg in ("size", "arg0", "metadata_size"):
            found += [(f"{arg}-{n}", replaced(i, n)) for n in (0, -1, 5)]
        elif kind == "list[int]" and arg == "sizes":
            found += [(f"{arg}-{n}", replaced(i, lambda c, sizes, n=n: [n] * len(sizes))) for n in (0, -1, 5)]
        elif kind == "list[list[int]]" and (arg.endswith("sizes") or arg.endswith("offsets")):
            found += [(f"{arg}-{n}", replaced(i, [[n]])) for n in (0, -1, 4000)]
            found.append((f"{arg}-empty", replaced(i, [[]])))
        elif arg == "buffer_ptr":
            found.append(("null-buffer", replaced(i, 0)))
        elif arg == "buffer_ptrs" and kind == "list[int]":
            found.append(("null-buffers", replaced(i, lambda c, ptrs: [0] * len(ptrs))))
            found.append(("fewer-buffers", replaced(i, lambda c, ptrs: ptrs[:-1])))
        elif arg in ("tp_rank", "tp_size", "split_dim"):
            found += [(f"{arg}-{n}", replaced(i, n)) for n in (-1, 3, 9)]
        elif arg == "tensor":
            found.append(("tensor-none", replaced(i, lambda c, _: None)))
        elif arg == "tensors_list":
            found.append(("tensors-none", replaced(i, lambda c, tensors: [None] * len(tensors))))
            found.append(("fewer-tensors", replaced(i, lambda c, tensors: tensors[:-1])))
        elif kind == "ReplicateConfig":
            found.append(("config-no-replica", replaced(i, lambda c, _: c.config(replica_num=0))))
            found.append(("config-9-replicas", replaced(i, lambda c, _: c.config(replica_num=9))))
            found.append(("config-groups", replaced(i, lambda c, _: c.config(group_ids=["a", "b", "c", "d", "e"]))))
            found.append(("config-hard-pin", replaced(i, lambda c, _: c.config(with_hard_pin=True))))
        elif arg == "values":
            found.append(("fewer-values", replaced(i, lambda c, values: values[:-1])))
            found.append(("empty-values", replaced(i, lambda c, values: [b""] * len(values))))
        elif arg == "value":
            found.append(("empty-value", replaced(i, b"")))
    return found
