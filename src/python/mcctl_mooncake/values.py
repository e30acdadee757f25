"""Values that the store's methods receive and return, over the native classes."""

from . import _native
from .enums import ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType


def _enumeration(name, kind):
    """A property over a number of the native class."""
    native = getattr(_native.ReplicateConfig, name)

    def write(self, value):
        if not isinstance(value, kind):
            raise TypeError(f"ReplicateConfig.{name} must be {kind.__name__}, not {type(value).__name__}")
        native.__set__(self, int(value))

    return property(lambda self: kind(native.__get__(self)), write)


class ReplicateConfig(_native.ReplicateConfig):
    """Options of a put.

    replica_num: number of replicas in memory (1). prefer_alloc_in_same_node: place all replicas of a call on one
    node. preferred_segment, preferred_segments: where to place replicas if there is space. soft_pin_action: what
    happens to the soft pin. soft_pin_ttl_ms: how long the soft pin lasts in milliseconds, or None. with_hard_pin:
    never evict the object. group_ids: one group for each key, or None; a group is evicted together. data_type: what
    the object contains. nof_replica_num, preferred_nof_segments, dfs_replica_num: replicas on NVMe-oF and on a
    distributed file system.
    """

    __slots__ = ()
    soft_pin_action = _enumeration("soft_pin_action", SoftPinAction)
    data_type = _enumeration("data_type", ObjectDataType)


class Descriptor:
    """The location of a replica in memory: `size` bytes at `buffer_address` of the segment `transport_endpoint`."""

    __slots__ = ("size", "buffer_address", "transport_endpoint")

    def __init__(self):
        self.size, self.buffer_address, self.transport_endpoint = 0, 0, ""


class _StoreValue:
    """A class whose values only the store creates."""

    __slots__ = ()

    def __new__(cls, *args, **kwargs):
        raise TypeError(f"{cls.__name__} has no constructor: the store returns it")


class BufferHandle(bytearray):
    """An object that was read into memory of its own. It supports the buffer protocol."""

    __slots__ = ()

    def __init__(self, *_args, **_kwargs):
        raise TypeError("BufferHandle has no constructor: the store returns it")

    def ptr(self):
        """Returns the address of the first byte. The memory is valid as long as this object exists."""
        return _native.address_of(self)

    def size(self):
        """Returns the size in bytes."""
        return len(self)


def buffer_handle(size):
    """A BufferHandle of `size` zeros."""
    handle = bytearray.__new__(BufferHandle)
    bytearray.__init__(handle, size)
    return handle


class MemoryDescriptor(_StoreValue):
    """A replica in memory."""

    __slots__ = ("buffer_descriptor",)


class ReplicaDescriptor(_StoreValue):
    """One replica of an object."""

    __slots__ = ("_replica",)

    @property
    def status(self):
        """The state of the replica, a ReplicaStatus."""
        return ReplicaStatus(self._replica.status)

    def is_memory_replica(self):
        """Returns whether the replica is in memory."""
        return self._replica.is_memory_replica()

    def is_disk_replica(self):
        """Returns whether the replica is in a file of a shared file system."""
        return self._replica.is_disk_replica()

    def is_local_disk_replica(self):
        """Returns whether the replica is on the disk of its node."""
        return self._replica.is_local_disk_replica()

    def get_memory_descriptor(self):
        """Returns the MemoryDescriptor. Raises RuntimeError if the replica is not in memory."""
        native = self._replica.get_memory_descriptor().buffer_descriptor
        buffer = Descriptor()
        buffer.size, buffer.buffer_address = native.size, native.buffer_address
        buffer.transport_endpoint = native.transport_endpoint
        descriptor = object.__new__(MemoryDescriptor)
        descriptor.buffer_descriptor = buffer
        return descriptor

    def get_disk_descriptor(self):
        """Returns the DiskDescriptor. Raises RuntimeError if the replica is not in a file."""
        return self._replica.get_disk_descriptor()


def replica(native):
    """A ReplicaDescriptor for a native one."""
    descriptor = object.__new__(ReplicaDescriptor)
    descriptor._replica = native
    return descriptor


class QueryTaskResponse:
    """The state of a task. Times are in milliseconds since 1970. `id` and `assigned_client` are pairs of integers."""

    __slots__ = (
        "id",
        "type",
        "status",
        "created_at_ms_epoch",
        "last_updated_at_ms_epoch",
        "assigned_client",
        "message",
    )

    def __init__(self):
        self.id, self.assigned_client, self.message = (0, 0), (0, 0), ""
        self.type, self.status = TaskType.REPLICA_COPY, TaskStatus.PENDING
        self.created_at_ms_epoch = self.last_updated_at_ms_epoch = 0


def task(native):
    """A QueryTaskResponse for a native one."""
    response = QueryTaskResponse()
    for name in QueryTaskResponse.__slots__:
        setattr(response, name, getattr(native, name))
    response.type, response.status = TaskType(native.type), TaskStatus(native.status)
    return response
