"""The stored form of a tensor: a header of 304 bytes, then the elements in row-major order. Numbers are little-endian.

  offset  bytes  field
       0      4  magic "NOOM"
       4      2  version 1
       6      2  size of the header: 304
       8      4  data type (index in DTYPES)
      12      4  number of dimensions, 0 to 8
      16      4  0 full tensor, 1 shard
      20      4  0
      24      8  offset of the elements: 304
      32      8  bytes of the elements
      40     64  global shape, 8 numbers; -1 for an unused dimension
     104     64  local shape, the same
     168      4  number of axes, 0 to 4
     172      4  0
     176    128  4 axes of 32 bytes: kind, index, rank, size, split dimension or -1, expert or stage id (4 bytes each),
                 local extent of the split dimension or 0 (8 bytes)

A manifest of 96 bytes describes a sharded tensor: magic "NAMW", version 1, size 96 (2 bytes each), data type, number of
dimensions, split dimension, number of shards, 0 (4 bytes each), 4 bytes of padding, and the global shape.
"""

import math
import struct
from typing import NamedTuple

HEADER_BYTES = 304
MAX_DIMENSIONS = 8
MAX_AXES = 4
MAGIC = 0x4D4F4F4E
MANIFEST_MAGIC = 0x574D414E
MANIFEST_BYTES = 96
DTYPES = (
    "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
ITEM_BYTES = (4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 1, 1)
FULL, SHARD = 0, 1
_FIXED = struct.Struct("<IHHiiIIQQ8q8qII")
_AXIS = struct.Struct("<6iq")
_MANIFEST = struct.Struct("<IHHiiiii4x8q")


class Axis(NamedTuple):
    """One axis of parallelism, as stored. `kind` is an index in parallelism.KINDS; `identifier` is the expert or
    stage id.
    """

    kind: int
    rank: int
    size: int
    split_dim: int = -1
    identifier: int = 0
    extent: int = 0


class Header(NamedTuple):
    """The description in the header of a stored tensor. `local` is the shape of the stored elements."""

    dtype: int
    shape: tuple
    local: tuple
    kind: int
    axes: tuple
    data_bytes: int


class Manifest(NamedTuple):
    """A tensor in `shards` shards along the dimension `split_dim`. `shape` is the shape of the full tensor."""

    dtype: int
    shape: tuple
    split_dim: int
    shards: int


def _padded(shape):
    return (*shape, *([-1] * (MAX_DIMENSIONS - len(shape))))


def pack(dtype, shape, local, axes=(), kind=None):
    """The header of a tensor with the local shape `local`, a full tensor or (with axes) a shard."""
    kind = (SHARD if axes else FULL) if kind is None else kind
    data_bytes = math.prod(local) * ITEM_BYTES[dtype]
    fixed = _FIXED.pack(
        MAGIC,
        1,
        HEADER_BYTES,
        dtype,
        len(local),
        kind,
        0,
        HEADER_BYTES,
        data_bytes,
        *_padded(shape),
        *_padded(local),
        len(axes),
        0,
    )
    packed = b"".join(
        _AXIS.pack(axis.kind, i, axis.rank, axis.size, axis.split_dim, axis.identifier, axis.extent)
        for i, axis in enumerate(axes)
    )
    return (fixed + packed).ljust(HEADER_BYTES, b"\0")


def parse(data, length=None):
    """The header at the start of `data`, or None if it does not describe exactly `length` bytes (all of `data` if
    None).
    """
    length = len(data) if length is None else length
    if length < HEADER_BYTES or len(data) < HEADER_BYTES:
        return None
    fields = _FIXED.unpack_from(data)
    magic, version, header, dtype, dimensions, kind, _, offset, data_bytes = fields[:9]
    if (magic, version, header, offset) != (MAGIC, 1, HEADER_BYTES, HEADER_BYTES) or kind not in (FULL, SHARD):
        return None
    if not 0 <= dtype < len(DTYPES) or not 0 <= dimensions <= MAX_DIMENSIONS or offset + data_bytes != length:
        return None
    shape, local, count = fields[9 : 9 + dimensions], fields[17 : 17 + dimensions], fields[25]
    if any(n < 0 for n in (*shape, *local)) or math.prod(local) * ITEM_BYTES[dtype] != data_bytes or count > MAX_AXES:
        return None
    axes = []
    for i in range(count):
        axis, _, rank, size, split_dim, identifier, extent = _AXIS.unpack_from(data, _FIXED.size + i * _AXIS.size)
        if not 0 <= axis <= 3 or size <= 0 or not 0 <= rank < size:
            return None
        axes.append(Axis(axis, rank, size, split_dim, identifier, extent))
    return Header(dtype, shape, local, kind, tuple(axes), data_bytes)


def pack_manifest(manifest):
    """The 96 bytes of a manifest."""
    return _MANIFEST.pack(
        MANIFEST_MAGIC, 1, MANIFEST_BYTES, manifest.dtype, len(manifest.shape), manifest.split_dim, manifest.shards, 0,
        *_padded(manifest.shape),
    )  # fmt: skip


def parse_manifest(data):
    """The manifest in `data`, or None if `data` has no valid manifest."""
    if data is None or len(data) < MANIFEST_BYTES:
        return None
    magic, version, header, dtype, dimensions, split_dim, shards, _, *shape = _MANIFEST.unpack_from(data)
    if (magic, version, header) != (MANIFEST_MAGIC, 1, MANIFEST_BYTES) or not 0 <= dimensions <= MAX_DIMENSIONS:
        return None
    if shards <= 0 or not 0 <= split_dim < dimensions or any(n <= 0 for n in shape[:dimensions]):
        return None
    return Manifest(dtype, tuple(shape[:dimensions]), split_dim, shards)
