"""One client of the store, for `compare`: reads requests from stdin, one JSON object per line, and prints one result per request.

  worker.py MODULE MASTER PROTOCOL DEVICES [SEGMENT]     MODULE: mooncake.store or mcctl_mooncake.store. SEGMENT: bytes to contribute;
                                                         the objects that this client reads are then in its own memory

A request: {"op": "get"|"put"|"get_value"|"exist"|"memcpy"|"fill"|"clear", "size": BYTES, "batch": N, "threads": N, "seconds": S, "bytes_max": BYTES}
A result: {"objects", "bytes", "seconds", "cpu", "p50", "p99", "errors"}; times in seconds, latencies of one call.
"""
import ctypes
import importlib
import json
import mmap
import os
import sys
import threading
import time

module, master, protocol, devices = sys.argv[1:5]
segment = int(sys.argv[5]) if len(sys.argv) > 5 else 0
prefix = "own" if segment else "g"
store_module = importlib.import_module(module)
store = store_module.MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 512 << 20, protocol, devices, master)
if code:
    sys.exit(f"setup: {code}")
allocator = store_module.MooncakeHostMemAllocator()
config = store_module.ReplicateConfig()
if segment:
    config.preferred_segment = store.get_hostname()
# Unlike ctypes.memmove, it releases the interpreter's lock.
memcpy = ctypes.CDLL(None).memcpy
memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
regions, kept = {}, []


def region(size, shared):
    """Returns the address of `size` bytes, touched and registered: from the store's allocator, or anonymous memory"""
    have = regions.get(shared)
    if have is None or have[1] < size:
        if shared:
            address = allocator.alloc(size)
        else:
            memory = mmap.mmap(-1, size)
            kept.append(memory)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(address, 7, size)
        if store.register_buffer(address, size):
            sys.exit("register_buffer failed")
        regions[shared] = have = (address, size)
    return have[0]


def source(size):
    """Returns the address of memory that memcpy reads, of the same size as the objects that gets read"""
    if "source" not in regions:
        memory = mmap.mmap(-1, size)
        kept.append(memory)
        regions["source"] = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(regions["source"], 5, size)
    return regions["source"]


def fill(size, count):
    """Stores the objects that gets read"""
    base = region(64 << 20, False)
    step = max(1, min(64, (64 << 20) // size))
    for start in range(0, count, step):
        names = [f"{prefix}{size}-{i}" for i in range(start, min(start + step, count))]
        codes = store.batch_put_from(names, [base + i * size for i in range(len(names))], [size] * len(names), config)
        if any(codes):
            sys.exit(f"fill: {codes}")


def run(request):
    op, size, batch, threads = request["op"], request["size"], request["batch"], request["threads"]
    each = region(size * batch * threads, request.get("shared", False)) if op in ("get", "put", "memcpy") else 0
    copied = source(1 << 30) if op == "memcpy" else 0
    calls_max = max(1, request["bytes_max"] // (size * batch * threads))
    latencies, errors, barrier = [[] for _ in range(threads)], [0] * threads, threading.Barrier(threads + 1)
    # Objects that are read in turn: enough not to stay in the processor's cache.
    pool = max(batch, min(request["objects"], (256 << 20) // size))

    def body(index):
        base = each + index * size * batch
        addresses, sizes = [base + i * size for i in range(batch)], [size] * batch
        barrier.wait()
        end, call, mine = time.perf_counter() + request["seconds"], 0, latencies[index]
        now = time.perf_counter()
        while now < end and call < calls_max:
            if op == "put":
                names = [f"p{index}-{call}-{i}" for i in range(batch)]
                begin = time.perf_counter()
                codes = store.batch_put_from(names, addresses, sizes)
                good = not any(codes)
            elif op == "get":
                first = (call * batch + index * 17) % (pool - batch + 1)
                names = [f"{prefix}{size}-{first + i}" for i in range(batch)]
                begin = time.perf_counter()
                codes = store.batch_get_into(names, addresses, sizes)
                good = all(code == size for code in codes)
            elif op == "memcpy":
                first = (call * batch + index * 17) % (pool - batch + 1)
                begin = time.perf_counter()
                # A get copies from changing places, a put to them.
                for i in range(batch):
                    here, there = addresses[i], copied + (first + i) * size
                    memcpy(*((there, here) if request["like"] == "put" else (here, there)), size)
                good = True
            elif op == "get_value":
                name = f"{prefix}{size}-{call % pool}"
                begin = time.perf_counter()
                good = len(store.get(name)) == size
            else:
                name = f"{prefix}{size}-{call % pool}"
                begin = time.perf_counter()
                good = store.is_exist(name) == 1
            now = time.perf_counter()
            mine.append(now - begin)
            errors[index] += not good
            call += 1

    workers = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.join()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    times = sorted(t for mine in latencies for t in mine)
    objects = len(times) * batch
    return {"seconds_per_byte": seconds / (objects * size), "objects": objects, "bytes": objects * size, "seconds": seconds, "cpu": cpu, "errors": sum(errors),
            "p50": times[len(times) // 2], "p99": times[min(len(times) - 1, len(times) * 99 // 100)]}


print("READY", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "fill":
        fill(request["size"], request["count"])
        result = {}
    elif request["op"] == "clear":
        result = {"removed": store.remove_all(True)}
    else:
        result = run(request)
    print(json.dumps(result), flush=True)
os._exit(0)
