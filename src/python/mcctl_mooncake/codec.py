"""Conversion between PyTorch tensors and stored tensors. PyTorch is imported by the first call that needs it."""

import ctypes
import logging
import math
from typing import NamedTuple

from . import layout

log = logging.getLogger("mcctl_mooncake")


class Part(NamedTuple):
    """A tensor ready to be stored: its header, and its elements in memory. `tensor` keeps the memory alive."""

    header: bytes
    tensor: object
    address: int
    size: int

    @property
    def parts(self):
        return [self.header, memory(self.address, self.size)] if self.size else [self.header]


def memory(address, size):
    """A writable view of `size` bytes of this process at `address`. The caller keeps the memory alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def object_at(address, size):
    """The stored tensor at `address` as a memoryview, or None if the memory has none of exactly `size` bytes."""
    if address == 0 or size == 0:
        return None
    data = memory(address, size)
    return data if layout.parse(data) is not None else None


def dtype_index(tensor):
    """The stored number of a tensor's data type, or None if the type is not supported."""
    name = str(tensor.dtype).removeprefix("torch.")
    return layout.DTYPES.index(name) if name in layout.DTYPES else None


def prepare(tensor, shape=None, axes=None):
    """A Part for a PyTorch tensor, or None if it cannot be stored: not a dense tensor, more than 8 dimensions, an
    unsupported data type. The elements of a contiguous CPU tensor are used where they are; other tensors are copied.
    `axes` are the stored axes and `shape` the global shape of a shard.
    """
    import torch

    try:
        if not isinstance(tensor, torch.Tensor):
            log.error("the value is not a PyTorch tensor: %s", type(tensor).__name__)
            return None
        dtype = dtype_index(tensor)
        if dtype is None or tensor.dim() > layout.MAX_DIMENSIONS:
            log.error("cannot store a tensor of type %s with %d dimensions", tensor.dtype, tensor.dim())
            return None
        tensor = tensor.detach().contiguous()
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
        local = tuple(tensor.shape)
        size = tensor.numel() * tensor.element_size()
        return Part(
            layout.pack(dtype, local if shape is None else shape, local, axes or ()), tensor, tensor.data_ptr(), size
        )
    except Exception as error:
        log.error("cannot store the tensor: %s", error)
        return None


def decode(data, length=None):
    """A tensor over the memory of `data`, a stored tensor, or None if `data` is not one. A tensor without dimensions
    is returned with the shape (1,), as by the real module.
    """
    header = layout.parse(data, length)
    try:
        return None if header is None else tensor_of(header, data)
    except (RuntimeError, OverflowError) as error:
        log.error("cannot read the tensor: %s", error)
        return None


def tensor_of(header, data):
    """The tensor with the header `header` over the memory of `data`, which starts with the header."""
    import torch

    dtype = getattr(torch, layout.DTYPES[header.dtype])
    shape = header.local or (1,)
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=layout.HEADER_BYTES).reshape(shape)
