"""The real transfer engine, spoken to a JSON line at a time on stdin; answers are stdout lines that begin with '@'.

{"do": "start", "name": NAME, "metadata": "P2PHANDSHAKE" or URL, "bytes": N}  -> {"port": rpc port, "address": of N registered bytes}
{"do": "read" | "write", "segment": S, "at": local offset, "remote": address, "length": N}  -> {"rc": 0 when it went well}
{"do": "fill", "at": offset, "length": N, "seed": K}  -> {}      byte i is (i * 31 + K) % 251
{"do": "check", "at": offset, "length": N, "seed": K}  -> {"equal": are the bytes those that fill writes?}
{"do": "tell", "segment": S, "at", "remote", "length", "name", "message"}  -> {"rc"}    a write with a notification
{"do": "notices"}  -> {"notices": [[name, message], ...]}
{"do": "probe", "segment": S}  -> {"rc"}
"""
import ctypes
import json
import sys

from mooncake import engine as te

engine = te.TransferEngine()
memory = None


def answer(**fields):
    sys.stdout.write("@" + json.dumps(fields) + "\n")
    sys.stdout.flush()


def pattern(q):
    block = bytes((i * 31 + q["seed"]) % 251 for i in range(251))
    return (block * (q["length"] // 251 + 1))[:q["length"]]


for line in sys.stdin:
    q = json.loads(line)
    do = q["do"]
    if do == "start":
        rc = engine.initialize(q["name"], q["metadata"], "tcp", "")
        memory = ctypes.create_string_buffer(q["bytes"])
        base = ctypes.addressof(memory)
        if rc == 0:
            rc = engine.register_memory(base, q["bytes"])
        answer(rc=rc, port=engine.get_rpc_port(), address=base)
    elif do in ("read", "write"):
        call = engine.transfer_sync_read if do == "read" else engine.transfer_sync_write
        answer(rc=call(q["segment"], base + q["at"], q["remote"], q["length"]))
    elif do == "fill":
        ctypes.memmove(base + q["at"], pattern(q), q["length"])
        answer()
    elif do == "check":
        answer(equal=ctypes.string_at(base + q["at"], q["length"]) == pattern(q))
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
