"""Which weights dropout keeps: the function of (seed, row, key) that ``kernels/cpu/dropout.inl`` has, bit for bit."""

import triton
import triton.language as tl


@triton.jit
def splitmix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def factors(Drop, rescale, rows, cols):
    """What weights of these rows (m, 1) and keys (1, n) are multiplied by: 0 or ``rescale``. Drop: the seed, and below
    which number of 32 bits a key is dropped."""
    seed = tl.load(Drop).to(tl.uint64)
    least = tl.load(Drop + 1).to(tl.uint32)
    key = splitmix(seed + (rows + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    first = (key & 0xFFFFFFFF).to(tl.uint32)
    second = (key >> 32).to(tl.uint32)
    bits = mixed(mixed(cols.to(tl.uint32) ^ first) ^ second)
    return tl.where(bits >= least, rescale, 0.0)
