"""The cases of the method table for BufferPool. Each is a function of (module, store) over a client that is set up."""


def acquire(**keywords):
    """A case that acquires 1 byte from a pool with these keywords, after `held` other leases."""
    held = keywords.pop("held", 0)
    given = keywords.pop("given", {})
    size = keywords.pop("size", 1)

    def case(module, store):
        pool = module.BufferPool(store, **keywords)
        leases = [pool.acquire(1) for _ in range(held)]
        lease = pool.acquire(size, **given)
        found = [lease.size, len(lease.buffer), lease.buffer.format, lease.buffer.readonly]
        del leases
        return found

    return case


def release(module, store):
    lease = module.BufferPool(store).acquire(10)
    view = lease.buffer
    view[:3] = b"abc"
    found = [bytes(view[:3])]
    try:
        lease.release()
    except RuntimeError as error:
        found.append(type(error).__name__)
    del view
    found.append(lease.release())
    found.append(lease.release())
    for name in ("size", "ptr", "buffer"):
        try:
            found.append(getattr(lease, name))
        except Exception as error:
            found.append(type(error).__name__)
    return found


def transfer(module, store):
    with module.BufferPool(store).buffer(16) as lease:
        lease.buffer[:] = b"0123456789abcdef"
        found = [store.upsert_from("methods-pool", lease.ptr, 16)]
        lease.buffer[:] = bytes(16)
        found.append(store.get_into("methods-pool", lease.ptr, 16))
        return [*found, bytes(lease.buffer)]


def close(module, store):
    pool = module.BufferPool(store)
    lease = pool.acquire(1)
    found = []
    for action in (
        pool.close,
        lease.release,
        pool.close,
        pool.close,
        lambda: pool.prewarm(1, 1),
        lambda: pool.acquire(1),
    ):
        try:
            found.append(action())
        except Exception as error:
            found.append(type(error).__name__)
    return found


def reuse(module, store):
    pool = module.BufferPool(store)
    first = pool.acquire(100000)
    address = first.ptr
    first.release()
    return pool.acquire(131072).ptr == address


CASES = {
    "acquire": acquire(),
    "acquire-0": acquire(size=0),
    "acquire--1": acquire(size=-1),
    "acquire-more-than-max-bytes": acquire(max_bytes=65536, size=1 << 20),
    "acquire-more-than-max-size-class": acquire(max_size_class=65536, size=1 << 20),
    "exhausted": acquire(max_regions=2, held=2, given={"block": False}),
    "exhausted-timeout": acquire(max_regions=1, held=1, given={"timeout": 0.05}),
    "exhausted-default-timeout": acquire(max_regions=1, held=1, default_timeout=0.05),
    "exhausted-no-block": acquire(max_regions=1, held=1, block_on_exhaustion=False),
    "timeout--1": acquire(given={"timeout": -1}),
    "wrong-type-timeout": acquire(given={"timeout": "1"}),
    "wrong-type-block": acquire(given={"block": "1"}),
    "wrong-type-size": acquire(size="1"),
    "prewarm": acquire(prewarm_size=100, prewarm_count=2),
    "min-size-class-0": acquire(min_size_class=0),
    "alignment-0": acquire(alignment=0),
    "alignment-3": acquire(alignment=3),
    "max-bytes--1": acquire(max_bytes=-1),
    "max-regions--1": acquire(max_regions=-1),
    "wrong-type-default-timeout": acquire(default_timeout="x"),
    "release": release,
    "transfer": transfer,
    "close": close,
    "reuse": reuse,
}
