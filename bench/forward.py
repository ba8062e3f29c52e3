"""What does a forward through Tensors, Modules and a split cost beyond the same NumPy calls written by hand?

Times and ratios: medians of 30 interleaved rounds. The model is a stem, four blocks ``x + relu(linear(x))`` and a head,
all of one width; split means over two CPU devices. By hand means the same functions of NumPy on the same memory,
without the copies of a split. One layer alone is measured with one row, as a function of Tensors and as a Module.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine import Seed, Tensor, ops, randn
from modules import Module
from modules.nn import Linear
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement

from .answers import check_same_bits
from .report import Limit, Row, at_most
from .settings import Settings
from .timing import Timing, repeats, statement, timed

_BLOCKS: Final = 4
_READING: Final = 0.01  # seconds that a reading lasts at least
_BOUND_FROM: Final = 512  # width from which the bound on a split model holds
_SMALL: Final = 64  # width of the layer whose overhead has a bound


class Block(Module):
    """x + relu(linear(x))."""

    def __init__(self, width: int, device: Any, seed: Seed) -> None:
        self.linear = Linear(width, width, device=device, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return x + ops.relu(self.linear(x))


class Mlp(LayerParallelism):
    """A stem, blocks and a head of one width."""

    def __init__(self, width: int, placement: LayerPlacement, seed: Seed) -> None:
        self.stem = Linear(width, width, device=placement.input, seed=seed)
        self.blocks = [Block(width, device, seed) for device in placement.hidden]
        self.head = Linear(width, width, device=placement.output, seed=seed)

    def layer_input(self) -> Module:
        return self.stem

    def layers_hidden(self) -> Any:
        return self.blocks

    def layer_output(self) -> Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        """The model without a wrapper, on one device."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ByHand:
    """The same model in NumPy, over the same memory."""

    def __init__(self, model: Mlp) -> None:
        self.stem = _arrays(model.stem)
        self.blocks = [_arrays(block.linear) for block in model.blocks]
        self.head = _arrays(model.head)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        weight, bias = self.stem
        x = x @ weight
        x += bias
        for weight, bias in self.blocks:
            y = x @ weight
            y += bias
            x = x + np.maximum(y, 0)
        weight, bias = self.head
        x = x @ weight
        x += bias
        return x


def _arrays(linear: Linear) -> tuple[NDArray[Any], NDArray[Any]]:
    assert linear.bias is not None
    return linear.weight.val().numpy(), linear.bias.val().numpy()


def measure(settings: Settings) -> Iterable[Row]:
    """Whole models of three widths and two batches, then single layers."""
    widths, batches = settings.size(((64, 512, 2048), (1, 128)), ((8, 16), (1, 3)))
    settings.progress.expect(len(widths) * (len(batches) + 1))
    for width in widths:
        for rows in batches:
            yield from _model(settings, width, rows)
    for width in widths:
        yield from _layer(settings, width)


def _model(settings: Settings, width: int, rows: int) -> Iterator[Row]:
    placement = LayerPlacement.even(["cpu:0", "cpu:1"], _BLOCKS)
    split = DistributedLayeredModel(Mlp(width, placement, Seed(0)), placement)
    whole = Mlp(width, LayerPlacement.even(["cpu:0"], _BLOCKS), Seed(0)).load_record(split.into_record())
    by_hand = ByHand(split.model)
    x = randn((rows, width), seed=1, device="cpu:0")
    array = x.numpy()
    check_same_bits(f"forward, {width}", by_hand(array), whole(x).numpy(), split(x).numpy())

    repeat = repeats(timed(lambda: by_hand(array)), settings.least_seconds(_READING))
    floor, unsplit, splitted = settings.interleaved(
        timed(lambda: by_hand(array), repeat=repeat),
        timed(lambda: whole(x), repeat=repeat),
        timed(lambda: split(x), repeat=repeat, devices=placement.devices()),
        rounds=30,
    )
    bound, goal = (at_most(1.05), at_most(1.01)) if width >= _BOUND_FROM else (None, None)
    size = f"{width} wide, {'1 row' if rows == 1 else f'{rows} rows'}"
    yield Row(what=f"by hand, {size}", value=floor.spread(1e-6), unit="µs")
    yield _beside(f"one device, {size}", unsplit, floor, "by hand", None, None)
    yield _beside(f"split in two, {size}", splitted, floor, "by hand", bound, goal)


def _layer(settings: Settings, width: int) -> Iterator[Row]:
    plain = Linear(width, width, bias=False, device="cpu:0", seed=0)
    biased = Linear(width, width, device="cpu:0", seed=0)
    x = randn((1, width), seed=1, device="cpu:0")
    w, (v, b) = plain.weight.val(), _arrays(biased)
    names: dict[str, Any] = {
        "x": x, "a": x.numpy(), "w": w, "u": w.numpy(), "v": v, "b": b,
        "linear": ops.linear, "plain": plain, "biased": biased,
    }  # fmt: skip
    check_same_bits(f"forward, a layer of {width}", names["a"] @ names["u"], ops.linear(x, w).numpy(), plain(x).numpy())
    check_same_bits(f"forward, a layer of {width} with bias", names["a"] @ v + b, biased(x).numpy())

    repeat = repeats(statement("a @ u", repeat=1, **names), settings.least_seconds(_READING))
    array, tensor, module, array_bias, module_bias = settings.interleaved(
        *(
            statement(code, repeat=repeat, **names)
            for code in ("a @ u", "linear(x, w)", "plain(x)", "a @ v + b", "biased(x)")
        ),
        rounds=30,
    )
    bound, goal = (at_most(4), at_most(2.5)) if width == _SMALL else (None, None)
    size = f"{width} × {width}, 1 row"
    yield Row(what=f"NumPy's x @ w, {size}", value=array.spread(1e-6), unit="µs")
    yield _beside(f"ops.linear, {size}", tensor, array, "x @ w", None, None)
    yield _beside(f"Linear without bias, {size}", module, array, "x @ w", bound, goal)
    yield _beside(f"Linear with bias, {size}", module_bias, array_bias, "x @ w + b", bound, goal)


def _beside(what: str, timing: Timing, floor: Timing, to: str, bound: Limit | None, goal: Limit | None) -> Row:
    return Row(
        what=what,
        value=timing.spread(1e-6),
        unit="µs",
        ratio=timing.over(floor),
        to=to,
        bound=bound,
        goal=goal,
    )
