"""Checks of argument types. A wrong type raises TypeError before the call has an effect, as in the real module."""

import operator

INVALID = -600
"""The error code for invalid parameters, and for a client that is not set up."""


def _refuse(name, kind, value):
    raise TypeError(f"argument '{name}' must be {kind}, not {type(value).__name__}")


def text(name, value):
    """`value` as str. Bytes are decoded as UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    _refuse(name, "str", value)


def texts(name, value):
    """A sequence of str as a list."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
        _refuse(name, "a list of str", value)
    return [text(f"{name}[{i}]", one) for i, one in enumerate(value)]


def integer(name, value, low=-(1 << 31), high=(1 << 31) - 1):
    """An integer within [low, high]. Floats are refused."""
    try:
        if isinstance(value, float):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        _refuse(name, "int", value)
    if not low <= number <= high:
        raise TypeError(f"argument '{name}' must be from {low} to {high}, not {number}")
    return number


def size(name, value):
    """A number of bytes or an address: an integer from 0 to 2**64 - 1."""
    return integer(name, value, 0, (1 << 64) - 1)


def sizes(name, value):
    """A sequence of numbers of bytes or of addresses as a list."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
        _refuse(name, "a list of int", value)
    return [size(f"{name}[{i}]", one) for i, one in enumerate(value)]


def items(name, value):
    """A list. Other sequences are refused."""
    if not isinstance(value, list):
        _refuse(name, "list", value)
    return value
