"""Names of mooncake.store that this package does not support. They raise NotImplementedError when they are used."""


class EngramStoreConfig:
    """The configuration of an EngramStore: `embedding_dim` and `table_vocab_sizes`."""

    __slots__ = ("embedding_dim", "table_vocab_sizes")

    def __init__(self):
        self.embedding_dim, self.table_vocab_sizes = 64, [1024]


class EngramStore:
    """Embedding tables in the store. Not supported."""

    def __init__(self, layer_id, config, store=None):
        if not isinstance(layer_id, int) or not isinstance(config, EngramStoreConfig):
            raise TypeError("EngramStore() requires an int and an EngramStoreConfig")
        raise NotImplementedError(
            "EngramStore is not supported: store embedding tables with put_from and get_into_ranges"
        )

    def get_embedding_dim(self):
        raise NotImplementedError("EngramStore is not supported")

    get_num_heads = get_store_keys = get_table_vocab_sizes = get_embedding_dim

    def lookup(self, row_ids):
        raise NotImplementedError("EngramStore is not supported")

    def populate(self, embedding_buffers):
        raise NotImplementedError("EngramStore is not supported")

    def remove_from_store(self, force=False):
        raise NotImplementedError("EngramStore is not supported")


class MooncakeDistributedNoFRegister:
    """Registration of NVMe-oF segments. Not supported."""

    def __init__(self):
        raise NotImplementedError("NVMe-oF segments are not supported")

    def real_register(self, arg0, arg1, arg2, arg3, arg4, arg5, arg6, /):
        raise NotImplementedError("NVMe-oF segments are not supported")

    def real_unregister_by_endpoint(self, arg0, arg1, arg2, arg3, arg4, /):
        raise NotImplementedError("NVMe-oF segments are not supported")


def _get_pyclient_from_wrapper(wrapper):
    """Not supported: the client is not a C++ object."""
    raise NotImplementedError("the client is not a C++ object: pass the MooncakeDistributedStore itself")


def get_alloc_func_addr():
    """Not supported: returns the address of an allocation function for CUDA memory pools in the real module."""
    raise NotImplementedError("the allocator for CUDA memory pools is not supported: use MooncakeHostMemAllocator")


def get_free_func_addr():
    """Not supported, see get_alloc_func_addr."""
    raise NotImplementedError("the allocator for CUDA memory pools is not supported: use MooncakeHostMemAllocator")
