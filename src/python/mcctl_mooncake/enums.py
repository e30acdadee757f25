"""Enumerations of the store. The members are also integers. A number without a member has the name "???"."""

from enum import IntEnum


class _Enumeration(IntEnum):
    @classmethod
    def _missing_(cls, value):
        if not isinstance(value, int) or not 0 <= value <= cls._highest():
            raise TypeError(f"{value!r} is not a number of {cls.__name__}")
        member = int.__new__(cls, value)
        member._name_, member._value_ = "???", value
        return member

    @classmethod
    def _highest(cls):
        return (1 << 31) - 1

    def __str__(self):
        return f"{type(self).__name__}.{self.name}"

    __format__ = object.__format__


class ReplicaStatus(_Enumeration):
    """The state of a replica. Only COMPLETE can be read."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class _ByteEnumeration(_Enumeration):
    """An enumeration that is one byte on the wire."""

    @classmethod
    def _highest(cls):
        return 255


class ObjectDataType(_ByteEnumeration):
    """The type of an object's contents. The master counts objects and bytes by this type."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(_ByteEnumeration):
    """The effect of a put on the soft pin of an object. A soft pin protects an object from eviction while others can be
    evicted.
    """

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class TaskType(_Enumeration):
    """The type of a task."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(_Enumeration):
    """The state of a task."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3
