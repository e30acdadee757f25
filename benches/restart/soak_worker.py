"""Random puts, gets, upserts and removes with values that check themselves, for soak.py. Runs in the wheel's virtual environment.

  soak_worker.py wheel MASTER NAME KEYS THREADS LOW HIGH SEED [SEGMENT:COUNT ...]    the wheel's client; also puts and watches pinned keys
  soak_worker.py rest  URL    NAME KEYS THREADS LOW HIGH SEED                        mcctl's client, by the REST port of its node

Prints a JSON line every 5 seconds and at the end: counts, and every violation. Ends when stdin is closed.

Each key has one writer, so the versions that a read may return are known: at least the floor (an acknowledged upsert raises it to its version,
an acknowledged remove above all earlier versions), at most the newest version that was ever sent. The old value stays if a put finds the key,
and a call without an answer may have happened or not: neither raises the floor. Values of keys with an even number have the same size in all
versions, so that an upsert may replace them in place.
"""
import base64, http.client, json, os, random, sys, threading, time, urllib.parse

import values

KIND, TARGET, NAME = sys.argv[1:4]
KEYS, THREADS, LOW, HIGH, SEED = map(int, sys.argv[4:9])
PINNED = [word.rsplit(":", 1) for word in sys.argv[9:]]
PINNED_PATIENCE_S = 20  # an owner may be unreachable for so long after a restart


class Wheel:
    """the real Python client, shared by all threads"""

    def __init__(self):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        self.configuration = ReplicateConfig
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", TARGET)
        if code:
            sys.exit(f"setup: {code}")

    def put(self, key, data, pin_on=None):
        c = self.configuration()
        if pin_on:
            c.with_hard_pin, c.preferred_segment = True, pin_on
        return self.store.put(key, data, c) == 0

    def upsert(self, key, data):
        return self.store.upsert(key, data) == 0

    def get(self, key):
        return self.store.get(key) or None

    def remove(self, key):
        return self.store.remove(key) == 0


class Rest:
    """one connection to a node's REST port; the objects are base64 text, because the route takes JSON"""

    def __init__(self):
        self.connection = None

    def call(self, method, path, body=None):
        if self.connection is None:
            u = urllib.parse.urlsplit(TARGET)
            self.connection = http.client.HTTPConnection(u.hostname, u.port, timeout=60)
        try:
            self.connection.request(method, path, body)
            response = self.connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.connection = None
            return 0, b""

    def put(self, key, data):
        return self.call("PUT", "/api/put", json.dumps(dict(key=key, value=base64.b64encode(data).decode())))[0] == 200

    def upsert(self, key, data):
        return None  # the REST port has no upsert

    def get(self, key):
        status, data = self.call("GET", "/api/get/" + key)
        return data if status == 200 else None

    def remove(self, key):
        return self.call("DELETE", "/api/remove/" + key)[0] == 200


class Key:
    __slots__ = ("name", "stable", "lock", "floor", "newest", "writes")

    def __init__(self, number):
        self.name, self.stable = values.key_of(NAME, number), number % 2 == 0
        self.lock, self.floor, self.newest, self.writes = threading.Lock(), 1, 0, 0


class Report:
    def __init__(self):
        self.lock, self.counts, self.violations = threading.Lock(), {}, []

    def add(self, name, n=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + n

    def violation(self, text):
        with self.lock:
            self.violations.append(f"{time.strftime('%H:%M:%S')} {NAME}: {text}")

    def show(self):
        with self.lock:
            print("@" + json.dumps(dict(name=NAME, counts=self.counts, violations=self.violations[:50], violation_count=len(self.violations))), flush=True)


report, running = Report(), True


def parse(key, data):
    """the version in an object; ValueError"""
    if not bytes(data).startswith(values.MAGIC):
        try:
            data = base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError(f"neither a value nor base64: {bytes(data[:40])!r} ({len(data)} bytes)") from None
    return values.check(key.name, data, LOW, HIGH, key.stable)


def read(client, key):
    with key.lock:
        floor, writes = key.floor, key.writes
    data = client.get(key.name)
    with key.lock:
        newest, is_quiet = key.newest, key.writes == writes and writes % 2 == 0
    if data is None:
        return report.add("get: not found or failed")
    try:
        version = parse(key, data)
    except ValueError as error:
        if is_quiet:
            report.violation(f"wrong bytes of {key.name}: {error}")
        else:
            report.add("get: unclear bytes during a write of the key")
        return
    report.add("get: found")
    if not floor <= version <= newest:
        report.violation(f"{key.name}: version {version} instead of {floor} to {newest}")


def write(client, key, kind):
    with key.lock:
        key.writes += 1
        if kind != "remove":
            key.newest += 1
        version = key.newest
    try:
        if kind == "remove":
            done = client.remove(key.name)
        else:
            data = values.value_of(key.name, version, LOW, HIGH, key.stable)
            done = (client.put if kind == "put" else client.upsert)(key.name, data)
    finally:
        with key.lock:
            key.writes += 1
    if done is None:
        return
    report.add(f"{kind}: {'acknowledged' if done else 'failed'}")
    if done and kind != "put":
        with key.lock:
            if kind == "remove":
                key.newest += 1  # this version does not exist
            key.floor = key.newest if kind == "upsert" else key.newest + 1


def worker(client, keys, own, rng):
    while running:
        dice = rng.random()
        try:
            if dice < 0.5:
                read(client, rng.choice(keys))
            elif dice < 0.8:
                write(client, rng.choice(own), "put")
            elif dice < 0.92:
                write(client, rng.choice(own), "upsert")
            else:
                write(client, rng.choice(own), "remove")
        except Exception as error:
            report.violation(f"{type(error).__name__}: {error}")
            time.sleep(1)


def watch_pinned(client, pinned):
    """reads all pinned keys, again and again"""
    missing_since = {}
    while running:
        for key in pinned:
            if not running:
                return
            data = client.get(key.name)
            now = time.monotonic()
            if data is None:
                since = missing_since.setdefault(key.name, now)
                report.add("pinned: not readable at the moment")
                if now - since > PINNED_PATIENCE_S:
                    report.violation(f"pinned key {key.name} not readable for {now - since:.0f} s")
                    missing_since[key.name] = now
                continue
            missing_since.pop(key.name, None)
            report.add("pinned: read")
            try:
                parse(key, data)
            except ValueError as error:
                report.violation(f"wrong bytes of the pinned key {key.name}: {error}")
        time.sleep(0.05)


def main():
    global running, NAME
    shared = Wheel() if KIND == "wheel" else None
    pinned, name = [], NAME
    for segment, count in PINNED:
        NAME = f"pinned-{segment}-"
        for key in (Key(n) for n in range(int(count))):
            if not shared.put(key.name, values.value_of(key.name, 0, LOW, HIGH, key.stable), segment):
                sys.exit(f"cannot put the pinned key {key.name}")
            pinned.append(key)
    NAME = name
    keys = [Key(n) for n in range(KEYS)]
    threads = [threading.Thread(target=worker, args=(shared or Rest(), keys, keys[i::THREADS], random.Random(SEED * 1000 + i)), daemon=True)
               for i in range(THREADS)]
    if pinned:
        threads.append(threading.Thread(target=watch_pinned, args=(shared, pinned), daemon=True))
    print("@" + json.dumps(dict(ready=True)), flush=True)
    for t in threads:
        t.start()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    while not stop.wait(5):
        report.show()
    running = False
    for t in threads:
        t.join(60)
    # at the end, when the master runs: every pinned key, by value
    end = time.monotonic() + PINNED_PATIENCE_S
    left = pinned
    while left and time.monotonic() < end:
        left = [key for key in left if shared.get(key.name) is None]
        time.sleep(0.2)
    for key in left:
        report.violation(f"pinned key {key.name} is missing at the end")
    report.add("pinned: present at the end", len(pinned) - len(left))
    report.show()
    sys.stdout.flush()
    os._exit(0)


stop = threading.Event()
main()
