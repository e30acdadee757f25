"""Tensor methods of the store client. Tensors are stored as layout.py describes."""

from . import arguments, layout
from .arguments import INVALID
from .codec import decode, log, memory, prepare
from .parallelism import tp_key
from .sharded_reads import ShardedReads
from .sharded_writes import ShardedWrites
from .writes import TensorWrites

FILE_NOT_FOUND = -1100
_REQUIRED = object()


class TensorMethods(ShardedReads, ShardedWrites, TensorWrites):
    """Methods that store and read PyTorch tensors, over the byte methods of the class that this one is mixed into.

    Codes: 0 success, -600 the client is not set up, or an argument or a tensor is not valid, and the codes of the
    byte methods. A read returns a tensor, or None if the object does not exist or is not a tensor.
    """

    _ready = False
    # Whether every BufferHandle has memory of its own, over which a tensor can be returned without a copy.
    _private_buffers = False

    def setup(self, *args, **kwargs):
        """Connects to the master, and contributes memory to the store. Returns 0 or a negative code.

        Arguments: local_hostname, metadata_server (a URL, or P2PHANDSHAKE), global_segment_size (bytes that this
        process contributes; 0 for none), local_buffer_size (bytes), protocol ("tcp" or "rdma"), rdma_devices (names
        separated by commas), master_server_addr (HOST:PORT), engine, enable_ssd_offload, ssd_offload_path, tenant_id,
        enable_client_http_server, client_http_port. A dictionary with these keys is accepted instead.
        """
        self._end_staging()
        code = super().setup(*args, **kwargs)
        self._ready = code == 0
        return code

    def setup_dummy(self, mem_pool_size, local_buffer_size, server_address):
        """Not supported: returns -1."""
        code = super().setup_dummy(mem_pool_size, local_buffer_size, server_address)
        self._ready = code == 0
        return code

    def close(self):
        """Unmounts the memory of this process and disconnects. Objects in that memory are lost. Returns 0."""
        self._end_staging()
        self._ready = False
        return super().close()

    # Reads.

    def _fetch(self, key):
        """The bytes of an object in memory that nothing else uses, or None."""
        return self._owned(self.get_buffer(key) if self._ready else None)

    def _owned(self, handle):
        if handle is None:
            return None
        view = memoryview(handle)
        return view if self._private_buffers and not view.readonly else bytearray(view)

    def get_tensor(self, key):
        """Returns a copy of the tensor `key`, or None."""
        data = self._fetch(arguments.text("key", key))
        return None if data is None else decode(data)

    def batch_get_tensor(self, keys):
        """Returns a list with a tensor or None for each key."""
        keys = arguments.texts("keys", keys)
        if not self._ready:
            return [None] * len(keys)
        if not keys:
            return []
        handles = self.batch_get_buffer(keys)
        found = [self._owned(handle) for handle in handles]
        return [None if data is None else decode(data) for data in found]

    def get_tensor_into(self, key, buffer_ptr, size):
        """Reads the stored tensor, header included, into `size` bytes of registered memory at `buffer_ptr`.

        Returns a tensor over that memory, without a copy, or None. The caller keeps the memory alive and registered.
        """
        key, buffer_ptr = arguments.text("key", key), arguments.size("buffer_ptr", buffer_ptr)
        size = arguments.size("size", size)
        if not self._ready:
            return None
        return self._tensor_at(buffer_ptr, self.get_into(key, buffer_ptr, size))

    def batch_get_tensor_into(self, keys, buffer_ptrs, sizes):
        """Reads each tensor into its own memory, see get_tensor_into.

        Returns a list with a tensor or None for each key, or with -600 for each key if the lists differ in length, an
        address is 0, or the client is not set up.
        """
        keys, buffer_ptrs = arguments.texts("keys", keys), arguments.sizes("buffer_ptrs", buffer_ptrs)
        sizes = arguments.sizes("sizes", sizes)
        if not self._ready or not len(keys) == len(buffer_ptrs) == len(sizes) or 0 in buffer_ptrs:
            return [INVALID] * len(keys)
        if not keys:
            return []
        lengths = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [self._tensor_at(address, length) for address, length in zip(buffer_ptrs, lengths)]

    @staticmethod
    def _tensor_at(address, length):
        if address == 0 or length < layout.HEADER_BYTES:
            return None
        return decode(memory(address, length))

    def get_tensor_with_tp(self, key, tp_rank=0, tp_size=1, split_dim=0):
        """Returns the shard of rank `tp_rank`, or the tensor itself if `tp_size` is at most 1. `split_dim` has no
        effect.
        """
        key, tp_rank = arguments.text("key", key), arguments.integer("tp_rank", tp_rank)
        arguments.integer("split_dim", split_dim)
        return self.get_tensor(key if arguments.integer("tp_size", tp_size) <= 1 else tp_key(key, tp_rank))

    def batch_get_tensor_with_tp(self, base_keys, tp_rank=0, tp_size=1):
        """Returns a list with the shard of rank `tp_rank` of each tensor, or None."""
        return self.batch_get_tensor(self._tp_keys(base_keys, tp_rank, tp_size))

    def get_tensor_with_tp_into(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        """Reads the shard of rank `tp_rank` into registered memory, see get_tensor_into."""
        key, tp_rank = arguments.text("key", key), arguments.integer("tp_rank", tp_rank)
        arguments.integer("split_dim", split_dim)
        key = key if arguments.integer("tp_size", tp_size) <= 1 else tp_key(key, tp_rank)
        return self.get_tensor_into(key, buffer_ptr, size)

    def batch_get_tensor_with_tp_into(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1):
        """Reads the shards of rank `tp_rank` into registered memory, see batch_get_tensor_into."""
        keys = self._tp_keys(base_keys, tp_rank, tp_size)
        found = self.batch_get_tensor_into(keys, buffer_ptrs, sizes)
        return found if self._ready else [None] * len(keys)

    @staticmethod
    def _tp_keys(base_keys, tp_rank, tp_size):
        base_keys, tp_rank = arguments.texts("base_keys", base_keys), arguments.integer("tp_rank", tp_rank)
        if arguments.integer("tp_size", tp_size) <= 1:
            return base_keys
        return [tp_key(key, tp_rank) for key in base_keys]

    def get_tensor_into_cuda(self, key, tensor):
        """Copies the stored tensor into a contiguous CUDA tensor with the same number of bytes.

        Returns the number of bytes, or -600 if `tensor` is not such a tensor, or the object does not exist or is not
        a tensor.
        """
        key = arguments.text("key", key)
        if not self._ready or not getattr(tensor, "is_cuda", False) or not tensor.is_contiguous():
            return INVALID
        source = self.get_tensor(key)
        if source is None or source.dtype != tensor.dtype or source.numel() != tensor.numel():
            return INVALID
        tensor.copy_(source.reshape(tensor.shape))
        return source.numel() * source.element_size()

    def batch_get_tensor_into_cuda(self, keys, tensors_list):
        """get_tensor_into_cuda for each key. Returns a list of codes, -600 for each key if the lists differ in
        length.
        """
        keys, tensors_list = arguments.texts("keys", keys), arguments.items("tensors_list", tensors_list)
        if len(keys) != len(tensors_list):
            return [INVALID] * len(keys)
        return [self.get_tensor_into_cuda(key, tensor) for key, tensor in zip(keys, tensors_list)]

    # Files.

    def save_tensor_to_safetensor(self, key, file_name=None):
        """Writes the tensor `key` to a safetensors file, in which it has the name `key`. The default file name is
        `key`.

        Returns 0, -1100 if the object does not exist or is not a tensor, or -600 if the file cannot be written.
        Requires the Python package safetensors.
        """
        key = arguments.text("key", key)
        if not self._ready:
            return INVALID
        tensor = self.get_tensor(key)
        if tensor is None:
            return FILE_NOT_FOUND
        path = key if file_name is None else _path(file_name)
        try:
            from safetensors.torch import save_file

            save_file({key: tensor}, path)
        except Exception as error:
            log.error("cannot write the file: %s", type(error).__name__)
            return INVALID
        return 0

    def load_tensor_from_safetensor(self, key=None, file_name=_REQUIRED):
        """Reads a tensor from a safetensors file and stores it as `key` (default: the file name).

        Reads the tensor with the name `key`, or the first one if the file has none of that name. Returns the tensor,
        or None if the file cannot be read or the tensor cannot be stored. Requires the Python package safetensors.
        """
        if file_name is _REQUIRED:
            raise TypeError("load_tensor_from_safetensor() requires the argument 'file_name'")
        file_name = arguments.text("file_name", file_name)
        if not self._ready:
            return None
        try:
            from safetensors.torch import load_file

            tensors = load_file(file_name)
        except Exception as error:
            log.error("cannot read the file: %s", type(error).__name__)
            return None
        key = file_name if key is None else _path(key)
        tensor = tensors[key] if key in tensors else next(iter(tensors.values()), None)
        return tensor if tensor is not None and self.put_tensor(key, tensor) == 0 else None


def _path(value):
    """`value` as text. The real module raises RuntimeError for another type, since it converts the value during the
    call.
    """
    try:
        return arguments.text("file_name", value)
    except TypeError as error:
        raise RuntimeError(str(error)) from None


def _serialize_tensor(tensor):
    """Returns (header, address, size, tensor): the 304 bytes before the elements, and where the elements are.

    The last item keeps the elements in memory. Raises ValueError for a tensor that cannot be stored.
    """
    part = prepare(tensor)
    if part is None:
        raise ValueError(
            "the tensor cannot be serialized: its type, number of dimensions or data type is not supported"
        )
    return part.header, part.address, part.size, part.tensor


def _deserialize_tensor(data, /):
    """Returns the tensor in `data`, the bytes of one stored tensor. Raises ValueError if `data` is not a stored
    tensor.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"_deserialize_tensor() requires bytes, not {type(data).__name__}")
    tensor = decode(bytearray(data))
    if tensor is None:
        raise ValueError("the data is not a stored tensor")
    return tensor


def _tensor_metadata_size():
    """Returns the size of the header of a stored tensor in bytes: 304."""
    return layout.HEADER_BYTES
