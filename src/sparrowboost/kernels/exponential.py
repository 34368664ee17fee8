"""The exponential function, spelled out so that the compiler vectorizes loops that call it."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper


@helper
def exp32(x):
    """exp(x) of a float32 from -87 to 88, to about 1e-7.

    exp(x) = 2**n * exp(r) with |r| <= ln(2) / 2, and exp(r) by its series.
    """
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power


@helper
def rounded(x):
    """X to 16 bits: its product with an integer up to 256 is then an exact float32."""
    long = x * np.float32(257.0)  # 2**8 + 1: what follows drops 8 of 24 bits
    return long - (long - x)
