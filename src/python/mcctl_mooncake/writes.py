"""Methods that store tensors: put, pub (put with a configuration) and upsert, for one tensor or many, whole or in
shards.
"""

import contextlib
import ctypes
import weakref

from . import arguments
from .arguments import INVALID
from .buffer_pool import BufferPool
from .codec import decode, object_at, prepare
from .parallelism import TP, Axis, shard_range, tp_key

# Tensors of at most STAGED_BYTES are copied into registered memory, in groups of at most GROUP_BYTES, and each group is
# stored with one batch call. Larger tensors are stored one by one, without a copy.
STAGED_BYTES = 4 << 20
GROUP_BYTES = 16 << 20
_DEFAULT = object()


def copied_config(config, group_ids):
    """A copy of a ReplicateConfig with other group ids."""
    copy = type(config)()
    for name in dir(config):
        if not name.startswith("_") and not callable(getattr(config, name)):
            setattr(copy, name, getattr(config, name))
    copy.group_ids = group_ids
    return copy


def _aligned(size):
    return (size + 63) // 64 * 64


def first_error(codes):
    return next((code for code in codes if code != 0), 0)


def tp_parts(tensor, shards, split_dim):
    """A Part for each shard of a tensor, or None if it cannot be split into equal shards."""
    try:
        extent = tensor.shape[split_dim] if 0 <= split_dim < len(tensor.shape) else -1
        parts = []
        for rank in range(shards):
            found = shard_range(extent, rank, shards) if extent >= 0 else None
            if found is None:
                return None
            axis = Axis(TP, rank, shards, split_dim, extent=found[1])
            parts.append(prepare(tensor.narrow(split_dim, *found), shape=tuple(tensor.shape), axes=[axis]))
        return parts if all(parts) else None
    except (AttributeError, TypeError):
        return None


class TensorWrites:
    """Stores tensors. A put of an existing key returns 0 and keeps the stored tensor. An upsert replaces it."""

    _config_type: type = object
    _staging = None

    def _check_config(self, config):
        if config is _DEFAULT:
            return None
        if not isinstance(config, self._config_type) or config is None:
            raise TypeError(f"argument 'config' must be ReplicateConfig, not {type(config).__name__}")
        return config

    @staticmethod
    def _config_at(config, index):
        """The configuration of one key of a batch."""
        if config is None or config.group_ids is None or index >= len(config.group_ids):
            return config
        return copied_config(config, [config.group_ids[index]])

    def _write(self, upsert, key, part, config):
        if part is None or not self._ready:
            return INVALID
        write = self.upsert_parts if upsert else self.put_parts
        return write(key, *part.parts, **({} if config is None else {"config": config}))

    def _write_bytes(self, upsert, key, data, config):
        write = self.upsert if upsert else self.put
        return write(key, data, **({} if config is None else {"config": config}))

    def _write_batch(self, upsert, keys, parts, config):
        """A code for each key. A part of None is invalid."""
        if config is not None and config.group_ids is not None and len(config.group_ids) != len(keys):
            return [INVALID] * len(keys)
        codes = [INVALID] * len(keys)
        groups, total = [[]], 0
        for i, part in enumerate(parts):
            if part is None:
                continue
            if part.size > STAGED_BYTES or len(keys) == 1:
                codes[i] = self._write(upsert, keys[i], part, self._config_at(config, i))
                continue
            needed = _aligned(len(part.header) + part.size)
            if total + needed > GROUP_BYTES:
                groups.append([])
                total = 0
            groups[-1].append(i)
            total += needed
        for group in filter(None, groups):
            self._write_staged(upsert, keys, parts, group, config, codes)
        return codes

    def _write_staged(self, upsert, keys, parts, chosen, config, codes):
        """Copies the chosen parts into registered memory and stores them with one call."""
        lengths = [len(parts[i].header) + parts[i].size for i in chosen]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + _aligned(length))
        if self._staging is None:
            self._staging = BufferPool(weakref.proxy(self), GROUP_BYTES, min_size_class=1 << 20, alignment=4096)
        try:
            lease = self._staging.acquire(starts[-1])
        except RuntimeError:
            for i in chosen:
                codes[i] = self._write(upsert, keys[i], parts[i], self._config_at(config, i))
            return
        with lease:
            for i, start in zip(chosen, starts):
                ctypes.memmove(lease.ptr + start, parts[i].header, len(parts[i].header))
                ctypes.memmove(lease.ptr + start + len(parts[i].header), parts[i].address, parts[i].size)
            if config is not None and config.group_ids is not None:
                config = copied_config(config, [config.group_ids[i] for i in chosen])
            write = self.batch_upsert_from if upsert else self.batch_put_from
            given = {} if config is None else {"config": config}
            found = write([keys[i] for i in chosen], [lease.ptr + start for start in starts[:-1]], lengths, **given)
            for i, code in zip(chosen, found):
                codes[i] = code

    def _end_staging(self):
        """Unregisters the memory of _write_staged, unless another thread uses it."""
        staging, self._staging = self._staging, None
        if staging is not None:
            with contextlib.suppress(RuntimeError):
                staging.close()

    def _one(self, upsert, key, tensor, config=_DEFAULT):
        key, config = arguments.text("key", key), self._check_config(config)
        return self._write(upsert, key, prepare(tensor), config) if self._ready else INVALID

    def _many(self, upsert, keys, tensors, config=_DEFAULT):
        keys, tensors = arguments.texts("keys", keys), arguments.items("tensors_list", tensors)
        config = self._check_config(config)
        if not self._ready or len(keys) != len(tensors):
            return [INVALID] * len(keys)
        return self._write_batch(upsert, keys, [prepare(tensor) for tensor in tensors], config)

    def _one_tp(self, key, tensor, tp_rank, tp_size, split_dim, config=_DEFAULT):
        key, config = arguments.text("key", key), self._check_config(config)
        arguments.integer("tp_rank", tp_rank)
        tp_size, split_dim = arguments.integer("tp_size", tp_size), arguments.integer("split_dim", split_dim)
        if not self._ready:
            return INVALID
        if tp_size <= 1:
            return self._write(False, key, prepare(tensor), config)
        parts = tp_parts(tensor, tp_size, split_dim)
        if parts is None:
            return INVALID
        return first_error(self._write_batch(False, [tp_key(key, rank) for rank in range(tp_size)], parts, config))

    def _many_tp(self, keys, tensors, tp_rank, tp_size, split_dim, config=_DEFAULT):
        keys, tensors = arguments.texts("base_keys", keys), arguments.items("tensors_list", tensors)
        arguments.integer("tp_rank", tp_rank)
        tp_size, split_dim = arguments.integer("tp_size", tp_size), arguments.integer("split_dim", split_dim)
        if tp_size <= 1:
            return self._many(False, keys, tensors, config)
        config = self._check_config(config)
        groups = None if config is None else config.group_ids
        if not self._ready or len(keys) != len(tensors) or (groups is not None and len(groups) != len(keys)):
            return [INVALID] * len(keys)
        codes = [INVALID] * len(keys)
        shards = {i: parts for i, tensor in enumerate(tensors) if (parts := tp_parts(tensor, tp_size, split_dim))}
        if groups is not None:
            config = copied_config(config, [groups[i] for i in shards for _ in range(tp_size)])
        names = [tp_key(keys[i], rank) for i in shards for rank in range(tp_size)]
        found = self._write_batch(False, names, [part for parts in shards.values() for part in parts], config)
        for at, i in enumerate(shards):
            codes[i] = first_error(found[at * tp_size : (at + 1) * tp_size])
        return codes

    def _one_from(self, upsert, key, buffer_ptr, size, config=None):
        key, buffer_ptr = arguments.text("key", key), arguments.size("buffer_ptr", buffer_ptr)
        size = arguments.size("size", size)
        if not self._ready or object_at(buffer_ptr, size) is None:
            return INVALID
        write = self.upsert_from if upsert else self.put_from
        return write(key, buffer_ptr, size, **({} if config is None else {"config": config}))

    def _many_from(self, upsert, keys, buffer_ptrs, sizes, config=None):
        keys, buffer_ptrs = arguments.texts("keys", keys), arguments.sizes("buffer_ptrs", buffer_ptrs)
        sizes = arguments.sizes("sizes", sizes)
        valid = self._ready and len(keys) == len(buffer_ptrs) == len(sizes)
        if not valid or not keys or any(object_at(*one) is None for one in zip(buffer_ptrs, sizes)):
            return [INVALID] * len(keys)
        write = self.batch_upsert_from if upsert else self.batch_put_from
        return write(keys, buffer_ptrs, sizes, **({} if config is None else {"config": config}))

    def put_tensor(self, key, tensor):
        """Stores a tensor. Returns 0 or an error code."""
        return self._one(False, key, tensor)

    def pub_tensor(self, key, tensor, config=_DEFAULT):
        """Stores a tensor with a ReplicateConfig. Returns 0 or an error code."""
        return self._one(False, key, tensor, config)

    def upsert_tensor(self, key, tensor):
        """Stores or replaces a tensor. Returns 0 or an error code."""
        return self._one(True, key, tensor)

    def upsert_pub_tensor(self, key, tensor, config=_DEFAULT):
        """Stores or replaces a tensor with a ReplicateConfig. Returns 0 or an error code."""
        return self._one(True, key, tensor, config)

    def batch_put_tensor(self, keys, tensors_list):
        """Stores tensors. Returns a code for each key, -600 for each if the lists differ in length."""
        return self._many(False, keys, tensors_list)

    def batch_pub_tensor(self, keys, tensors_list, config=_DEFAULT):
        """Stores tensors with a ReplicateConfig. Returns a code for each key."""
        return self._many(False, keys, tensors_list, config)

    def batch_upsert_tensor(self, keys, tensors_list):
        """Stores or replaces tensors. Returns a code for each key."""
        return self._many(True, keys, tensors_list)

    def batch_upsert_pub_tensor(self, keys, tensors_list, config=_DEFAULT):
        """Stores or replaces tensors with a ReplicateConfig. Returns a code for each key."""
        return self._many(True, keys, tensors_list, config)

    def put_tensor_with_tp(self, key, tensor, tp_rank=0, tp_size=1, split_dim=0):
        """Splits a tensor along `split_dim` into `tp_size` equal shards and stores all of them, as KEY_tp_RANK.

        `tp_rank` has no effect. Returns 0 or an error code.
        """
        return self._one_tp(key, tensor, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(self, key, tensor, config=_DEFAULT, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp with a ReplicateConfig."""
        return self._one_tp(key, tensor, tp_rank, tp_size, split_dim, config)

    def batch_put_tensor_with_tp(self, base_keys, tensors_list, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp for each key. Returns a code for each key."""
        return self._many_tp(base_keys, tensors_list, tp_rank, tp_size, split_dim)

    def batch_pub_tensor_with_tp(self, base_keys, tensors_list, config=_DEFAULT, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp with a ReplicateConfig for each key. Returns a code for each key."""
        return self._many_tp(base_keys, tensors_list, tp_rank, tp_size, split_dim, config)

    def put_tensor_from(self, key, buffer_ptr, size):
        """Stores the `size` bytes of registered memory at `buffer_ptr`: the header and the elements of a tensor.

        Returns 0 or an error code, -600 if the memory does not have exactly one stored tensor.
        """
        return self._one_from(False, key, buffer_ptr, size)

    def upsert_tensor_from(self, key, buffer_ptr, size):
        """Stores or replaces a tensor from registered memory, see put_tensor_from."""
        return self._one_from(True, key, buffer_ptr, size)

    def batch_put_tensor_from(self, keys, buffer_ptrs, sizes):
        """put_tensor_from for each key. Returns a code for each key, -600 for each if one of them is not valid."""
        return self._many_from(False, keys, buffer_ptrs, sizes)

    def batch_upsert_tensor_from(self, keys, buffer_ptrs, sizes):
        """upsert_tensor_from for each key. Returns a code for each key, -600 for each if one of them is not valid."""
        return self._many_from(True, keys, buffer_ptrs, sizes)

    def put_tensor_with_tp_from(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        """Splits the tensor at `buffer_ptr` and stores its shards, see put_tensor_from and put_tensor_with_tp."""
        key, buffer_ptr = arguments.text("key", key), arguments.size("buffer_ptr", buffer_ptr)
        size, tp_size = arguments.size("size", size), arguments.integer("tp_size", tp_size)
        arguments.integer("tp_rank", tp_rank), arguments.integer("split_dim", split_dim)
        data = object_at(buffer_ptr, size) if self._ready else None
        if data is None:
            return INVALID
        if tp_size <= 1:
            return self.put_tensor_from(key, buffer_ptr, size)
        return self._one_tp(key, decode(data), tp_rank, tp_size, split_dim)

    def batch_put_tensor_with_tp_from(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp_from for each key. Returns a code for each key."""
        keys, buffer_ptrs = arguments.texts("base_keys", base_keys), arguments.sizes("buffer_ptrs", buffer_ptrs)
        sizes, tp_size = arguments.sizes("sizes", sizes), arguments.integer("tp_size", tp_size)
        arguments.integer("tp_rank", tp_rank), arguments.integer("split_dim", split_dim)
        if tp_size <= 1:
            return self.batch_put_tensor_from(keys, buffer_ptrs, sizes)
        if not self._ready or not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(keys)
        found = [object_at(*one) for one in zip(buffer_ptrs, sizes)]
        tensors = [None if data is None else decode(data) for data in found]
        return self._many_tp(keys, tensors, tp_rank, tp_size, split_dim)
