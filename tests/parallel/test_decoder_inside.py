"""Laws of decoding over the decoder that people run: grouped-query attention, rotary positions and caches.

The same laws over generated layers, through an adapter, are in `tests/laws/test_decoding.py`.
"""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine import Device, Seed, Tensor, ops, tensor, transfer
from examples.models.llama import Llama, LlamaConfig
from modules import ModuleError
from modules.parallel import DistributedLayeredModel, LayerPlacement, PlacementError
from tests.laws.law import inside
from tests.parallel.strategies import POOL, placements, split_placements

HOME = POOL[0]
TOKENS = 11
MOST_POSITIONS = 8

CLOSE = 2.0**-18
"""What decoded logits in float32 may differ by from those of one forward, as a part of the largest logit: 64 roundings.

Up to six blocks round a few dozen times each, mostly in opposite directions; the norms keep differences as large as
they are. The largest difference of 500 draws was three roundings.
"""


@dataclass(frozen=True)
class Sequence:
    """A small decoder by a placement, and a batch of token ids with the lengths of the pieces that it is run in."""

    placement: LayerPlacement
    is_tied: bool
    ids: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    def model(self, placement: LayerPlacement) -> Llama:
        config = LlamaConfig(
            n_tokens=TOKENS,
            d_model=8,
            n_layers=len(placement.hidden),
            n_heads=4,
            n_kv_heads=2,
            d_k=4,
            d_ff=12,
            max_positions=MOST_POSITIONS,
            epsilon=1e-5,
            theta=100.0,
            is_tied=self.is_tied,
        )
        return Llama(config, placement, seed=Seed(3))

    def split(self) -> DistributedLayeredModel[Llama]:
        return DistributedLayeredModel(self.model(self.placement), self.placement)

    def alone(self) -> Llama:
        """The same layers on one device."""
        return self.model(LayerPlacement(HOME, [HOME] * len(self.placement.hidden), HOME))

    def whole(self, device: Device = HOME) -> Tensor:
        return tensor([list(row) for row in self.ids], device=device, dtype="int64").reshape(len(self.ids), -1)

    def pieces(self, device: Device = HOME) -> list[Tensor]:
        ends = np.cumsum((0, *self.lengths)).tolist()
        return [self.whole(device)[:, start:stop] for start, stop in pairwise(ends)]


@st.composite
def sequences(draw: st.DrawFn, placed: Any = None) -> Sequence:
    """One or two sequences of up to eight tokens, in any pieces; shrinks to two tokens, one by one."""
    is_tied = draw(st.booleans())
    placement = draw(placements() if placed is None else placed)
    if is_tied:
        placement = dataclasses.replace(placement, output=placement.input)
    number = draw(st.sampled_from((2, 3, 4, 5, 6, 7, 8, 1)))
    row = st.lists(st.integers(0, TOKENS - 1), min_size=number, max_size=number).map(tuple)
    ids = draw(st.lists(row, min_size=1, max_size=2))
    cuts = sorted(draw(st.lists(st.integers(0, number), max_size=4)) or [number - 1])
    lengths = tuple(stop - start for start, stop in pairwise([0, *cuts, number]))
    return Sequence(placement, is_tied, tuple(ids), lengths)


def composed(model: Llama, ids: Tensor, caches: Any = None) -> Tensor:
    """The plain composition of the layers, with caches if there are some."""
    x = model.embedding(ids)
    for number, block in enumerate(model.blocks):
        x = block.forward_autoregressive_inference(x, caches[number]) if caches else block(x)
    return model.head(x)


def hidden_changes(placement: LayerPlacement, here: Device) -> int:
    return sum(one != other for one, other in pairwise((here, placement.input, *placement.hidden, placement.output)))


@inside("L92")
@given(case=sequences(), here=st.sampled_from(POOL))
def test_a_split_decoder_gives_the_bits_of_the_unsplit_one(case: Sequence, here: Device) -> None:
    """For every placement, with a head of its own and with the embedding's (P40, P41)."""
    event(f"devices: {len(case.placement.devices())}")
    expected = composed(case.alone(), case.whole())

    found = case.split()(case.whole(here))

    assert found.tobytes() == expected.tobytes()
    assert found.device == case.placement.output


@inside("L114")
@given(case=sequences())
def test_decoding_in_any_pieces_gives_the_logits_of_one_forward(case: Sequence) -> None:
    """As `CLOSE` says, for pieces of no tokens too (P70)."""
    split = case.split()
    whole = split(case.whole())
    cache = split.new_autoregressive_cache()
    event(f"pieces: {len(case.lengths)}; some empty: {0 in case.lengths}")

    outputs = [split.forward_autoregressive_inference(piece, cache) for piece in case.pieces()]

    found, expected = (one.to_device(HOME).numpy() for one in (ops.concatenate(outputs, 1), whole))
    assert found.shape == expected.shape == (len(case.ids), sum(case.lengths), TOKENS)
    assert np.abs(found - expected).max() <= CLOSE * np.abs(expected).max()
    assert {one.length for one in cache} <= {sum(case.lengths)}


@inside("L115")
@given(case=sequences(), data=st.data())
def test_later_tokens_change_no_bit_of_earlier_logits(case: Sequence, data: st.DataObject) -> None:
    """Of the same shape."""
    position = sum(case.lengths) - 1 - data.draw(st.integers(0, sum(case.lengths) - 1))
    ids = case.whole().numpy().copy()
    ids[:, position:] = (ids[:, position:] + 1) % TOKENS
    split = case.split()
    event(f"positions before: {min(position, 3)}")

    before, after = (
        split(one).to_device(HOME)[:, :position].tobytes() for one in (case.whole(), Tensor.from_numpy(ids, HOME))
    )

    assert before == after


@inside("L116")
@given(case=sequences())
def test_each_step_of_a_split_decoder_has_the_bits_of_the_unsplit_one(case: Sequence) -> None:
    """Caches stay where their blocks are; a step copies the signal where the device changes, and nothing else (P69)."""
    alone, split = case.alone(), case.split()
    expected_caches = [block.new_autoregressive_cache() for block in alone.blocks]
    cache = split.new_autoregressive_cache()
    event(f"devices: {len(case.placement.devices())}")

    for piece in case.pieces():
        expected = composed(alone, piece, expected_caches)
        with transfer.log() as log:
            found = split.forward_autoregressive_inference(piece, cache)

        assert found.tobytes() == expected.tobytes()
        assert found.device == case.placement.output
        assert log.copies == hidden_changes(case.placement, HOME)
        ids, rows = piece.nbytes * (case.placement.input != HOME), piece.size * 8 * 4
        inner = hidden_changes(case.placement, case.placement.input)
        assert log.nbytes == ids + inner * rows
        assert [one.device for one in cache] == list(case.placement.hidden)


@inside("L117")
@given(case=sequences(), data=st.data())
def test_two_sequences_in_turn_give_what_each_gives_alone(case: Sequence, data: st.DataObject) -> None:
    """(P72)."""
    split = case.split()
    pieces = {"one": case.pieces(), "other": [(piece + 1) % TOKENS for piece in case.pieces()]}
    alone, caches = {}, {name: split.new_autoregressive_cache() for name in pieces}
    for name, given_pieces in pieces.items():
        cache = split.new_autoregressive_cache()
        alone[name] = [split.forward_autoregressive_inference(piece, cache).tobytes() for piece in given_pieces]
    together: dict[str, list[bytes]] = {"one": [], "other": []}

    for name in data.draw(st.permutations([*pieces] * len(case.lengths))):
        piece = pieces[name][len(together[name])]
        together[name].append(split.forward_autoregressive_inference(piece, caches[name]).tobytes())

    assert together == alone


@inside("L117")
@given(case=sequences(split_placements()), device=st.sampled_from(POOL))
def test_the_caches_of_a_moved_decoder_are_refused(case: Sequence, device: Device) -> None:
    """With the first block whose cache is elsewhere; the decoder that was moved from goes on (P74)."""
    split = case.split()
    cache = split.new_autoregressive_cache()
    split.forward_autoregressive_inference(case.whole()[:, :1], cache)
    elsewhere = [number for number, one in enumerate(case.placement.hidden) if one != device]
    event("refused" if elsewhere else "nothing is elsewhere")
    if not elsewhere:
        return

    with pytest.raises(PlacementError) as refused:
        split.fork(device).forward_autoregressive_inference(case.whole()[:, :1], cache)

    assert refused.value.layer == elsewhere[0]
    assert (refused.value.expected, refused.value.found) == (device, case.placement.hidden[elsewhere[0]])
    assert {one.length for one in cache} == {1}
    assert all(one.valid for one in cache)


@inside("L117")
@given(case=sequences())
def test_caches_of_two_sequences_together_are_refused_before_anything_runs(case: Sequence) -> None:
    """More caches than layers, each of them good (P68)."""
    split = case.split()
    cache, other = split.new_autoregressive_cache(), split.new_autoregressive_cache()
    if not cache:
        return

    with transfer.log() as log, pytest.raises(ModuleError, match=f"{2 * len(cache)} caches for {len(cache)}"):
        split.forward_autoregressive_inference(case.whole(), (*cache, *other))

    assert not log
    assert {one.length for one in (*cache, *other)} == {0}
