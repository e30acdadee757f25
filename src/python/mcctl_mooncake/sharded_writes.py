"""Methods that store one shard of a tensor, for any parallelism."""

from . import arguments, layout
from .arguments import INVALID
from .codec import decode, object_at, prepare
from .layout import Manifest
from .parallelism import (
    TP, Axis, axes_of, parallelism_manifest_key, shard_range, writer_key, writer_manifest_key, writer_partition,
)  # fmt: skip
from .writes import _DEFAULT


class ShardedWrites:
    """put and upsert with a TensorParallelism or a writer partition.

    parallelism: the tensor is stored as one shard with these axes. With "tp" as the only axis the tensor is the shard
    of this rank. With "tp" and other axes it is the full tensor, and the shard of this rank is stored.
    writer_partition: an object with rank, size and split_dim; the shard of this rank of the full tensor is stored.
    Both write a manifest next to the shard.
    """

    def _write_sharded(self, upsert, key, tensor, parallelism, config, writer):
        request = self._request(parallelism, writer)
        if request is None or not self._ready:
            return INVALID
        parallelism, writer = request
        if writer is not None:
            return self._write_shard(upsert, key, tensor, config, writer_key(key, *writer), writer, None)
        if parallelism is None:
            return self._write(upsert, key, prepare(tensor), config)
        if parallelism.tp is None or parallelism.only_tp:
            shape = list(tensor.shape)
            axes = parallelism.stored(shape)
            if axes is None:
                return INVALID
            if parallelism.only_tp:
                shape[axes[0].split_dim] *= axes[0].size
            code = self._write(upsert, parallelism.key(key), prepare(tensor, shape=tuple(shape), axes=axes), config)
            if code == 0 and parallelism.only_tp:
                code = self._write_manifest(upsert, parallelism_manifest_key(key), tensor, shape, axes[0], config)
            return code
        axis = parallelism.axes[parallelism.tp]
        part = (axis.rank, axis.size, axis.split_dim)
        return self._write_shard(upsert, key, tensor, config, parallelism.key(key), part, parallelism)

    def _write_shard(self, upsert, key, tensor, config, shard_key, part, parallelism):
        """Stores one shard of a full tensor, and the manifest."""
        rank, size, split_dim = part
        shape = tuple(tensor.shape)
        found = shard_range(shape[split_dim], rank, size) if 0 <= split_dim < len(shape) else None
        if found is None:
            return INVALID
        shard = tensor.narrow(split_dim, *found)
        axis = Axis(TP, rank, size, split_dim, extent=found[1])
        axes = [axis] if parallelism is None else parallelism.stored(tuple(shard.shape))
        code = self._write(upsert, shard_key, prepare(shard, shape=shape, axes=axes), config)
        if code != 0:
            return code
        name = writer_manifest_key(key) if parallelism is None else parallelism_manifest_key(key)
        return self._write_manifest(upsert, name, tensor, shape, axis, config)

    def _write_manifest(self, upsert, key, tensor, shape, axis, config):
        dtype = layout.DTYPES.index(str(tensor.dtype).removeprefix("torch."))
        manifest = Manifest(dtype, tuple(shape), axis.split_dim, axis.size)
        return self._write_bytes(upsert, key, layout.pack_manifest(manifest), config)

    @staticmethod
    def _request(parallelism, writer):
        """(parallelism, writer partition), checked, each or both None; or None if the request is not valid."""
        if writer is not None:
            writer = writer_partition(writer) if parallelism is None else None
            return None if writer is None else (None, writer)
        if parallelism is None:
            return None, None
        parallelism = axes_of(parallelism)
        return None if parallelism is None else (parallelism, None)

    def _write_sharded_from(self, upsert, key, buffer_ptr, size, parallelism, config, writer):
        """Stores from memory. With a "tp" axis, the shards of all ranks are stored, without a manifest."""
        request = self._request(parallelism, writer)
        if request is None:
            return INVALID
        parallelism, writer = request
        if parallelism is None and writer is None:
            return self._one_from(upsert, key, buffer_ptr, size, config)
        data = object_at(buffer_ptr, size) if self._ready else None
        if data is None:
            return INVALID
        header, tensor = layout.parse(data), decode(data)
        if parallelism is not None and parallelism.tp is None:
            axes = parallelism.stored(header.local)
            return self._write(upsert, parallelism.key(key), prepare(tensor, shape=header.shape, axes=axes), config)
        if header.shape != header.local or 0 in header.shape:
            return INVALID
        if writer is not None:
            return self._write_shard(upsert, key, tensor, config, writer_key(key, *writer), writer, None)
        axis = parallelism.axes[parallelism.tp]
        for rank in range(axis.size):
            found = (
                shard_range(header.shape[axis.split_dim], rank, axis.size)
                if 0 <= axis.split_dim < tensor.dim()
                else None
            )
            if found is None:
                return INVALID
            shard, one = tensor.narrow(axis.split_dim, *found), parallelism.with_tp(rank)
            part = prepare(shard, shape=header.shape, axes=one.stored(tuple(shard.shape)))
            if code := self._write(upsert, one.key(key), part, config):
                return code
        return 0

    def _batch_sharded(self, keys, values, parallelisms, config, writers, direct, write):
        """Checks the lists of a batch, and calls `direct` for all keys or `write` for each."""
        groups = None if config is None else config.group_ids
        both = parallelisms is not None and writers is not None
        if both or values != len(keys) or (groups is not None and len(groups) != len(keys)):
            return [INVALID] * len(keys)
        requests = parallelisms if parallelisms is not None else writers
        if requests is None:
            return direct()
        if not isinstance(requests, list) or len(requests) != len(keys):
            return [INVALID] * len(keys)
        pairs = [(one, None) if parallelisms is not None else (None, one) for one in requests]
        return [write(i, *pairs[i], self._config_at(config, i)) for i in range(len(keys))]

    def _one_sharded(self, upsert, key, tensor, parallelism, config, writer):
        key, config = arguments.text("key", key), self._check_config(config)
        return self._write_sharded(upsert, key, tensor, parallelism, config, writer)

    def _one_sharded_from(self, upsert, key, buffer_ptr, size, parallelism, config, writer):
        key, buffer_ptr = arguments.text("key", key), arguments.size("buffer_ptr", buffer_ptr)
        size, config = arguments.size("size", size), self._check_config(config)
        return self._write_sharded_from(upsert, key, buffer_ptr, size, parallelism, config, writer)

    def _many_sharded(self, upsert, keys, tensors, parallelisms, config, writers):
        keys, tensors = arguments.texts("keys", keys), arguments.items("tensors_list", tensors)
        config = self._check_config(config)

        def direct():
            if not self._ready:
                return [INVALID] * len(keys)
            return self._write_batch(upsert, keys, [prepare(tensor) for tensor in tensors], config)

        def write(i, parallelism, writer, config):
            return self._write_sharded(upsert, keys[i], tensors[i], parallelism, config, writer)

        return self._batch_sharded(keys, len(tensors), parallelisms, config, writers, direct, write)

    def _many_sharded_from(self, upsert, keys, buffer_ptrs, sizes, parallelisms, config, writers):
        keys, buffer_ptrs = arguments.texts("keys", keys), arguments.sizes("buffer_ptrs", buffer_ptrs)
        sizes, config = arguments.sizes("sizes", sizes), self._check_config(config)
        values = len(buffer_ptrs) if len(buffer_ptrs) == len(sizes) else -1

        def direct():
            return self._many_from(upsert, keys, buffer_ptrs, sizes, config)

        def write(i, parallelism, writer, config):
            return self._write_sharded_from(upsert, keys[i], buffer_ptrs[i], sizes[i], parallelism, config, writer)

        return self._batch_sharded(keys, values, parallelisms, config, writers, direct, write)

    def put_tensor_with_parallelism(self, key, tensor, parallelism=None, config=_DEFAULT, writer_partition=None):
        """Stores a tensor, or one shard of it (see the class). Returns 0 or an error code."""
        return self._one_sharded(False, key, tensor, parallelism, config, writer_partition)

    def upsert_tensor_with_parallelism(self, key, tensor, parallelism=None, config=_DEFAULT, writer_partition=None):
        """Stores or replaces a tensor, or one shard of it (see the class). Returns 0 or an error code."""
        return self._one_sharded(True, key, tensor, parallelism, config, writer_partition)

    def put_tensor_with_parallelism_from(
        self, key, buffer_ptr, size, parallelism=None, config=_DEFAULT, writer_partition=None
    ):
        """Stores the tensor in memory at `buffer_ptr`: whole, as one shard, or with a "tp" axis as the shards of all
        ranks.

        Returns 0 or an error code.
        """
        return self._one_sharded_from(False, key, buffer_ptr, size, parallelism, config, writer_partition)

    def upsert_tensor_with_parallelism_from(
        self, key, buffer_ptr, size, parallelism=None, config=_DEFAULT, writer_partition=None
    ):
        """put_tensor_with_parallelism_from that replaces existing shards."""
        return self._one_sharded_from(True, key, buffer_ptr, size, parallelism, config, writer_partition)

    def batch_put_tensor_with_parallelism(
        self, keys, tensors_list, parallelisms=None, config=_DEFAULT, writer_partitions=None
    ):
        """put_tensor_with_parallelism for each key, with a list of parallelisms or of writer partitions, or neither.

        Returns a code for each key, -600 for each if the lists differ in length.
        """
        return self._many_sharded(False, keys, tensors_list, parallelisms, config, writer_partitions)

    def batch_upsert_tensor_with_parallelism(
        self, keys, tensors_list, parallelisms=None, config=_DEFAULT, writer_partitions=None
    ):
        """batch_put_tensor_with_parallelism that replaces existing shards."""
        return self._many_sharded(True, keys, tensors_list, parallelisms, config, writer_partitions)

    def batch_put_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=_DEFAULT, writer_partitions=None
    ):
        """put_tensor_with_parallelism_from for each key. Returns a code for each key."""
        return self._many_sharded_from(False, keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions)

    def batch_upsert_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=_DEFAULT, writer_partitions=None
    ):
        """upsert_tensor_with_parallelism_from for each key. Returns a code for each key."""
        return self._many_sharded_from(True, keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions)
