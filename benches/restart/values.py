"""Keys and self-checking values. A value names its key and version, so that wrong bytes are recognized and can be traced."""
import hashlib, struct

HEAD = struct.Struct("<8s8sII")  # magic, key hash, version, length
MAGIC = b"restart1"


def key_of(prefix, number):
    """68 bytes, in the form of the keys of SGLang's HiCache"""
    return hashlib.sha256(f"{prefix}{number}".encode()).hexdigest() + "_0_k"


def value_of(key, version=0, low=64, high=512, stable=False):
    """The bytes of a version. Its size is from `low` (at least 32) to `high`; `stable`: the same size for all versions of a key."""
    digest = hashlib.sha256(f"{key}/{version}".encode()).digest()
    owner = hashlib.sha256(key.encode()).digest()
    size = low + int.from_bytes((owner if stable else digest)[:4], "little") % (high - low + 1)
    head = HEAD.pack(MAGIC, owner[:8], version, size)
    return (head + digest * (size // 32 + 1))[:size]


def check(key, data, low, high, stable=False):
    """The version of a value. ValueError, with the reason, if these are not bytes of this key."""
    if len(data) < HEAD.size:
        raise ValueError(f"{len(data)} bytes")
    magic, owner, version, size = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"no header: {bytes(data[:16])!r}")
    if owner != hashlib.sha256(key.encode()).digest()[:8]:
        raise ValueError(f"a value of another key ({owner.hex()}, version {version})")
    if bytes(data) != value_of(key, version, low, high, stable):
        raise ValueError(f"damaged bytes of version {version} (length {len(data)}, header says {size})")
    return version
