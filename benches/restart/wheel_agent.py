"""Runs in the wheel's virtual environment: a real Python client that executes commands, one JSON object per line.

  wheel_agent.py MASTER SEGMENT_BYTES BUFFER_BYTES

Answers begin with "@", because the wheel prints other lines. First {"setup": code}, then one answer per command:
  fill         puts the keys FIRST to FIRST+COUNT-1 of PREFIX, in batches, every PIN_EVERYth hard-pinned
  verify       reads these keys (every STEPth) in batches and compares the values
  load, stop   puts new keys and reads them, in threads, until `stop`; answers what was acknowledged and the longest interruptions
  check_load   reads all acknowledged keys of the load and compares the values
  clear_load   removes them
  close        unmounts and ends; `exit` ends without that
"""
import ctypes, mmap, random, sys, threading, time

import commands
import values
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MASTER, SEGMENT, BUFFER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WINDOW = 16 << 20
store = MooncakeDistributedStore()


def replicate(pin=False, preferred=""):
    c = ReplicateConfig()
    c.replica_num, c.with_hard_pin, c.preferred_segment = 1, pin, preferred
    return c


def put_batch(names, c, low, high):
    """puts the keys in one call; the codes"""
    pointers, sizes, at = [], [], 0
    for name in names:
        v = values.value_of(name, 0, low, high)
        window[at:at + len(v)] = v
        pointers.append(base + at)
        sizes.append(len(v))
        at += len(v)
    return store.batch_put_from(names, pointers, sizes, c)


def fill(prefix, first, count, low, high, batch=512, pin_every=0, preferred=""):
    t, failed, pinned = time.monotonic(), 0, 0
    for pin in (True, False) if pin_every else (False,):
        numbers = [n for n in range(first, first + count) if bool(pin_every and n % pin_every == 0) == pin]
        pinned += len(numbers) if pin else 0
        c = replicate(pin, preferred)
        for i in range(0, len(numbers), batch):
            names = [values.key_of(prefix, n) for n in numbers[i:i + batch]]
            codes = put_batch(names, c, low, high)
            again = [name for name, code in zip(names, codes) if code]
            failed += sum(code != 0 for code in put_batch(again, c, low, high)) if again else 0
    return dict(seconds=time.monotonic() - t, failed=failed, pinned=pinned)


def read_batch(names, low, high):
    """reads the keys in one call; for each: None if it was not found, else its bytes"""
    room = (high + 63) // 64 * 64
    found = store.batch_get_into(names, [base + i * room for i in range(len(names))], [room] * len(names))
    return [bytes(window[i * room:i * room + n]) if n >= 0 else None for i, n in enumerate(found)]


def verify(prefix, first, count, low, high, step=1, batch=256):
    names = [values.key_of(prefix, n) for n in range(first, first + count, step)]
    return compare(names, low, high, batch)


def compare(names, low, high, batch=256):
    t, good, missing, wrong = time.monotonic(), 0, [], []
    for i in range(0, len(names), batch):
        part = names[i:i + batch]
        for name, data in zip(part, read_batch(part, low, high)):
            if data is None:
                missing.append(name)
                continue
            try:
                values.check(name, data, low, high)
                good += 1
            except ValueError as error:
                wrong.append(f"{name}: {error}")
    return dict(seconds=time.monotonic() - t, good=good, missing=len(missing), wrong=len(wrong), examples=missing[:3] + wrong[:3])


class Load:
    """threads that put new keys, and read keys that they have put"""

    def __init__(self, prefix, threads, low, high, limit):
        self.prefix, self.low, self.high, self.limit = prefix, low, high, limit
        self.running, self.acked, self.lock = True, [], threading.Lock()
        self.failed = dict(put=0, get=0)
        self.done = dict(put=0, get=0)
        self.wrong = []
        self.gap = dict(put=0.0, get=0.0)   # the longest time between two successes
        self.last = dict(put=time.monotonic(), get=time.monotonic())
        self.next = 0
        self.threads = [threading.Thread(target=self.run, args=(random.Random(i),), daemon=True) for i in range(threads)]
        for t in self.threads:
            t.start()

    def success(self, kind):
        now = time.monotonic()
        with self.lock:
            self.done[kind] += 1
            self.gap[kind] = max(self.gap[kind], now - self.last[kind])
            self.last[kind] = now

    def run(self, rng):
        while self.running:
            with self.lock:
                n, self.next = self.next, self.next + 1
            if n < self.limit:
                name = values.key_of(self.prefix, n)
                if store.put(name, values.value_of(name, 0, self.low, self.high)) == 0:
                    self.success("put")
                    self.acked.append(name)
                else:
                    self.failed["put"] += 1
            else:
                time.sleep(0.01)
            if self.acked:
                name = rng.choice(self.acked)
                data = store.get(name)
                if not data:
                    self.failed["get"] += 1
                    continue
                try:
                    values.check(name, data, self.low, self.high)
                    self.success("get")
                except ValueError as error:
                    self.wrong.append(f"{name}: {error}")

    def stop(self):
        self.running = False
        for t in self.threads:
            t.join(60)
        for kind, last in self.last.items():
            self.gap[kind] = max(self.gap[kind], time.monotonic() - last)
        return dict(acknowledged=len(self.acked), done=self.done, failed=self.failed, longest_gap_s=self.gap, wrong=len(self.wrong),
                    examples=self.wrong[:3])


current = None


def load(prefix, threads, low, high, limit):
    global current
    current = Load(prefix, threads, low, high, limit)
    return {}


def clear_load():
    names, bad = current.acked, 0
    for i in range(0, len(names), 256):
        bad += sum(code != 0 for code in store.batch_remove(names[i:i + 256], True))
    return dict(removed=len(names) - bad, failed=bad)


DO = dict(fill=fill, verify=verify, load=load, stop=lambda: current.stop(), clear_load=clear_load,
          check_load=lambda: compare(current.acked, current.low, current.high), close=lambda: dict(code=store.close()))


def main():
    global window, base
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, BUFFER, "tcp", "", MASTER)
    window = mmap.mmap(-1, WINDOW)
    base = ctypes.addressof(ctypes.c_char.from_buffer(window))
    if code == 0:
        code = store.register_buffer(base, WINDOW)
    commands.serve(code, DO)


main()
