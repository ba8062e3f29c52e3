"""LoRA and QLoRA: small trainable factors beside large weights that stay as they are, perhaps quantized."""

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from math import isfinite, nan
from numbers import Integral, Real
from typing import Any, ClassVar, Final, TypeVar, final

from engine import Key, Seed, Tensor, as_dtype, dequantize, randn, zeros
from engine.dtype import FLOAT32, FLOATS, DType

from .errors import ModuleError
from .group import ParamGroup, check_group
from .param import Param
from .quantizer import Quantizer, quantized_weights
from .reparameterization import Reparameterization
from .reparameterizer import Reparameterizer
from .training_state import NO_GRAD, switched
from .tree import Node

M = TypeVar("M", bound=Node)


@final
class LoraAdapter(Reparameterization):
    """base + scale · (a @ b): the product first, then the scale, then the sum, in the dtype of the factors (A18).

    A dense base of another dtype is cast to that of the factors, a quantized one dequantized to it.

    Args:
        a: [d_in, rank].
        b: [rank, d_out].
        scale: a setting, which records do not hold.

    Source: E. J. Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models" (2021), equation 3; Burn 0.23,
    ``LoraAdapter``.
    """

    NAME: ClassVar[str] = "lora"

    a: Param
    b: Param

    def __init__(self, a: Param, b: Param, scale: float) -> None:
        self.a = a
        self.b = b
        self.scale = scale

    def apply(self, base: Tensor, /) -> Tensor:
        """The effective value of a parameter with this base, [d_in, d_out]."""
        change = self.a.val() @ self.b.val() * self.scale
        of = change.dtype  # not that of the factors, which may be quantized themselves
        return (dequantize(base, of) if base.is_quantized else base.cast(of)) + change


@final
@dataclass(frozen=True, eq=False)
class Lora(Reparameterizer):
    """Settings of LoRA: every parameter of floats is frozen, and matrices get a `LoraAdapter` that trains (A14, A15).

    The factor a of [d_in, rank] is normal with mean 0, b of [rank, d_out]
    zero, so that nothing changes at first. Both have fresh ids and are on the
    parameter's device (A16). The numbers of a go by the seed and the path
    alone: the same settings give a path the same ones.

    Args:
        rank: 1 or more.
        alpha: the adapter's scale is alpha / rank.
        init_std: standard deviation of a; None for 1 / rank.
        dtype: of the factors; None for the parameter's own, and float32 where that is quantized (A17).
        param_group: whose matrices get an adapter, by path and id; None for all.
        seed: of the initial values.

    Raises:
        ModuleError: `rank` is below 1, a number is not finite, `init_std` is negative, or `dtype` no float dtype.
        DTypeError: there is no such dtype.

    Source: Burn 0.23, ``LoraConfig``.
    """

    rank: int
    alpha: float
    init_std: float | None = None
    dtype: Any = None
    param_group: ParamGroup | None = None
    seed: int | Seed | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, Integral) or self.rank < 1:
            raise ModuleError(f"Lora: rank is {self.rank!r}; it must be an integer of 1 or more")
        object.__setattr__(self, "rank", int(self.rank))
        object.__setattr__(self, "alpha", _number("alpha", self.alpha))
        if self.init_std is not None:
            object.__setattr__(self, "init_std", _number("init_std", self.init_std))
            if self.init_std < 0:
                raise ModuleError(f"Lora: init_std is {self.init_std}; a standard deviation is 0 or more")
        if self.dtype is not None:
            of = as_dtype(self.dtype)
            if of not in FLOATS:
                raise ModuleError(f"Lora: dtype is {of}; factors are floats: {', '.join(sorted(map(str, FLOATS)))}")
            object.__setattr__(self, "dtype", of)
        if self.param_group is not None:
            check_group("Lora", self.param_group)
        object.__setattr__(self, "_key", Seed.of(self.seed).key())

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LoraAdapter | None]:
        """The parameter frozen, and an adapter if it is a matrix that the group has; only such a one is made (A24)."""
        frozen = param.set_require_grad(False)
        if not self._has(path, param) or len(param.shape) != 2:
            return frozen, None
        return frozen, self._adapter(path, frozen.base())

    def _answers_by(self, path: str, param: Param) -> Hashable:
        return self._has(path, param)

    def _prepared(self, module: M) -> M:
        return switched(module, NO_GRAD)  # at once, so that a base stays tied where one of its places gets an adapter

    def _has(self, path: str, param: Param) -> bool:
        return self.param_group is None or self.param_group.matches(param.id, path)

    def _adapter(self, path: str, base: Tensor) -> LoraAdapter:
        d_in, d_out = base.shape
        key: Key = self._key  # pyright: ignore[reportAttributeAccessIssue] set when it is made, and no setting
        std = 1 / self.rank if self.init_std is None else self.init_std
        of = self._dtype_for(base)
        a = randn((d_in, self.rank), seed=key.at(_number_of(path)), device=base.device) * std
        b = zeros((self.rank, d_out), device=base.device, dtype=FLOAT32)
        return LoraAdapter(Param(a.cast(of)), Param(b.cast(of)), self.alpha / self.rank)

    def _dtype_for(self, base: Tensor) -> DType:
        if self.dtype is not None:
            return self.dtype
        return FLOAT32 if base.is_quantized else base.dtype


@final
@dataclass(frozen=True, eq=False)
class QLora(Reparameterizer):
    """LoRA over weights that are quantized first, each by the group of its own settings (A39, A40).

    Args:
        lora: which matrices get adapters.
        quantizer: which parameters of floats are quantized, and how.

    Raises:
        TypeError: they are none of these.

    Source: T. Dettmers and others, "QLoRA: Efficient Finetuning of Quantized LLMs" (2023); Burn 0.23, ``QLoraConfig``.
    """

    lora: Lora
    quantizer: Quantizer

    def __post_init__(self) -> None:
        if not isinstance(self.lora, Lora) or not isinstance(self.quantizer, Quantizer):
            raise TypeError(f"QLora takes a Lora and a Quantizer, not {self.lora!r:.40} and {self.quantizer!r:.40}")

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LoraAdapter | None]:
        """The parameter quantized if the quantizer's group has it, then as LoRA gives it.

        Raises:
            ShapeError: the quantizer's blocks do not divide it.
            QuantizationError: it has NaN or infinities.
        """
        concerns = self.quantizer.concerns(path, param)
        return self.lora.reparameterize(path, self.quantizer.quantized(param) if concerns else param)

    def _answers_by(self, path: str, param: Param) -> Hashable:
        return self.quantizer.concerns(path, param), self.lora._answers_by(path, param)

    def _prepared(self, module: M) -> M:
        return self.lora._prepared(quantized_weights(module, self.quantizer))


def _number(name: str, value: Any) -> float:
    """A finite number as Python's own.

    Raises:
        ModuleError: it is none.
    """
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:  # of an integer, perhaps of more digits than Python writes
        raise ModuleError(f"Lora: {name} is beyond every float; it must be a finite number") from None
    if not isfinite(found):
        raise ModuleError(f"Lora: {name} is {value!r}; it must be a finite number")
    return found


_PATH_BYTES: Final = 8


def _number_of(path: str) -> int:
    """A number from 0 to 2⁶⁴ − 1 that goes by a path alone."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=_PATH_BYTES).digest(), "little")
