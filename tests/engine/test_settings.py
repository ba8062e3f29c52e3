"""A setting of a wrong type is refused by name: the operation's and the setting's."""

from collections.abc import Callable
from typing import Any

import pytest

from engine import Buffer, arange, ops, rotary_tables, tensor, uniform, zeros

CPU = "cpu:0"
X = tensor([[1.0, 2.0], [3.0, 4.0]], device=CPU)
ROW = tensor([1.0, 2.0], device=CPU)
IDS = tensor([[0, 1], [1, 0]], device=CPU)
IMAGE, KERNEL = zeros((1, 1, 4, 4), device=CPU), zeros((1, 1, 2, 2), device=CPU)
TABLE = zeros((4, 1), device=CPU)

REDUCTIONS = ("sum", "prod", "mean", "var", "max", "min", "argmax", "argmin")
ALONG = (*REDUCTIONS, "softmax", "log_softmax", "logsumexp", "cumsum")
WRONG: list[tuple[str, str, Callable[[], Any]]] = [
    *(
        (name, "axis", lambda name=name, axis=axis: getattr(ops, name)(X, axis))
        for name in ALONG
        for axis in ([0], 1.0)
    ),
    *((name, "keepdims", lambda name=name: getattr(ops, name)(X, 0, keepdims="no")) for name in REDUCTIONS[:6]),
    *(
        ("conv2d", what, lambda what=what, value=value: ops.conv2d(IMAGE, KERNEL, **{what: value}))
        for what in ("stride", "padding", "dilation", "groups")
        for value in (1.5, "a", None)
    ),
    ("conv2d", "stride", lambda: ops.conv2d(IMAGE, KERNEL, stride=(1, 1.5))),  # pyright: ignore[reportArgumentType]
    ("max_pool2d", "kernel_size", lambda: ops.max_pool2d(IMAGE, 1.5)),  # pyright: ignore[reportArgumentType]
    ("max_pool2d", "padding", lambda: ops.max_pool2d(IMAGE, 2, padding="a")),  # pyright: ignore[reportArgumentType]
    ("take", "axis", lambda: ops.take(X, IDS, 1.0)),  # pyright: ignore[reportArgumentType]
    ("gather", "axis", lambda: ops.gather(X, IDS, None)),  # pyright: ignore[reportArgumentType]
    ("concatenate", "axis", lambda: ops.concatenate([X, X], None)),  # pyright: ignore[reportArgumentType]
    ("concatenate", "axis", lambda: ops.concatenate([X, X], 1.0)),  # pyright: ignore[reportArgumentType]
    ("stack", "axis", lambda: ops.stack([X, X], "a")),  # pyright: ignore[reportArgumentType]
    ("stack", "operand", lambda: ops.stack(3, 0)),  # pyright: ignore[reportArgumentType]
    ("split", "axis", lambda: ops.split(X, [1, 1], 0.0)),  # pyright: ignore[reportArgumentType]
    ("split", "sizes", lambda: ops.split(X, 2, 0)),  # pyright: ignore[reportArgumentType]
    ("split", "sizes", lambda: ops.split(X, [1.0, 1.0], 0)),  # pyright: ignore[reportArgumentType]
    ("reshape", "shape", lambda: X.reshape(2.0, 2)),  # pyright: ignore[reportArgumentType]
    ("reshape", "shape", lambda: X.reshape("ab")),  # pyright: ignore[reportArgumentType]
    ("transpose", "axes", lambda: X.transpose(0, 1.0)),  # pyright: ignore[reportArgumentType]
    ("swap_axes", "second", lambda: ops.swap_axes(X, 0, 1.0)),  # pyright: ignore[reportArgumentType]
    ("broadcast_to", "shape", lambda: ops.broadcast_to(X, 3)),  # pyright: ignore[reportArgumentType]
    ("broadcast_to", "shape", lambda: ops.broadcast_to(X, (2.0, 2))),  # pyright: ignore[reportArgumentType]
    ("tril", "diagonal", lambda: ops.tril(X, 1.5)),  # pyright: ignore[reportArgumentType]
    ("layer_norm", "epsilon", lambda: ops.layer_norm(X, ROW, epsilon="a")),  # pyright: ignore[reportArgumentType]
    ("rms_norm", "epsilon", lambda: ops.rms_norm(X, ROW, epsilon=X)),  # pyright: ignore[reportArgumentType]
    ("attention", "scale", lambda: ops.attention(IMAGE, IMAGE, IMAGE, scale="a")),  # pyright: ignore[reportArgumentType]
    ("rope", "offset", lambda: ops.rope(X, TABLE, TABLE, offset=1.0)),  # pyright: ignore[reportArgumentType]
    ("rope", "offset", lambda: ops.rope(X, TABLE, TABLE, offset="a")),  # pyright: ignore[reportArgumentType]
    ("rotary_tables", "base", lambda: rotary_tables(2, 2, base="a", device=CPU)),  # pyright: ignore[reportArgumentType]
    ("uniform", "high", lambda: uniform((2,), 0, "a", seed=0, device=CPU)),  # pyright: ignore[reportArgumentType]
    ("arange", "stop", lambda: arange("a", device=CPU)),  # pyright: ignore[reportArgumentType]
    ("arange", "step", lambda: arange(0, 2, [1], device=CPU)),  # pyright: ignore[reportArgumentType]
    ("Buffer", "axis", lambda: Buffer("a")),  # pyright: ignore[reportArgumentType]
    ("Buffer", "axis", lambda: Buffer(1.0)),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("name", "setting", "call"), WRONG, ids=[f"{name} {what}" for name, what, _ in WRONG])
def test_a_setting_of_a_wrong_type_is_a_type_error_that_names_it(name, setting, call):
    with pytest.raises(TypeError, match=rf"^{name}: (.* )?{setting}\b"):
        call()


@pytest.mark.parametrize("base", [0, 0.0, -1, float("-inf"), float("inf"), float("nan"), 10**400])
def test_the_base_of_rotary_frequencies_is_finite_and_above_0(base):
    with pytest.raises(ValueError, match="rotary_tables: base is"):
        rotary_tables(2, 4, base=base, device=CPU)
