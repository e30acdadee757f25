"""A client for `chaos`: writes and reads objects whose bytes depend on their key, and checks every byte that it reads.

  chaos_worker.py MASTER SEED SEGMENT_BYTES

Prints a JSON object per second: counts, resident memory, open files and mappings. Exit code 2: a wrong byte.
"""
import ctypes
import hashlib
import json
import os
import random
import sys
import threading
import time

from mcctl_mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

master, seed, segment = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
THREADS, SIZE_MAX, KEYS = 3, 1 << 20, 400
counts = {"puts": 0, "put_failures": 0, "gets": 0, "misses": 0, "get_failures": 0, "longest_s": 0.0}
lock = threading.Lock()


def value(key, version, size):
    """The bytes of an object: the version, then a pattern of key and version"""
    pattern = hashlib.blake2b(f"{key} {version}".encode()).digest()
    return (version.to_bytes(8, "little") + pattern * (size // len(pattern) + 1))[:size]


def check(key, data):
    version = int.from_bytes(data[:8], "little")
    if version > 1 << 40 or data != value(key, version, len(data)):
        print(f"WRONG BYTE: {len(data)} bytes read, version field {version}", file=sys.stderr, flush=True)
        os._exit(2)


def count(name, amount=1):
    with lock:
        counts[name] = counts.get(name, 0) + amount


def timed(call):
    began = time.monotonic()
    result = call()
    took = time.monotonic() - began
    with lock:
        counts["longest_s"] = max(counts["longest_s"], took)
    return result


def body(index):
    rng = random.Random(seed * 100 + index)
    anonymous = ctypes.create_string_buffer(8 * SIZE_MAX)
    shared = allocator.alloc(8 * SIZE_MAX)
    buffers = [(ctypes.addressof(anonymous), store.register_buffer(ctypes.addressof(anonymous), 8 * SIZE_MAX)),
               (shared, store.register_buffer(shared, 8 * SIZE_MAX))]
    while True:
        base = rng.choice(buffers)[0]
        names = [f"c{rng.randrange(KEYS)}" for _ in range(rng.choice([1, 1, 4, 8]))]
        names = list(dict.fromkeys(names))
        action = rng.random()
        if action < 0.35:
            is_put = rng.random() < 0.7
            # An upsert with the size of the object rewrites it in place, and readers may see bytes of both (docs/SEMANTICS.md), so each
            # upsert has a size of its own.
            sizes = [rng.choice([8, 100, 4096, 65536, SIZE_MAX]) if is_put else rng.randrange(8, SIZE_MAX) for _ in names]
            version = rng.randrange(1 << 30)
            for i, (name, size) in enumerate(zip(names, sizes)):
                ctypes.memmove(base + i * SIZE_MAX, value(name, version, size), size)
            write = store.batch_put_from if is_put else store.batch_upsert_from
            codes = timed(lambda: write(names, [base + i * SIZE_MAX for i in range(len(names))], sizes))
            count("puts", sum(code == 0 for code in codes))
            count("put_failures", sum(code != 0 for code in codes))
            for code in codes:
                if code:
                    count(f"put {code}")
        elif action < 0.4:
            code = timed(lambda: store.put(names[0], value(names[0], 7, 5000)))
            count("puts" if code == 0 else "put_failures")
        elif action < 0.45:
            timed(lambda: store.batch_remove(names, rng.random() < 0.2))
        elif action < 0.6:
            data = timed(lambda: store.get(names[0]))
            count("gets" if data else "misses")
            if data:
                check(names[0], data)
        else:
            codes = timed(lambda: store.batch_get_into(names, [base + i * SIZE_MAX for i in range(len(names))],
                                                       [SIZE_MAX] * len(names)))
            for i, (name, code) in enumerate(zip(names, codes)):
                if code > 0:
                    check(name, ctypes.string_at(base + i * SIZE_MAX, code))
                    count("gets")
                else:
                    count("misses" if code == -704 else "get_failures")


def usage():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {"rss_kib": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]),
            "files": len(os.listdir("/proc/self/fd")), "mappings": sum(1 for _ in open("/proc/self/maps"))}


store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 0, "tcp", "", master):
    sys.exit(3)
allocator = MooncakeHostMemAllocator()
for number in range(THREADS):
    threading.Thread(target=body, args=(number,), daemon=True).start()
while True:
    time.sleep(1)
    with lock:
        print(json.dumps({**counts, **usage()}), flush=True)
