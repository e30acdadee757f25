"""Reproducible bytes: word i of an object is splitmix64(seed + i), little-endian. tests/it/peer/payload.rs computes the same in
Rust."""
import numpy as np


def payload(seed, size):
    """`size` bytes of the object `seed`."""
    with np.errstate(over="ignore"):
        z = (np.arange((size + 7) // 8, dtype=np.uint64) + np.uint64(seed) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.astype("<u8").tobytes()[:size]
