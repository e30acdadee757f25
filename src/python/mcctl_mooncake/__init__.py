"""A client of a Mooncake store, with the names of the package mooncake.

mcctl_mooncake.store replaces mooncake.store. The tensor methods need PyTorch, and the file methods need safetensors.
Neither is needed to import the package.
"""

__all__ = ["BufferPool", "RegisteredBufferPool"]


def __getattr__(name):
    if name == "__version__":
        from ._native import __version__

        return __version__
    if name in __all__:
        from .buffer_pool import BufferPool

        return BufferPool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
