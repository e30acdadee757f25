"""Runs in the wheel's virtual environment: a real Python client that executes commands, one JSON object per line.

  agent.py MASTER HOST SEGMENT_BYTES BUFFER_BYTES

Answers begin with "@", because the wheel prints other lines. First {"setup": code}, then one answer per command:
  fill         puts keys in batches; answers how many were acknowledged
  load, stop   a thread puts a new key every PAUSE seconds, another reads one; `stop` answers every call
  check        reads the keys that `load` and `fill` had acknowledged, and compares the values
  exit         ends
"""
import os, random, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "restart"))
import commands, values  # noqa: E402
from mooncake.store import MooncakeDistributedStore  # noqa: E402

MASTER, HOST, SEGMENT, BUFFER = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LOW, HIGH = int(os.environ.get("VALUE_LOW", 64)), int(os.environ.get("VALUE_HIGH", 1024))
store = MooncakeDistributedStore()
filled, loaded = [], []


def fill(prefix, first, count, batch):
    """one call per batch; a key of a failed batch does not count as acknowledged"""
    t, acked, failed = time.monotonic(), 0, 0
    for i in range(first, first + count, batch):
        names = [values.key_of(prefix, n) for n in range(i, min(i + batch, first + count))]
        if store.put_batch(names, [values.value_of(name, 0, LOW, HIGH) for name in names]) == 0:
            filled.extend(names)
            acked += len(names)
        else:
            failed += len(names)
    return dict(acknowledged=acked, failed=failed, end=time.monotonic(), seconds=time.monotonic() - t)


class Load:
    def __init__(self, prefix, pause):
        self.prefix, self.pause, self.running, self.calls = prefix, pause, True, []
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.put, self.get)]
        for t in self.threads:
            t.start()

    def put(self):
        n = 0
        while self.running:
            name, t = values.key_of(self.prefix, n), time.monotonic()
            n += 1
            code = store.put(name, values.value_of(name, 0, LOW, HIGH))
            self.calls.append(("put", t, time.monotonic(), code == 0))
            if code == 0:
                loaded.append(name)
            time.sleep(self.pause)

    def get(self):
        rng = random.Random(1)
        while self.running:
            name, t = rng.choice(loaded[-200:] or filled or [""]), time.monotonic()
            if name:
                data = store.get(name)
                good = bool(data)
                if good:
                    values.check(name, data, LOW, HIGH)
                self.calls.append(("get", t, time.monotonic(), good))
            time.sleep(self.pause)

    def stop(self):
        self.running = False
        for t in self.threads:
            t.join(90)
        return dict(calls=self.calls, hung=sum(t.is_alive() for t in self.threads), acknowledged=len(loaded))


def check(patience):
    """A key is lost if it is not there at the end of the time. Half of the reads of filled keys are lookups only."""
    end, wrong = time.monotonic() + patience, []

    def missing(name):
        data = store.get(name)
        if not data:
            return True
        try:
            values.check(name, data, LOW, HIGH)
        except ValueError as error:
            wrong.append(f"{name}: {error}")
        return False

    rng = random.Random(2)
    lost = [name for name in loaded + rng.sample(filled, min(len(filled), 2000)) if missing(name)]
    for i in range(0, len(filled), 1000):
        names = filled[i:i + 1000]
        lost += [name for name, found in zip(names, store.batch_is_exist(names)) if found != 1]
    while lost and time.monotonic() < end:
        time.sleep(0.5)
        lost = [name for name in lost if missing(name)]
    return dict(checked=len(loaded) + len(filled), lost=len(set(lost)), wrong=len(wrong), examples=lost[:3] + wrong[:3])


current = None


def load(prefix, pause):
    global current
    current = Load(prefix, pause)
    return {}


def main():
    code = store.setup(HOST, "P2PHANDSHAKE", SEGMENT, BUFFER, "tcp", "", MASTER)
    commands.serve(code, dict(fill=fill, load=load, stop=lambda: current.stop(), check=check))


main()
