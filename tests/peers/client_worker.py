"""A real Python client that executes commands, one JSON object per line. For tests that act between two calls (kill a node,
restart the master), or that keep it alive as a contributing node.

  client_worker.py MASTER METADATA HOSTNAME SEGMENT_BYTES LOCAL_BUFFER_BYTES [DEVICES]

With DEVICES ("rxe0,rxe1") bytes go over RDMA, else TCP.
Answers begin with "@", because the wheel may print other lines: first {"setup": rc}, then one per command:
  {"do":"put","key":k,"seed":s,"size":n[,"replicas":r]} -> {"rc":0}       {"do":"upsert",...} the same
  {"do":"get","key":k,"seed":s,"size":n} -> {"size":found,"same":bool}    {"do":"exist","key":k} -> {"rc":1}
  {"do":"remove","key":k,"force":bool} -> {"rc":0}                       {"do":"remove_all","force":bool} -> {"rc":count}
  {"do":"replicas","key":k} -> {"endpoints":[...],"addresses":[...],"sizes":[...]}
  {"do":"close"} -> {"rc":0}, and exits
Every answer has "ms", the duration of the call.
"""
import json
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from payload import payload

master, metadata, hostname, segment, local = sys.argv[1:6]
device = sys.argv[6] if len(sys.argv) > 6 else ""
store = MooncakeDistributedStore()


def say(**answer):
    print("@" + json.dumps(answer), flush=True)


def config(c):
    r = ReplicateConfig()
    r.replica_num = c.get("replicas", 1)
    return r


def replicas(c):
    d = [r.get_memory_descriptor().buffer_descriptor for r in store.get_replica_desc(c["key"])]
    return {"endpoints": [x.transport_endpoint for x in d], "addresses": [x.buffer_address for x in d], "sizes": [x.size for x in d]}


def get(c):
    found = store.get(c["key"])
    return {"size": len(found), "same": found == payload(c["seed"], c["size"])}


DO = {
    "put": lambda c: {"rc": store.put(c["key"], payload(c["seed"], c["size"]), config(c))},
    "upsert": lambda c: {"rc": store.upsert(c["key"], payload(c["seed"], c["size"]), config(c))},
    "get": get,
    "exist": lambda c: {"rc": store.is_exist(c["key"])},
    "remove": lambda c: {"rc": store.remove(c["key"], c.get("force", False))},
    "remove_all": lambda c: {"rc": store.remove_all(c.get("force", False))},
    "replicas": replicas,
    "close": lambda c: {"rc": store.close()},
}


def main():
    t = time.monotonic()
    rc = store.setup(hostname, metadata, int(segment), int(local), "rdma" if device else "tcp", device, master)
    say(setup=rc, ms=(time.monotonic() - t) * 1e3)
    for line in sys.stdin if rc == 0 else ():
        c = json.loads(line)
        t = time.monotonic()
        say(**DO[c["do"]](c), ms=(time.monotonic() - t) * 1e3)
        if c["do"] == "close":
            break
    sys.stdout.flush()
    # Without destructors. The command `close` runs the client's.
    os._exit(0 if rc == 0 else 1)


main()
