"""Reads that return one shard of a tensor, or assemble a tensor from its shards."""

import math

from . import arguments, layout
from .codec import decode, log, memory, tensor_of
from .parallelism import (
    MODES,
    TP,
    axes_of,
    parallelism_manifest_key,
    shard_range,
    tp_key,
    writer_key,
    writer_manifest_key,
)


class Sources:
    """The shards of a tensor: its data type, its full shape, the split dimension, and (start, tensor) of each shard."""

    def __init__(self, dtype, shape, split_dim):
        self.dtype, self.shape, self.split_dim, self.shards = dtype, tuple(shape), split_dim, []

    def add(self, header, data):
        """Adds a shard. Returns whether its shape and its axis fit."""
        axis = next((axis for axis in header.axes if axis.kind == TP), None)
        if (
            header.kind != layout.SHARD
            or axis is None
            or axis.split_dim != self.split_dim
            or header.dtype != self.dtype
        ):
            return False
        found = shard_range(self.shape[self.split_dim], axis.rank, axis.size)
        if found is None or header.local != (
            *self.shape[: self.split_dim],
            found[1],
            *self.shape[self.split_dim + 1 :],
        ):
            return False
        self.shards.append((found[0], tensor_of(header, data)))
        return True

    def assemble(self, start, extent, target):
        """Copies [start, start + extent) of the split dimension into the tensor `target`.

        Returns whether the shards cover all of it.
        """
        covered = bytearray(extent)
        for shard_start, shard in self.shards:
            low = max(start, shard_start)
            high = min(start + extent, shard_start + shard.shape[self.split_dim])
            if high > low:
                part = shard.narrow(self.split_dim, low - shard_start, high - low)
                target.narrow(self.split_dim, low - start, high - low).copy_(part)
                covered[low - start : high - start] = b"\1" * (high - low)
        return all(covered)


def _target(target):
    """(mode, parallelism) of a ReadTarget, or None if it is not valid. The parallelism is checked, or None if not
    given.
    """
    if target is None:
        return "AS_STORED", None
    mode = getattr(target, "mode", None)
    if not hasattr(target, "parallelism") or not isinstance(mode, str):
        return None
    mode = mode.upper()
    if mode not in MODES:
        return None
    if target.parallelism is None:
        return (mode, None) if mode != "SHARD" else None
    parallelism = axes_of(target.parallelism)
    return None if parallelism is None or mode == "AS_STORED" else (mode, parallelism)


class ShardedReads:
    """get with a ReadTarget."""

    def _shard(self, key):
        """(header, data) of a stored tensor, or None."""
        data = self._fetch(key)
        header = None if data is None else layout.parse(data)
        return None if header is None else (header, data)

    def _stored_shard(self, key, parallelism):
        """(key, data) of the stored shard with exactly these axes, or None."""
        names = [parallelism.key(key)]
        if parallelism.only_tp:
            axis = parallelism.axes[0]
            names.append(writer_key(key, axis.rank, axis.size, axis.split_dim))
        for name in names:
            found = self._shard(name)
            if found is not None and parallelism.matches(found[0]):
                return name, found[1]
        return None

    def _writer_sources(self, key):
        """The shards of the writer partitions, or None without a manifest or if a shard is missing."""
        manifest = layout.parse_manifest(self._fetch(writer_manifest_key(key)))
        if manifest is None:
            return None
        return self._collect(
            Sources(manifest.dtype, manifest.shape, manifest.split_dim),
            [
                (writer_key(key, rank, manifest.shards, manifest.split_dim), rank, manifest.shards, None)
                for rank in range(manifest.shards)
            ],
        )

    def _collect(self, sources, wanted, found=None):
        """Adds the shards [(key, rank, shards, parallelism)] to `sources`. Returns None if one is missing or does not
        fit.
        """
        for key, rank, shards, parallelism in wanted:
            shard = self._shard(key)
            if shard is None:
                return None
            header, data = shard
            axis = next((axis for axis in header.axes if axis.kind == TP), None)
            if axis is None or axis.size != shards or (rank is not None and axis.rank != rank):
                return None
            if parallelism is not None and not parallelism.matches(header, any_tp_rank=True):
                return None
            if not sources.add(header, data):
                return None
        return sources

    def _sources(self, key, parallelism):
        """The shards from which a tensor with a "tp" axis is assembled: those of the manifest, else those of the
        request.
        """
        axis = parallelism.axes[parallelism.tp]
        manifest = layout.parse_manifest(self._fetch(parallelism_manifest_key(key)))
        if (
            manifest is not None
            and manifest.split_dim == axis.split_dim
            and manifest.shape[axis.split_dim] % axis.size == 0
        ):
            ranks = [parallelism.with_tp(rank, manifest.shards) for rank in range(manifest.shards)]
            found = self._collect(
                Sources(manifest.dtype, manifest.shape, manifest.split_dim),
                [(one.key(key), None, manifest.shards, one) for one in ranks],
            )
            if found is not None:
                return found
        first_key = parallelism.with_tp(0).key(key)
        if parallelism.only_tp and axis.size <= 1:
            first_key = key
        first = self._shard(first_key)
        if first is None or not 0 <= axis.split_dim < len(first[0].shape) or first[0].shape[axis.split_dim] % axis.size:
            return None
        header = first[0]
        stored = next((one for one in header.axes if one.kind == TP), None)
        if stored is None or stored.split_dim != axis.split_dim:
            return None
        sources = Sources(header.dtype, header.shape, axis.split_dim)
        if parallelism.only_tp:
            ranks = range(stored.size)
            return self._collect(
                sources, [(tp_key(key, rank) if stored.size > 1 else key, rank, stored.size, None) for rank in ranks]
            )
        ranks = [parallelism.with_tp(rank) for rank in range(axis.size)]
        return self._collect(sources, [(one.key(key), None, axis.size, one) for one in ranks])

    def _assembled(self, sources, parallelism, address=0, size=0):
        """The full tensor (`parallelism` None) or a shard of it, as a new tensor, or over `size` bytes of memory at
        `address`.
        """
        import torch

        start, extent, axes = 0, sources.shape[sources.split_dim], None
        local = list(sources.shape)
        if parallelism is not None:
            axis = parallelism.axes[parallelism.tp]
            found = shard_range(extent, axis.rank, axis.size)
            if found is None:
                return None
            start, extent = found
            local[sources.split_dim] = extent
            axes = parallelism.stored(local)
        header = layout.pack(sources.dtype, sources.shape, local, axes or ())
        if not address:
            target = torch.empty(local, dtype=getattr(torch, layout.DTYPES[sources.dtype]))
            return target if sources.assemble(start, extent, target) else None
        total = layout.HEADER_BYTES + math.prod(local) * layout.ITEM_BYTES[sources.dtype]
        if total > size:
            log.error("the buffer of %d bytes is too small for a tensor of %d bytes", size, total)
            return None
        view = memory(address, total)
        target = tensor_of(layout.parse(header, total), view)
        if not sources.assemble(start, extent, target):
            return None
        view[: layout.HEADER_BYTES] = header
        return target

    def _read(self, key, target, address=0, size=0):
        """Reads the tensor that `target` describes, into new memory, or into `size` bytes at `address`."""

        def stored(name, data=None):
            if address:
                return self._tensor_at(address, self.get_into(name, address, size))
            data = self._fetch(name) if data is None else data
            return None if data is None else decode(data)

        parsed = _target(target) if self._ready else None
        if parsed is None:
            return None
        mode, parallelism = parsed
        if mode == "AS_STORED":
            return stored(key)
        if parallelism is None:
            sources = self._writer_sources(key)
            return stored(key) if sources is None else self._assembled(sources, None, address, size)
        if mode == "SHARD":
            found = self._stored_shard(key, parallelism)
            if found is not None:
                return stored(*found)
        if parallelism.tp is None:
            return None
        sources = self._sources(key, parallelism)
        if sources is not None:
            return self._assembled(sources, parallelism if mode == "SHARD" else None, address, size)
        if mode == "SHARD" and parallelism.only_tp and not address:
            axis = parallelism.axes[0]
            return stored(tp_key(key, axis.rank) if axis.size > 1 else key)
        return None

    def get_tensor_with_parallelism(self, key, target=None):
        """Returns the tensor that the ReadTarget `target` describes, assembled from stored shards if necessary, or
        None.
        """
        return self._read(arguments.text("key", key), target)

    def get_tensor_with_parallelism_into(self, key, buffer_ptr, size, target=None):
        """Reads the tensor that `target` describes into registered memory, header included.

        Returns a tensor over that memory, or None. The caller keeps the memory alive and registered.
        """
        key, buffer_ptr = arguments.text("key", key), arguments.size("buffer_ptr", buffer_ptr)
        size = arguments.size("size", size)
        return self._read(key, target, buffer_ptr, size) if buffer_ptr else None

    def batch_get_tensor_with_parallelism(self, keys, targets=None):
        """get_tensor_with_parallelism for each key, with a list of targets or None. Returns a list of tensors or
        None.
        """
        keys = arguments.texts("keys", keys)
        if targets is None:
            return self.batch_get_tensor(keys)
        if not isinstance(targets, list) or len(targets) != len(keys):
            return [None] * len(keys)
        return [self._read(key, target) for key, target in zip(keys, targets)]

    def batch_get_tensor_with_parallelism_into(self, keys, buffer_ptrs, sizes, targets=None):
        """get_tensor_with_parallelism_into for each key. Returns a list of tensors or None."""
        keys, buffer_ptrs = arguments.texts("keys", keys), arguments.sizes("buffer_ptrs", buffer_ptrs)
        sizes = arguments.sizes("sizes", sizes)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [None] * len(keys)
        if targets is not None and (not isinstance(targets, list) or len(targets) != len(keys)):
            return [None] * len(keys)
        targets = [None] * len(keys) if targets is None else targets
        return [
            self.get_tensor_with_parallelism_into(key, address, size, target)
            for key, address, size, target in zip(keys, buffer_ptrs, sizes, targets)
        ]
