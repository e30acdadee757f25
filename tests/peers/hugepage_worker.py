"""The huge pages that one rank allocates with the real wheel: an L2 buffer, then the store's client.

  hugepage_worker.py MASTER L2_BYTES SEGMENT_BYTES

Prints one line: {"before": free pages, "l2": pages of the buffer, "client": pages of setup, "rc": result of setup}.
"""
import json
import os
import sys

from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


def free():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("HugePages_Free"))


before = free()
allocator = MooncakeHostMemAllocator()
address = allocator.alloc(int(sys.argv[2]))
buffered = free()
store = MooncakeDistributedStore()
rc = store.setup("localhost", "P2PHANDSHAKE", int(sys.argv[3]), 16 << 20, "tcp", "", sys.argv[1])
after = free()
print("@" + json.dumps({"before": before, "l2": before - buffered, "client": buffered - after, "rc": rc, "ok": bool(address)}), flush=True)
# Without destructors: the kernel frees the pages with the process.
os._exit(0)
