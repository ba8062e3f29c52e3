"""Parameters with the initial values that Burn's layers have. None is made before it is read.

A parameter takes its key when it is constructed, so its values depend on the
order of construction alone.
"""

from collections.abc import Sequence
from math import sqrt

from engine import Device, Seed, Tensor, ones, randn, uniform, zeros
from engine.dtype import DType
from modules.param import Param


def kaiming_uniform(shape: Sequence[int], fan_in: int, dtype: DType, device: Device, seed: Seed) -> Param:
    """Values uniform in ±1/√fan_in, which is Burn's default: Kaiming-uniform with a gain of 1/√3.

    Source: K. He et al., "Delving deep into rectifiers" (2015), equation 10; Burn 0.23, ``Initializer``.
    """
    key, bound = seed.key(), 1 / sqrt(fan_in)

    def init(device: Device, require_grad: bool) -> Tensor:
        return uniform(shape, -bound, bound, seed=key, device=device, dtype=dtype)

    return Param.lazy(init, shape, dtype, device)


def normal(shape: Sequence[int], dtype: DType, device: Device, seed: Seed) -> Param:
    """Values of the standard normal distribution."""
    key = seed.key()
    return Param.lazy(lambda device, _: randn(shape, seed=key, device=device, dtype=dtype), shape, dtype, device)


def constant_zeros(shape: Sequence[int], dtype: DType, device: Device) -> Param:
    """Zeros."""
    return Param.lazy(lambda device, _: zeros(shape, device=device, dtype=dtype), shape, dtype, device)


def constant_ones(shape: Sequence[int], dtype: DType, device: Device) -> Param:
    """Ones."""
    return Param.lazy(lambda device, _: ones(shape, device=device, dtype=dtype), shape, dtype, device)
