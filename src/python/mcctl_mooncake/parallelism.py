"""Descriptions of how a tensor is distributed over ranks, and the keys of its shards."""

import copy

from . import layout
from .layout import Axis

KINDS = ("dp", "tp", "ep", "pp")
MODES = ("AS_STORED", "SHARD", "FULL")
DP, TP, EP, PP = range(4)


def _optional(kind):
    return (kind, type(None))


class _Record:
    """A class whose fields have fixed names and types. Another type raises TypeError, another name AttributeError."""

    __slots__ = ()
    _types: dict = {}

    def __setattr__(self, name, value):
        types = self._types.get(name)
        if types is not None and not (isinstance(value, types) and (types is not int or -(1 << 31) <= value < 1 << 31)):
            raise TypeError(f"{type(self).__name__}.{name} does not accept {type(value).__name__}")
        super().__setattr__(name, value)


class ParallelAxis(_Record):
    """One axis of parallelism.

    kind: "tp", "dp", "ep" or "pp", in any case. rank: this rank, from 0. size: number of ranks. split_dim: the
    dimension that "tp" splits. expert_id: required for "ep". stage_id: required for "pp".
    """

    __slots__ = ("kind", "rank", "size", "split_dim", "expert_id", "stage_id")
    _types = {"kind": str, "rank": int, "size": int} | dict.fromkeys(
        ("split_dim", "expert_id", "stage_id"), _optional(int)
    )

    def __init__(self):
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim = self.expert_id = self.stage_id = None


class TensorParallelism:
    """The axes of parallelism of a tensor, at most 4 and each kind at most once.

    `axes` returns a new list of copies. To change the axes, assign a list.
    """

    __slots__ = ("_axes",)

    def __init__(self):
        self._axes = []

    @property
    def axes(self):
        return [copy.copy(axis) for axis in self._axes]

    @axes.setter
    def axes(self, axes):
        if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, ParallelAxis) for axis in axes):
            raise TypeError("TensorParallelism.axes must be a list of ParallelAxis")
        self._axes = [copy.copy(axis) for axis in axes]


class ReadTarget(_Record):
    """The part of a tensor that a read returns.

    mode: "as_stored" (the object as it is), "shard" (the shard of `parallelism`) or "full" (the tensor of all
    shards), in any case. parallelism: a TensorParallelism or None.
    """

    __slots__ = ("mode", "parallelism")
    _types = {"mode": str, "parallelism": _optional(TensorParallelism)}

    def __init__(self):
        self.mode, self.parallelism = "as_stored", None

    def __setattr__(self, name, value):
        if name == "mode" and isinstance(value, str) and value.upper() not in MODES:
            raise RuntimeError(f"the mode of a ReadTarget must be as_stored, shard or full, not {value}")
        super().__setattr__(name, value.lower() if name == "mode" and isinstance(value, str) else value)


def axes_of(parallelism):
    """The stored axes of a TensorParallelism, or None if it is not valid. Any object with the same attributes is
    accepted.
    """
    if not hasattr(parallelism, "axes"):
        return None
    axes = []
    for axis in list(parallelism.axes):
        kind = str(getattr(axis, "kind", "")).lower()
        rank, size = getattr(axis, "rank", None), getattr(axis, "size", None)
        if kind not in KINDS or rank is None or size is None or size <= 0 or not 0 <= rank < size:
            return None
        kind = KINDS.index(kind)
        if (axis.split_dim is not None) != (kind == TP):
            return None
        if (kind == EP and axis.expert_id is None) or (kind == PP and axis.stage_id is None):
            return None
        identifier = axis.expert_id if kind == EP else axis.stage_id if kind == PP else None
        axes.append((Axis(kind, rank, size, -1 if axis.split_dim is None else axis.split_dim, identifier or 0), axis))
    kinds = [axis.kind for axis, _ in axes]
    if not axes or len(axes) > layout.MAX_AXES or len(set(kinds)) != len(kinds):
        return None
    return Parallelism([axis for axis, _ in axes], [(given.expert_id, given.stage_id) for _, given in axes])


class Parallelism:
    """Checked axes in the order of the request, and the expert and stage ids that are part of the key."""

    def __init__(self, axes, identifiers):
        self.axes, self.identifiers = axes, identifiers

    @property
    def tp(self):
        """The index of the tensor-parallel axis, or None."""
        return next((i for i, axis in enumerate(self.axes) if axis.kind == TP), None)

    @property
    def only_tp(self):
        return len(self.axes) == 1 and self.axes[0].kind == TP

    def with_tp(self, rank, size=None):
        """The same axes for another rank of the tensor-parallel axis."""
        axes = list(self.axes)
        axis = axes[self.tp]
        axes[self.tp] = axis._replace(rank=rank, size=size or axis.size)
        return Parallelism(axes, self.identifiers)

    def key(self, base):
        """The key of the shard. The order of the axes in the key is fixed: dp, tp, ep, pp."""
        if self.only_tp:
            return tp_key(base, self.axes[0].rank)
        for axis, (expert, stage) in sorted(zip(self.axes, self.identifiers), key=lambda pair: pair[0].kind):
            base += f"__{KINDS[axis.kind]}_{axis.rank}of{axis.size}"
            base += f"_sd{axis.split_dim}" if axis.split_dim >= 0 or axis.kind == TP else ""
            base += f"_eid{expert}" if expert is not None else ""
            base += f"_sid{stage}" if stage is not None else ""
        return base

    def stored(self, local):
        """The axes of the header of a shard with the local shape `local`, or None if a split dimension does not
        exist.
        """
        axes = []
        for axis in self.axes:
            if axis.kind == TP:
                if not 0 <= axis.split_dim < len(local):
                    return None
                axis = axis._replace(extent=local[axis.split_dim])
            axes.append(axis)
        return axes

    def matches(self, header, any_tp_rank=False):
        """Whether a stored shard has these axes. With `any_tp_rank`, its tensor-parallel rank and size may differ."""
        stored = {axis.kind: axis for axis in header.axes}
        if header.kind != layout.SHARD or len(stored) != len(self.axes):
            return False
        for axis, (expert, stage) in zip(self.axes, self.identifiers):
            other = stored.get(axis.kind)
            if other is None or other.split_dim != axis.split_dim or other.identifier != axis.identifier:
                return False
            # Only ep axes store an expert id, and only pp axes a stage id.
            if (expert is not None and axis.kind != EP) or (stage is not None and axis.kind != PP):
                return False
            if (other.rank, other.size) != (axis.rank, axis.size) and not (any_tp_rank and axis.kind == TP):
                return False
        return True


def tp_key(base, rank):
    """The key of a shard that is split along one tensor-parallel axis."""
    return f"{base}_tp_{rank}"


def writer_key(base, rank, size, split_dim):
    """The key of the shard of a writer partition."""
    return f"{base}__writer_{rank}of{size}_sd{split_dim}"


def writer_manifest_key(base):
    return base + "__writer_manifest"


def parallelism_manifest_key(base):
    return base + "__parallelism_manifest"


def writer_partition(value):
    """(rank, size, split_dim) of a writer partition, any object with these attributes, or None if it is not valid."""
    if not all(hasattr(value, name) for name in ("rank", "size", "split_dim")):
        return None
    rank, size, split_dim = value.rank, value.size, value.split_dim
    if size <= 0 or not 0 <= rank < size or split_dim < 0:
        return None
    return rank, size, split_dim


def shard_range(extent, rank, shards):
    """(start, extent) of a shard of a dimension, or None if the dimension does not divide into equal shards."""
    if shards <= 0 or not 0 <= rank < shards or extent % shards:
        return None
    return extent // shards * rank, extent // shards
