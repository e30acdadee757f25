"""A client that writes the same keys again and again during faults, reads those of the others, and checks the results.

  chaos_agent.py MODULE MASTER HOST SEGMENT_BYTES PREFIX OTHER_PREFIX...

MODULE is mooncake.store or mcctl_mooncake.store. Commands and answers are as in agent.py:
  load      writes, reads and removes keys until `stop`, which answers the counts
  drop      a master has dropped all objects: what is stored is no longer known
  check     reads all keys that must exist
  exit      ends

Only this client writes its keys. They are hard-pinned. A name whose last call failed is not written again: that call may still arrive.
"""
import importlib, os, random, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "restart"))
import commands, values  # noqa: E402

MODULE, MASTER, HOST, SEGMENT, PREFIX = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
OTHERS = sys.argv[6:]
module = importlib.import_module(MODULE)
store = module.MooncakeDistributedStore()
SLOTS, LOW, HIGH = 60, 256, 64 << 10


class Slot:
    """a name that is written: its number changes when a call has failed"""

    def __init__(self, number):
        self.number, self.generation = number, 0
        self.reset()

    def reset(self):
        self.key = values.key_of(PREFIX, f"{self.number}.{self.generation}")
        self.known, self.version, self.missing_at = "gone", 0, None

    def retire(self):
        self.generation += 1
        self.reset()


class Load:
    def __init__(self):
        self.slots = [Slot(n) for n in range(SLOTS)]
        self.counts, self.problems, self.former = {}, [], []
        self.lock, self.running, self.threads = threading.Lock(), False, []
        self.config = module.ReplicateConfig()
        self.config.with_hard_pin = True

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def problem(self, text):
        self.problems.append(f"{time.strftime('%H:%M:%S')} {text}")

    def start(self):
        self.running = True
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.own, self.read_others)]
        for t in self.threads:
            t.start()

    def own(self):
        rng = random.Random(PREFIX)
        while self.running:
            with self.lock:
                self.step(rng.choice(self.slots), rng)
            time.sleep(rng.random() * 0.02)

    def step(self, slot, rng):
        if slot.missing_at:
            # If a master has dropped all objects, `drop` comes within this time.
            if time.monotonic() > slot.missing_at + 60:
                if store.is_exist(slot.key) == 0:
                    self.problem(f"lost: {slot.key}: {slot.version}")
                slot.missing_at = None
        elif slot.known == "gone":
            version = slot.version + 1
            code = store.put(slot.key, values.value_of(slot.key, version, LOW, HIGH), self.config)
            self.count("put" if code == 0 else "put failed")
            if code == 0:
                slot.known, slot.version = "stored", version
            else:
                self.former.append(slot.key)
                slot.retire()
        elif rng.random() < 0.7:
            self.read(slot)
        else:
            code = store.remove(slot.key)
            self.count("remove" if code == 0 else f"remove {code}")
            if code == 0:
                slot.known = "gone"
            elif code == -704:
                slot.missing_at = time.monotonic()
            elif code != -706:
                self.former.append(slot.key)
                slot.retire()

    def read(self, slot):
        data = store.get(slot.key)
        self.count("get" if data else "get empty")
        if not data:
            return False
        try:
            version = values.check(slot.key, data, LOW, HIGH)
        except ValueError as error:
            self.problem(f"wrong bytes: {slot.key}: {error}")
            return True
        if version != slot.version:
            self.problem(f"wrong version: {slot.key}: {version} instead of {slot.version}")
        return True

    def read_others(self):
        rng = random.Random(PREFIX + "others")
        while self.running:
            if self.former and rng.random() < 0.2:
                key = rng.choice(self.former[-100:])
            else:
                key = values.key_of(rng.choice(OTHERS or [PREFIX]), f"{rng.randrange(SLOTS)}.0")
            data = store.get(key)
            self.count("get of others" if data else "get of others empty")
            if data:
                try:
                    values.check(key, data, LOW, HIGH)
                except ValueError as error:
                    self.problem(f"wrong bytes: {key}: {error}")
            time.sleep(rng.random() * 0.02)

    def stop(self):
        self.running = False
        for t in self.threads:
            t.join(120)
        return dict(counts=self.counts, problems=self.problems[:20], hung=sum(t.is_alive() for t in self.threads))

    def drop(self):
        with self.lock:
            for slot in self.slots:
                if slot.known == "stored":
                    self.former.append(slot.key)
                    slot.retire()
        return {}

    def check(self, patience):
        end = time.monotonic() + patience
        with self.lock:
            left = [slot for slot in self.slots if slot.known == "stored"]
            checked = len(left)
            while left:
                left = [slot for slot in left if not self.read(slot)]
                if time.monotonic() > end:
                    break
                time.sleep(0.3)
        return dict(checked=checked, lost=len(left), examples=[slot.key for slot in left[:3]], problems=self.problems[:20])


def main():
    code = store.setup(HOST, "P2PHANDSHAKE", SEGMENT, 64 << 20, "tcp", "", MASTER)
    load = Load()
    commands.serve(code, dict(load=load.start, stop=load.stop, drop=load.drop, check=load.check))


main()
