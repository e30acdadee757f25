"""A real Python client of any release from 0.3.6 on, which executes commands: one JSON object per line. It runs in the wheel's
environment (tests/peers/install). For tests/release-matrix and tests/rolling-upgrade.

  release_worker.py

Answers begin with "@", because the wheel may print other lines. One per command:
  {"do":"setup","master":"H:P","metadata":m,"hostname":h,"segment":bytes,"local":bytes,"tries":n} -> {"rc":[of each try]}
  {"do":"write","put":[[key,size],..],"batch":[[key,size],..][,"segment":name]} -> {"bad":{key: why}}
      `put` with one call each, `batch` with one batch_put_from. `segment` is the preferred segment.
  {"do":"read","objects":[[key,size],..]} -> {"bad":{key: why},"again":{key: the get that succeeded, 2 or 3}}
      is_exist, batch_is_exist, get and batch_get_into. All bytes are compared.
  {"do":"put","key":k,"size":n[,"replicas":r,"segment":name]} -> {"rc":rc}
  {"do":"get","key":k,"size":n} -> {"size":found,"same":bool}
  {"do":"exist","keys":[..]} -> {"rc":[..]}
  {"do":"close"} -> {"rc":0}, and exits
Every answer has "ms", the duration of the call. The content of an object is a function of its key. At the end of stdin the process
exits without calling close.
"""
import ctypes
import json
import mmap
import os
import sys
import time
import zlib

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from payload import payload

store = None


def answer(**fields):
    # The wheel's own lines may lack a newline at the end.
    sys.stdout.write("\n@" + json.dumps(fields) + "\n")
    sys.stdout.flush()


def content(key, size):
    return payload(zlib.crc32(key.encode()), size)


def difference(found, wanted):
    """Why `found` is not `wanted`, or None."""
    if found == wanted:
        return None
    if len(found) != len(wanted):
        return f"{len(found)} bytes instead of {len(wanted)}"
    differ = [i for i, (x, y) in enumerate(zip(found, wanted)) if x != y]
    return f"{len(differ)} of {len(wanted)} bytes differ, from {differ[0]} to {differ[-1]}"


class Buffers:
    """One registered region with room for all objects."""

    def __init__(self, sizes):
        self.offsets, at = [], 0
        for size in sizes:
            self.offsets.append(at)
            at += -(-size // 4096) * 4096
        self.map = mmap.mmap(-1, max(at, 4096))
        self.view = ctypes.c_char.from_buffer(self.map)
        self.base, self.size = ctypes.addressof(self.view), max(at, 4096)
        self.pointers = [self.base + offset for offset in self.offsets]

    def __enter__(self):
        rc = store.register_buffer(self.base, self.size)
        if rc != 0:
            raise RuntimeError(f"register_buffer: {rc}")
        return self

    def __exit__(self, *_):
        store.unregister_buffer(self.base)
        del self.view
        self.map.close()


def setup(c):
    global store
    codes = []
    for _ in range(c.get("tries", 1)):
        store = MooncakeDistributedStore()
        codes.append(store.setup(c.get("hostname", "127.0.0.1"), c["metadata"], c["segment"], c["local"], "tcp", "", c["master"]))
        if codes[-1] == 0:
            break
    return {"rc": codes}


def config_of(c):
    config = ReplicateConfig()
    config.replica_num = c.get("replicas", 1)
    if c.get("segment"):
        config.preferred_segment = c["segment"]
    return config


def write(c):
    config, bad = config_of(c), {}
    for key, size in c.get("put", []):
        rc = store.put(key, content(key, size), config)
        if rc != 0:
            bad[key] = f"put: {rc}"
    batch = c.get("batch", [])
    if batch:
        with Buffers([size for _, size in batch]) as b:
            for pointer, (key, size) in zip(b.pointers, batch):
                ctypes.memmove(pointer, content(key, size), size)
            codes = store.batch_put_from([key for key, _ in batch], b.pointers, [size for _, size in batch], config)
        bad.update({key: f"batch_put_from: {rc}" for (key, _), rc in zip(batch, codes) if rc != 0})
    return {"bad": bad}


def read(c):
    bad, again = {}, {}
    objects = c["objects"]
    keys = [key for key, _ in objects]

    def note(key, why):
        if why:
            bad.setdefault(key, why)

    for key, found in zip(keys, store.batch_is_exist(keys)):
        note(key, None if found == 1 else f"batch_is_exist: {found}")
    for key, size in objects:
        found = store.is_exist(key)
        note(key, None if found == 1 else f"is_exist: {found}")
        wanted, found = content(key, size), store.get(key)
        for attempt in (2, 3):
            if not found:
                found = store.get(key)
                if found:
                    again[key] = attempt
        why = difference(found, wanted)
        note(key, why and f"get: {why}")
    with Buffers([size for _, size in objects]) as b:
        for attempt in (1, 2, 3):
            codes = store.batch_get_into(keys, b.pointers, [size for _, size in objects])
            if any(rc > 0 for rc in codes):
                again.update({keys[0]: attempt} if attempt > 1 else {})
                break
        for pointer, rc, (key, size) in zip(b.pointers, codes, objects):
            if rc != size:
                note(key, f"batch_get_into: {rc}")
            else:
                why = difference(ctypes.string_at(pointer, size), content(key, size))
                note(key, why and f"batch_get_into: {why}")
    return {"bad": bad, "again": again}


def get(c):
    found = store.get(c["key"])
    return {"size": len(found), "same": found == content(c["key"], c["size"])}


DO = {
    "setup": setup,
    "write": write,
    "read": read,
    "put": lambda c: {"rc": store.put(c["key"], content(c["key"], c["size"]), config_of(c))},
    "get": get,
    "exist": lambda c: {"rc": store.batch_is_exist(c["keys"])},
    "close": lambda c: {"rc": store.close()},
}


def main():
    for line in sys.stdin:
        c = json.loads(line)
        t = time.monotonic()
        try:
            fields = DO[c["do"]](c)
        except Exception as e:  # the caller reports it
            fields = {"error": f"{type(e).__name__}: {e}"}
        answer(**fields, ms=(time.monotonic() - t) * 1e3)
        if c["do"] == "close":
            break
    sys.stdout.flush()
    # Without destructors. The command `close` runs the client's.
    os._exit(0)


main()
