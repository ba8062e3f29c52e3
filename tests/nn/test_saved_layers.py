"""Every layer there is, trained, saved, and loaded into another build: it gives the same outputs, bit for bit (L118).

The same law over generated layers, through an adapter, is in `tests/laws/test_training.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest

import modules.nn
from engine import Device, Seed, Tensor, ops, randn, tensor
from modules import Adam, Module
from modules.nn import (
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Linear,
    MaxPool2d,
    MultiHeadAttention,
    RmsNorm,
    RotaryPositions,
)
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ModuleRecord
from tests.laws.law import inside
from tests.parallel.small_models import Chain, Scale

IMAGES: Final = (2, 4, 4, 4)
WORDS: Final = (2, 3, 4)


def attention(device: Device, seed: Seed) -> Module:
    return MultiHeadAttention(4, 2, causal=True, rotary=RotaryPositions(3, 2, device=device), device=device, seed=seed)


LAYERS: Final[Mapping[type[Module], tuple[Callable[[Device, Seed], Module], tuple[int, ...]]]] = {
    BatchNorm: (lambda device, seed: BatchNorm(4, device=device), IMAGES),
    Conv2d: (lambda device, seed: Conv2d(4, 2, 3, padding=1, device=device, seed=seed), IMAGES),
    Dropout: (lambda device, seed: Dropout(0.5, seed=Seed(7)), WORDS),
    Embedding: (lambda device, seed: Embedding(5, 4, device=device, seed=seed), (3,)),
    FeedForward: (lambda device, seed: FeedForward(4, 6, device=device, seed=seed), WORDS),
    GatedFeedForward: (lambda device, seed: GatedFeedForward(4, 6, device=device, seed=seed), WORDS),
    LayerNorm: (lambda device, seed: LayerNorm(4, device=device), WORDS),
    Linear: (lambda device, seed: Linear(4, 3, device=device, seed=seed), WORDS),
    MaxPool2d: (lambda device, seed: MaxPool2d(2), IMAGES),
    MultiHeadAttention: (attention, WORDS),
    RmsNorm: (lambda device, seed: RmsNorm(4, device=device), WORDS),
    RotaryPositions: (lambda device, seed: RotaryPositions(4, 4, device=device), IMAGES),
}
"""How each is made, and the shape of its input. What dropout leaves out is a setting, so its seed is the same."""


def test_no_layer_is_left_out() -> None:
    """A new layer joins `LAYERS`."""
    found = {value for value in vars(modules.nn).values() if isinstance(value, type) and issubclass(value, Module)}

    assert found == set(LAYERS)


PLACES: Final = (
    (("cpu:0", "cpu:0", "cpu:0"), ("cpu:2", "cpu:1", "cpu:0")),
    (("cpu:0", "cpu:1", "cpu:2"), ("cpu:3", "cpu:3", "cpu:3")),
    (("cpu:1", "cpu:0", "cpu:1"), ("cpu:0", "cpu:1", "cpu:1")),
)
"""Where the three layers are in training, and where they are loaded."""


def split(kind: type[Module], places: Sequence[str], seed: int) -> DistributedLayeredModel[Chain]:
    """Such a layer between two that scale; one that takes ids comes first."""
    make, _ = LAYERS[kind]
    first, middle, last = (Device(place).autodiff() for place in places)
    is_first = kind is Embedding
    layer = make(first if is_first else middle, Seed(seed))
    stem, block = (layer, Scale(1, middle)) if is_first else (Scale(1, first), layer)
    return DistributedLayeredModel(Chain(stem, [block], Scale(1, last)), LayerPlacement(first, [middle], last))


def trained(model: Any, x: Tensor) -> Any:
    """The model after two steps."""
    optimizer = Adam(0.1)
    for _ in range(2):
        y = model(x)
        model = optimizer.step(model, ops.mean(y * y - y).backward())
    return model


def input_for(kind: type[Module]) -> Tensor:
    """On an autodiff device, so that a layer is in training."""
    shape = LAYERS[kind][1]
    if kind is Embedding:
        return tensor([0, 3, 3], device="cpu:0+autodiff")
    return randn(shape, seed=5, device="cpu:0+autodiff", dtype="float32")


@inside("L118")
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_a_layer_that_is_loaded_elsewhere_gives_the_same_outputs(kind: type[Module]) -> None:
    """In training and in validation state; into a build with other values, by another placement (R18 to R21)."""
    x = input_for(kind)
    for here, there in PLACES:
        source = trained(split(kind, here, 0), x)

        record = ModuleRecord.from_bytes(source.into_record().into_bytes())
        found = split(kind, there, 1).load_record(record)

        for one, again in ((source.clone(), found.clone()), (source.valid(), found.valid())):
            for given_x in (x, x, x.without_autodiff()):
                assert again(given_x).tobytes() == one(given_x).tobytes()
