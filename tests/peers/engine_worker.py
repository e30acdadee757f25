"""The real transfer engine. Commands are JSON lines on stdin; answers are stdout lines that begin with '@'.

{"do": "start", "name": NAME, "metadata": "P2PHANDSHAKE" or URL, "bytes": N}  -> {"port": rpc port, "address": of N registered bytes}
   with "device": "rxe0,rxe1" over RDMA instead of TCP; "skew": offset of the address in its page
{"do": "read" | "write", "segment": S, "at": local offset, "remote": address, "length": N}  -> {"rc": 0 on success}
{"do": "fill", "at": offset, "length": N, "seed": K}  -> {}      byte i is (i * 31 + K) % 251
{"do": "check", "at": offset, "length": N, "seed": K}  -> {"equal": whether the bytes are those that fill writes}
{"do": "blank", "at": offset, "length": N}  -> {}      writes zeros
{"do": "zeros", "at": offset, "length": N}  -> {"equal": whether all bytes are zero}
{"do": "blocks", "length": N, "count": C, "round": R}  -> {"equal": whether C blocks from 0 contain what `mcctl bench transfer --verify` writes}
{"do": "borders"}  -> {"whole": whether the pages before and after the registered bytes are unchanged}
{"do": "laps", "kind": "read" | "write", "segment", "remote", "length", "count"}  -> {"rc", "us": [microseconds of each]}
{"do": "tell", "segment": S, "at", "remote", "length", "name", "message"}  -> {"rc"}    a write with a notification
{"do": "notices"}  -> {"notices": [[name, message], ...]}
{"do": "probe", "segment": S}  -> {"rc"}
"""
import ctypes
import json
import sys
import time

from mooncake import engine as te

PAGE = 4096
UNTOUCHED = 0xEE

engine = te.TransferEngine()
memory = None


def answer(**fields):
    sys.stdout.write("@" + json.dumps(fields) + "\n")
    sys.stdout.flush()


def pattern(q):
    block = bytes((i * 31 + q["seed"]) % 251 for i in range(251))
    return (block * (q["length"] // 251 + 1))[:q["length"]]


def benched(address, length, turn):
    """What `mcctl bench transfer --verify` writes to a block at `address` in turn `turn`."""
    import numpy as np
    odd = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        word = np.arange((length + 7) // 8, dtype=np.uint64) * np.uint64(8) + np.uint64(address)
        word = ((word ^ (np.uint64(turn) * odd)) * odd) | np.uint64(1)
    return word.astype("<u8").tobytes()[:length]


for line in sys.stdin:
    q = json.loads(line)
    do = q["do"]
    if do == "start":
        device = q.get("device", "")
        rc = engine.initialize(q["name"], q["metadata"], "rdma" if device else "tcp", device)
        size, skew = q["bytes"], q.get("skew", 0)
        memory = ctypes.create_string_buffer(size + 4 * PAGE)
        page = -(-ctypes.addressof(memory) // PAGE) * PAGE
        # Registered: [base, base + size). The pages on both sides must not be written.
        base = page + PAGE + skew
        ctypes.memset(base - PAGE, UNTOUCHED, PAGE)
        ctypes.memset(base + size, UNTOUCHED, PAGE)
        if rc == 0:
            rc = engine.register_memory(base, size)
        answer(rc=rc, port=engine.get_rpc_port(), address=base)
    elif do in ("read", "write"):
        call = engine.transfer_sync_read if do == "read" else engine.transfer_sync_write
        answer(rc=call(q["segment"], base + q["at"], q["remote"], q["length"]))
    elif do == "fill":
        ctypes.memmove(base + q["at"], pattern(q), q["length"])
        answer()
    elif do == "check":
        answer(equal=ctypes.string_at(base + q["at"], q["length"]) == pattern(q))
    elif do == "blank":
        ctypes.memset(base + q["at"], 0, q["length"])
        answer()
    elif do == "zeros":
        answer(equal=not any(ctypes.string_at(base + q["at"], q["length"])))
    elif do == "blocks":
        n = q["length"]
        answer(equal=all(ctypes.string_at(base + i * n, n) == benched(base + i * n, n, q["round"]) for i in range(q["count"])))
    elif do == "borders":
        untouched = bytes([UNTOUCHED]) * PAGE
        answer(whole=ctypes.string_at(base - PAGE, PAGE) == untouched == ctypes.string_at(base + size, PAGE))
    elif do == "laps":
        call = engine.transfer_sync_read if q["kind"] == "read" else engine.transfer_sync_write
        us, rc = [], 0
        for _ in range(q["count"]):
            began = time.perf_counter()
            rc = rc or call(q["segment"], base, q["remote"], q["length"])
            us.append((time.perf_counter() - began) * 1e6)
        answer(rc=rc, us=us)
    elif do == "tell":
        note = te.TransferNotify()
        note.name, note.msg = q["name"], q["message"]
        write = te.TransferEngine.TransferOpcode.Write
        rc = engine.transfer_sync(q["segment"], base + q["at"], q["remote"], q["length"], write, note)
        answer(rc=rc)
    elif do == "notices":
        answer(notices=[[n.name, n.msg] for n in engine.get_notifies()])
    elif do == "probe":
        answer(rc=engine.send_probe(q["segment"]))
