"""Runs the real Python client (`mooncake.store.MooncakeDistributedStore`) through everything that mcctl supports.

Runs in the wheel's environment (tests/peers/install). Each check is a function whose name states the rule. The checks run in
the order of the file over one client, and print one line each and a last line "N passed, N failed". Exit 0 if none failed.

  client_suite.py --master H:P --metadata P2PHANDSHAKE|http://H:P/metadata [--hostname 127.0.0.1] [--nodes 1]
                  [--segment-size BYTES] [--local-buffer BYTES] [--device rxe0,rxe1] [--batch 128] [--largest BYTES]
                  [--small 1000] [--only NAME,NAME]

`--nodes` is the number of store nodes, without this client's own segment. It limits the result of replica_num 2. With
--segment-size 0 the process is a pure client, and every byte is transferred to the nodes. With --device, transfers use RDMA. If
that is slow, --batch, --largest and --small reduce the large checks. The expected numbers are those of the real master
0.3.13.post1, against which the suite runs as well.
"""
import argparse
import ctypes
import mmap
import os
import time
import traceback

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from payload import payload

KIB, MIB = 1 << 10, 1 << 20
NOT_FOUND, LEASED, INVALID = -704, -706, -600

ap = argparse.ArgumentParser()
ap.add_argument("--master", required=True)
ap.add_argument("--metadata", default="P2PHANDSHAKE")
ap.add_argument("--hostname", default="127.0.0.1")
ap.add_argument("--nodes", type=int, default=1)
ap.add_argument("--segment-size", type=int, default=0)
ap.add_argument("--local-buffer", type=int, default=80 * MIB)
ap.add_argument("--device", default="")
ap.add_argument("--batch", type=int, default=128, help="objects of 1 MiB in the large batch")
ap.add_argument("--largest", type=int, default=64 * MIB)
ap.add_argument("--small", type=int, default=1000, help="small objects; a multiple of 125")
ap.add_argument("--only", default="")
a = ap.parse_args()

store = MooncakeDistributedStore()


def equal(found, wanted, what=""):
    """Fails with both values, truncated."""
    if found != wanted:
        raise AssertionError(f"{what or 'value'}: found {str(found)[:200]}, wanted {str(wanted)[:200]}")


def same_bytes(found, wanted, what, again=None):
    """Compares bytes and reports a summary of the differences. `again` reads once more, to see whether the stored bytes are right."""
    if found == wanted:
        return
    report = f"{what}: {len(found)} bytes, wanted {len(wanted)}"
    differ = [i for i, (x, y) in enumerate(zip(found, wanted)) if x != y]
    if differ:
        zeros = sum(found[i] == 0 for i in differ)
        report += f"; {len(differ)} differ, from {differ[0]} to {differ[-1]}, {zeros} of them 0"
    if again:
        try:
            report += f"; read again they are {'right' if again() == wanted else 'wrong'}"
        except AssertionError as e:
            report += f"; reading again failed: {e}"
    raise AssertionError(report)


def clear():
    """Removes all objects, also leased ones, so that the next check starts with an empty store."""
    if store.remove_all(True) < 0:
        raise AssertionError("remove_all(force) failed")


class Buffer:
    """Anonymous memory, registered with the client within a `with` block."""

    def __init__(self, size):
        self.map, self.size = mmap.mmap(-1, size), size
        self._view = ctypes.c_char.from_buffer(self.map)
        self.ptr = ctypes.addressof(self._view)

    def __enter__(self):
        equal(store.register_buffer(self.ptr, self.size), 0, "register_buffer")
        return self

    def __exit__(self, *_):
        rc = store.unregister_buffer(self.ptr)
        del self._view
        self.map.close()
        equal(rc, 0, "unregister_buffer")


def sizes_from_one_byte_to_64_mib_come_back_identical():
    for i, size in enumerate((1, 4 * KIB, MIB, a.largest)):
        key, value = f"suite/size/{size}", payload(1000 + i, size)
        equal(store.put(key, value), 0, f"put of {size} B")
        equal(store.is_exist(key), 1, f"is_exist of {size} B")
        equal(store.get_size(key), size, f"get_size of {size} B")
        same_bytes(store.get(key), value, f"get of {size} B")
        equal(store.remove(key, True), 0, f"remove(force) of {size} B")
        equal(store.is_exist(key), 0, f"is_exist of {size} B after remove")


def a_value_of_no_bytes_is_refused():
    equal(store.put("suite/empty", b""), INVALID, "put of 0 B")
    equal(store.is_exist("suite/empty"), 0)


def unusual_sizes_and_keys_come_back_identical():
    for i, (key, size) in enumerate([("a", 3), ("k" * 1024, 4097), ("käse/ключ/鍵 with blanks", 65537), ("x" * 68 + "_0_k", MIB + 1)]):
        value = payload(2000 + i, size)
        equal(store.put(key, value), 0, f"put {key[:20]}")
        same_bytes(store.get(key), value, f"get {key[:20]}")
    clear()


def a_key_is_written_once():
    equal(store.put("suite/once", b"first"), 0)
    equal(store.put("suite/once", b"second"), 0, "put of an existing key")
    same_bytes(store.get("suite/once"), b"first", "value after the second put")
    clear()


def a_missing_key_is_reported_as_not_found():
    equal(store.is_exist("suite/none"), 0)
    equal(store.get("suite/none"), b"")
    equal(store.get_size("suite/none"), NOT_FOUND)
    equal(store.remove("suite/none"), NOT_FOUND)
    with Buffer(64 * KIB) as b:
        equal(store.get_into("suite/none", b.ptr, 64 * KIB), NOT_FOUND)
        equal(store.batch_get_into(["suite/none"], [b.ptr], [64 * KIB]), [NOT_FOUND])


def a_batch_reports_whether_each_key_exists():
    keys = [f"suite/exist/{i}" for i in range(16)]
    for k in keys[::2]:
        equal(store.put(k, b"v"), 0)
    equal(store.batch_is_exist(keys), [1, 0] * 8)
    clear()


def a_batch_of_128_mib_moves_between_registered_buffers():
    n, size = a.batch, MIB
    keys = [f"suite/batch/{i:03d}_0_k" for i in range(n)]
    with Buffer(n * size) as b:
        for i in range(n):
            b.map[i * size:(i + 1) * size] = payload(3000 + i, size)
        ptrs, sizes = [b.ptr + i * size for i in range(n)], [size] * n
        equal(store.batch_put_from(keys, ptrs, sizes), [0] * n, "batch_put_from")
        b.map[:] = b"\0" * (n * size)
        equal(store.batch_get_into(keys, ptrs, sizes), [size] * n, "batch_get_into")

        def again(i):
            b.map[:] = b"\0" * (n * size)
            equal(store.batch_get_into(keys, ptrs, sizes), [size] * n, "batch_get_into again")
            return b.map[i * size:(i + 1) * size]
        for i in range(n):
            same_bytes(b.map[i * size:(i + 1) * size], payload(3000 + i, size), f"object {i}", lambda i=i: again(i))
        # Once more in reverse order, with leases and open connections.
        equal(store.batch_get_into(keys[::-1], ptrs, sizes), [size] * n, "batch_get_into reversed")
        same_bytes(b.map[:size], payload(3000 + n - 1, size), "first of the reversed")
    equal(store.remove_all(True), n, "remove_all counts")


def one_object_moves_between_registered_buffers():
    with Buffer(2 * MIB) as b:
        value = payload(4000, 300_001)
        b.map[:len(value)] = value
        equal(store.put_from("suite/from", b.ptr, len(value)), 0)
        equal(store.get_into("suite/from", b.ptr + MIB, MIB), len(value), "get_into returns the size")
        same_bytes(b.map[MIB:MIB + len(value)], value, "get_into")
        equal(b.map[MIB + len(value):], b"\0" * (MIB - len(value)), "the rest of the buffer")
        if store.get_into("suite/from", b.ptr, len(value) - 1) >= 0:
            raise AssertionError("get_into a buffer that is too small succeeded")
    clear()


def an_object_is_gathered_from_buffers_and_scattered():
    with Buffer(4 * MIB) as b:
        keys = [f"suite/pieces/{i}" for i in range(8)]
        value = payload(4100, 2 * MIB)
        b.map[:2 * MIB] = value
        piece = 64 * KIB
        ptrs = [[b.ptr + (4 * i + j) * piece for j in range(4)] for i in range(8)]
        lens = [[piece] * 4 for _ in keys]
        equal(store.batch_put_from_multi_buffers(keys, ptrs, lens), [0] * 8)
        equal([store.get_size(k) for k in keys], [4 * piece] * 8)
        into = [[p + 2 * MIB for p in row] for row in ptrs]
        equal(store.batch_get_into_multi_buffers(keys, into, lens), [4 * piece] * 8)
        same_bytes(b.map[2 * MIB:], value, "scattered")
    equal(store.put_parts("suite/parts", b"ab", b"cde", b"f"), 0)
    same_bytes(store.get("suite/parts"), b"abcdef", "put_parts")
    clear()


def lists_of_values_move_in_one_call():
    keys, values = [f"suite/list/{i}" for i in range(12)], [payload(4200 + i, 10_000 + i) for i in range(12)]
    equal(store.put_batch(keys, values), 0)
    equal(store.get_batch(keys), values, "get_batch")
    clear()


def two_replicas_lie_on_two_segments():
    config = ReplicateConfig()
    config.replica_num = 2
    value = payload(5000, MIB)
    equal(store.put("suite/two", value, config), 0)
    where = [r.get_memory_descriptor().buffer_descriptor for r in store.get_replica_desc("suite/two")]
    possible = min(2, a.nodes + (a.segment_size > 0))
    equal(len({w.transport_endpoint for w in where}), possible, "distinct endpoints")
    equal([w.size for w in where], [MIB] * possible, "sizes of the replicas")
    same_bytes(store.get("suite/two"), value, "get")
    clear()


def a_read_key_is_leased_and_only_force_removes_it():
    equal(store.put("suite/leased", b"value"), 0)
    equal(store.is_exist("suite/leased"), 1)
    equal(store.remove("suite/leased"), LEASED, "remove under lease")
    equal(store.remove_all(), 0, "remove_all skips it")
    equal(store.remove_by_regex("^suite/leased$"), 0, "remove_by_regex skips it")
    equal(store.remove("suite/leased", True), 0, "remove(force)")
    equal(store.is_exist("suite/leased"), 0)
    equal(store.put("suite/unread", b"value"), 0)
    equal(store.remove("suite/unread"), 0, "remove of a key that was not read")


def patterns_match_anywhere_in_the_key():
    for k in ("suite/re/a1", "suite/re/a2", "suite/re/b1", "other/re/a1"):
        equal(store.put(k, b"v"), 0)
    equal(store.remove_by_regex("re/a[0-9]+$"), 3)
    equal(store.batch_is_exist(["suite/re/a1", "suite/re/a2", "suite/re/b1", "other/re/a1"]), [0, 0, 1, 0])
    equal(store.remove_by_regex("(("), INVALID, "an invalid pattern")
    equal(store.batch_remove(["suite/re/b1", "suite/re/b2"], True), [0, NOT_FOUND], "batch_remove")


def remove_all_counts_what_it_removed():
    for i in range(10):
        equal(store.put(f"suite/all/{i}", b"v"), 0)
    equal(store.remove_all(), 10)
    equal(store.remove_all(), 0)


def upsert_replaces_with_the_same_and_with_another_size():
    for n, size in enumerate((100 * KIB, 100 * KIB, 200 * KIB, 10)):
        value = payload(6000 + n, size)
        equal(store.upsert("suite/upsert", value), 0, f"upsert {n}")
        equal(store.get_size("suite/upsert"), size, f"size {n}")
        same_bytes(store.get("suite/upsert"), value, f"value {n}")
    with Buffer(MIB) as b:
        b.map[:] = payload(6100, MIB)
        equal(store.upsert_from("suite/upsert", b.ptr, MIB), 0)
        equal(store.batch_upsert_from(["suite/up1", "suite/up2"], [b.ptr, b.ptr], [KIB, MIB]), [0, 0])
        same_bytes(store.get("suite/up2"), payload(6100, MIB), "batch_upsert_from")
    clear()


def a_hard_pinned_object_is_stored_and_read_like_any_other():
    config = ReplicateConfig()
    config.with_hard_pin = True
    equal(store.put("suite/pinned", b"stays", config), 0)
    same_bytes(store.get("suite/pinned"), b"stays", "get")
    equal(store.remove("suite/pinned", True), 0)


def a_thousand_small_objects_are_written_read_and_removed():
    n = a.small
    keys, size = [f"suite/small/{i}" for i in range(n)], n * 4 * KIB
    with Buffer(4 * MIB) as b:
        b.map[:size] = payload(7000, size)
        ptrs, lens = [b.ptr + 4 * KIB * i for i in range(n)], [4 * KIB] * n
        for i in range(0, n, 125):
            equal(store.batch_put_from(keys[i:i + 125], ptrs[i:i + 125], lens[i:i + 125]), [0] * 125)
        b.map[:] = b"\0" * (4 * MIB)
        for i in range(0, n, 125):
            equal(store.batch_get_into(keys[i:i + 125], ptrs[i:i + 125], lens[i:i + 125]), [4 * KIB] * 125)
        same_bytes(b.map[:size], payload(7000, size), "all of them")
    equal(store.batch_is_exist(keys), [1] * n)
    equal(store.remove_all(True), n)


def the_client_reports_healthy_and_closes():
    equal(store.health_check(), 0)
    equal(store.close(), 0)


def main():
    rc = store.setup(a.hostname, a.metadata, a.segment_size, a.local_buffer, "rdma" if a.device else "tcp", a.device, a.master)
    if rc:
        print(f"setup returned {rc}\n0 passed, 1 failed", flush=True)
        return 1
    checks = [f for n, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == "__main__"
              and "_" in n and n not in ("same_bytes",)]
    only, passed, failed = set(filter(None, a.only.split(","))), 0, 0
    for check in checks:
        if only and check.__name__ not in only:
            continue
        t = time.monotonic()
        try:
            check()
            passed += 1
            print(f"ok {check.__name__} ({time.monotonic() - t:.2f} s)", flush=True)
        except Exception as e:
            failed += 1
            line = traceback.extract_tb(e.__traceback__)[1].lineno
            print(f"FAILED {check.__name__}: {e} (line {line})", flush=True)
            store.remove_all(True)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    # The wheel's destructors wait for threads at interpreter exit. The suite tests close() instead.
    os._exit(code)
