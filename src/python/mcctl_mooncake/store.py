"""The names of mooncake.store."""

import atexit

from . import _native, arguments
from ._native import DiskDescriptor, MooncakeHostMemAllocator
from .buffer_pool import (
    BufferLease, BufferLeaseView, BufferPool, RegisteredBufferLease, RegisteredBufferLeaseView, RegisteredBufferPool,
)  # fmt: skip
from .enums import ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType
from .numa import bind_to_numa_node
from .parallelism import ParallelAxis, ReadTarget, TensorParallelism
from .tensors import TensorMethods, _deserialize_tensor, _serialize_tensor, _tensor_metadata_size
from .unsupported import (
    EngramStore, EngramStoreConfig, MooncakeDistributedNoFRegister, _get_pyclient_from_wrapper, get_alloc_func_addr,
    get_free_func_addr,
)  # fmt: skip
from .values import (
    BufferHandle, Descriptor, MemoryDescriptor, QueryTaskResponse, ReplicaDescriptor, ReplicateConfig, buffer_handle,
    replica, task,
)  # fmt: skip

# The real module exports the members of these enumerations, the later ones over the earlier.
_MEMBERS = {one.name: one for kind in (ReplicaStatus, TaskType, TaskStatus, ObjectDataType) for one in kind}
globals().update(_MEMBERS)
__all__ = [
    "BufferHandle", "BufferLease", "BufferLeaseView", "BufferPool", "Descriptor", "DiskDescriptor", "EngramStore",
    "EngramStoreConfig", "MemoryDescriptor", "MooncakeDistributedNoFRegister", "MooncakeDistributedStore",
    "MooncakeHostMemAllocator", "ObjectDataType", "ParallelAxis", "QueryTaskResponse", "ReadTarget",
    "RegisteredBufferLease", "RegisteredBufferLeaseView", "RegisteredBufferPool", "ReplicaDescriptor", "ReplicaStatus",
    "ReplicateConfig", "SoftPinAction", "TaskStatus", "TaskType", "TensorParallelism", "bind_to_numa_node",
    "get_alloc_func_addr", "get_free_func_addr",
]  # fmt: skip
__all__ += _MEMBERS
# Names of the real module that `from mcctl_mooncake.store import *` leaves out.
_PRIVATE = (_deserialize_tensor, _get_pyclient_from_wrapper, _serialize_tensor, _tensor_metadata_size)


class MooncakeDistributedStore(TensorMethods, _native.MooncakeDistributedStore):
    """A client of a Mooncake store. Call setup first. All methods may be called from several threads at the same time.

    Codes: 0 or a positive result on success, or a negative error code, for example -200 no space, -600 invalid
    parameters, -704 the object does not exist, -706 the object is leased, -800 a node cannot be reached, -900 the
    master cannot be reached.
    """

    _config_type = ReplicateConfig
    _host_memory_allocator = MooncakeHostMemAllocator
    _private_buffers = True

    def init_all(self, protocol, device_name, size, /):
        """Not supported: use setup. The method of the real module ends the process."""
        arguments.text("protocol", protocol), arguments.text("device_name", device_name), arguments.size("size", size)
        raise NotImplementedError("init_all is not supported: use setup")

    def get_buffer(self, key, /):
        """Returns an object in memory of its own, a BufferHandle; None if it does not exist or cannot be read."""
        return self._read_new([key], buffer_handle)[0]

    def batch_get_buffer(self, keys, /):
        """Returns a BufferHandle or None for each key, like get_buffer. One request to the master."""
        return self._read_new(keys, buffer_handle)

    def get_replica_desc(self, key):
        """Returns the replicas of an object, a list of ReplicaDescriptor; an empty list if it does not exist."""
        return [replica(one) for one in super().get_replica_desc(key)]

    def batch_get_replica_desc(self, keys):
        """Returns {key: [ReplicaDescriptor]} for the objects that exist."""
        return {key: [replica(one) for one in found] for key, found in super().batch_get_replica_desc(keys).items()}

    def query_task(self, task_id):
        """Returns (QueryTaskResponse, 0), or (None, a negative code).

        `task_id` is the pair of integers that create_copy_task or create_move_task returned.
        """
        found, code = super().query_task(task_id)
        return None if found is None else task(found), code

    def _get_pyclient_capsule(self):
        """Not supported: the client is not a C++ object."""
        raise NotImplementedError("the client is not a C++ object: pass the MooncakeDistributedStore itself")


atexit.register(_native.close_all)
