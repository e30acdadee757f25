"""Binding of the process to a NUMA node."""

import ctypes
import os
import platform

from . import arguments

_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def bind_to_numa_node(node):
    """Binds the calling thread to the CPUs of a NUMA node, and prefers the node's memory.

    A node that does not exist has no effect.
    """
    node = arguments.integer("node", node)
    try:
        with open(f"/sys/devices/system/node/node{node}/cpulist") as f:
            ranges = [part.split("-") for part in f.read().strip().split(",") if part]
        cpus = {cpu for first, *last in ranges for cpu in range(int(first), int((last or [first])[0]) + 1)}
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0) or cpus)
    except (OSError, ValueError):
        return
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is not None and 0 <= node < 1024:
        mask = (ctypes.c_ulong * 16)()
        mask[node // 64] = 1 << (node % 64)
        ctypes.CDLL(None, use_errno=True).syscall(number, _PREFERRED, mask, ctypes.c_ulong(1025))
