"""What optimizers compute: a parameter's step as one operation, and the squares that a norm of gradients is made of.

A step is arithmetic over arrays that are all as large as the parameter, a
dozen operations long. Here it is done part by part, in parts that a CPU's
cache holds, so that each array is read and written once. The operands are
read in the order in which the value lies in memory, and results lie so too.
Values of float16 and bfloat16 are computed in float32 and rounded once; what
is kept between steps is float32 for them: a second moment that moves by a
thousandth per step would stand still in a shorter dtype. Steps have no
gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from . import ops
from .backend import Array
from .device import Device
from .dtype import FLOAT32, FLOAT64, FLOATS, DType
from .errors import DTypeError, ShapeError
from .primitive import Primitive, checked_operand, quiet, widened
from .tensor import Tensor

_PART: Final = 32_768  # elements; seven arrays of float32 are 0.9 MiB

_Rule: TypeAlias = Callable[[Any, Array, Array, Sequence[Array], Array, Sequence[Array], Array], None]
"""``rule(xp, value, gradient, kept, new_value, new_kept, spare)`` fills the new arrays; it may write to `spare`."""


def state_dtype(dtype: DType) -> DType:
    """The dtype of what an optimizer keeps for a parameter of this dtype: float64 for float64, else float32."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def sgd_update(
    value: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    *,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """A step of stochastic gradient descent: the new value, and the new velocity where there is one.

    With g the gradient plus `weight_decay` · value, v ← `momentum` · v + g, and value ← value − `lr` · v; with
    Nesterov's momentum value ← value − `lr` · (g + `momentum` · v).

    Args:
        value: floats.
        gradient: of the shape and dtype of `value`.
        velocity: v, of the shape of `value` and its `state_dtype`; zeros at the first step; None without momentum.

    Raises:
        ShapeError: the shapes differ.
        DTypeError: the dtypes do not go together.
        DeviceMismatchError: the tensors lie on different devices.

    Source: ``torch.optim.SGD``, without dampening.
    """

    def rule(
        xp: Any, p: Array, g: Array, kept: Sequence[Array], new_p: Array, new_kept: Sequence[Array], spare: Array
    ) -> None:
        if weight_decay:
            xp.multiply(p, weight_decay, out=spare)
            spare += g
            g = spare
        for v, new_v in zip(kept, new_kept, strict=True):
            xp.multiply(v, momentum, out=new_v)
            new_v += g
            if nesterov:
                xp.multiply(new_v, momentum, out=new_p)
                new_p += g
                g = new_p
            else:
                g = new_v
        xp.multiply(g, lr, out=spare)
        xp.subtract(p, spare, out=new_p)

    new_value, *new_kept = _updated("sgd", rule, value, gradient, *(() if velocity is None else (velocity,)))
    return new_value, new_kept[0] if new_kept else None


def adam_update(
    value: Tensor,
    gradient: Tensor,
    moment_1: Tensor,
    moment_2: Tensor,
    *,
    time: int,
    lr: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam: the new value, first moment m and second moment v.

    m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²; the value goes by −`lr` · m̂ / (√v̂ + `epsilon`), where
    m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).

    Args:
        value: floats.
        gradient: of the shape and dtype of `value`.
        moment_1, moment_2: of the shape of `value` and its `state_dtype`; zeros at the first step.
        time: t, how many steps this makes; 1 or more.
        weight_decay: times the value; added to g, or, if `decoupled`, times `lr` and taken off the value.

    Raises:
        ShapeError: the shapes differ.
        DTypeError: the dtypes do not go together.
        DeviceMismatchError: the tensors lie on different devices.

    Source: D. Kingma, J. Ba, "Adam" (2015), algorithm 1; I. Loshchilov, F. Hutter, "Decoupled weight decay
    regularization" (2019), algorithm 2; with the rounding of ``torch.optim``.
    """
    beta_1, beta_2 = betas
    rate = lr / (1 - beta_1**time)
    root = math.sqrt(1 - beta_2**time)
    added, kept_share = (0.0, 1 - lr * weight_decay) if decoupled else (weight_decay, 1.0)

    def rule(
        xp: Any, p: Array, g: Array, kept: Sequence[Array], new_p: Array, new_kept: Sequence[Array], spare: Array
    ) -> None:
        (m, v), (new_m, new_v) = kept, new_kept
        if added:
            xp.multiply(p, added, out=new_p)
            new_p += g
            g = new_p
        xp.multiply(m, beta_1, out=new_m)
        xp.multiply(g, 1 - beta_1, out=spare)
        new_m += spare
        xp.multiply(v, beta_2, out=new_v)
        xp.multiply(g, g, out=spare)
        spare *= 1 - beta_2
        new_v += spare
        xp.sqrt(new_v, out=spare)
        spare /= root
        spare += epsilon
        xp.divide(new_m, spare, out=spare)
        spare *= rate
        if kept_share != 1:
            xp.multiply(p, kept_share, out=new_p)
            p = new_p
        xp.subtract(p, spare, out=new_p)

    new_value, new_1, new_2 = _updated("adam", rule, value, gradient, moment_1, moment_2)
    return new_value, new_1, new_2


def _step_array(xp: Any, value: Array, *others: Array, rule: _Rule, made: list[Array]) -> Array:
    """The new value; the new arrays of what is kept are added to `made`. Arrays are dense and of one shape."""
    of = state_dtype(value.dtype)
    axes = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])  # of memory, slowest first
    p, g, *kept = (xp.ascontiguousarray(array.transpose(axes)).reshape(-1) for array in (value, *others))
    new_p = xp.empty(p.size, value.dtype)
    new_kept = [xp.empty(p.size, of) for _ in kept]
    part = min(_PART if xp is np else p.size, p.size) or 1  # a GPU wants few large kernels
    spare = xp.empty(part, of)
    wide = spare if value.dtype == of else xp.empty(part, of)
    with quiet():  # an infinite gradient may meet another one
        for start in range(0, p.size, part):
            here = slice(start, min(start + part, p.size))
            count = here.stop - start
            target = new_p[here] if value.dtype == of else wide[:count]
            olds, news = [array[here] for array in kept], [array[here] for array in new_kept]
            rule(xp, widened(p[here]), widened(g[here]), olds, target, news, spare[:count])
            if value.dtype != of:
                new_p[here] = target
    shape = [value.shape[axis] for axis in axes]
    back = sorted(range(value.ndim), key=axes.__getitem__)
    made += [array.reshape(shape).transpose(back) for array in new_kept]
    return new_p.reshape(shape).transpose(back)


_STEPS: Final = {name: Primitive(name, _step_array, takes=FLOATS, mixed=True) for name in ("sgd", "adam")}


def _updated(name: str, rule: _Rule, value: Tensor, gradient: Tensor, *kept: Tensor) -> list[Tensor]:
    """The new value and the new tensors of what is kept, on the device of `value` and without autodiff."""
    given = checked_operand(name, value)._data
    for what, operand in (("gradient", gradient), *(("state", state) for state in kept)):
        data = checked_operand(name, operand)._data
        wanted = given.dtype if what == "gradient" else state_dtype(given.dtype)
        if data.shape != given.shape:
            raise ShapeError(f"{name}: the {what} has shape {data.shape}, the parameter {given.shape}")
        if data.dtype != wanted:
            raise DTypeError(f"{name}: the {what} is {data.dtype}; beside a parameter of {given.dtype} it is {wanted}")
    made: list[Array] = []
    new_value = _STEPS[name](
        *(operand.without_autodiff() for operand in (value, gradient, *kept)), rule=rule, made=made
    )
    device = value.device.inner()
    if device.kind == "cpu":
        return [new_value, *(Tensor._make(array, device) for array in made)]
    with device:
        return [new_value, *(Tensor._make(array, device) for array in made)]


def _squares_array(xp: Any, x: Array) -> Array:
    axes = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    flat = xp.ascontiguousarray(x.transpose(axes)).reshape(-1)
    part = min(_PART if xp is np else flat.size, flat.size) or 1
    sums = []
    with quiet():
        for start in range(0, flat.size, part):
            wide = flat[start : start + part].astype(FLOAT64)
            wide *= wide
            sums.append(wide.sum())
    return xp.stack(sums).sum() if sums else xp.zeros((), FLOAT64)


_SQUARES: Final = Primitive("sum_of_squares", _squares_array, takes=FLOATS, mixed=True)


def sums_of_squares(tensors: Sequence[Tensor]) -> list[float]:
    """The sum of the squares of each tensor's elements, worked out in float64 where the tensor lies.

    A sum depends on the tensor's elements and on how they lie in memory, not
    on its device. Each device is waited for once.

    Raises:
        DTypeError: one is of no floats.
    """
    waiting: dict[Device, list[int]] = {}
    sums: list[Tensor] = []
    for place, one in enumerate(tensors):
        sums.append(_SQUARES(one.without_autodiff()))
        waiting.setdefault(one.device, []).append(place)
    found = [0.0] * len(sums)
    for places in waiting.values():
        joined = np.frombuffer(ops.stack([sums[place] for place in places], axis=0).tobytes(), np.dtype("<f8"))
        for place, value in zip(places, joined.tolist(), strict=True):
            found[place] = value
    return found
