"""Laws of decoding with caches (L114 to L117).

The decoder that people run, with grouped heads and rotary positions, is under the same laws in
`tests/parallel/test_decoder_inside.py`.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .calls import applied, built, output
from .generators import pick
from .law import law
from .layered import CAUSAL, REMEMBERING, LayeredSpec, LayerName, Placement, Signal, hardware
from .layered_calls import names, ran, wrapped
from .layered_expected import close, course, crossed, values_of
from .layered_generators import Decoding, decodings, models
from .layered_operations import CacheMeta, Decode, NewCache, SeeCache
from .operations import Fork, ToDevice
from .placement_generators import split_placements
from .protocol import Adapter, Handle, Refused
from .spec_tree import Printed


def decoded(adapter: Adapter, target: Handle, pieces: list[Signal], name: str = "one") -> list[Signal]:
    """What comes out for each piece of a sequence, with fresh caches."""
    output(adapter, target, NewCache(name))
    return [output(adapter, target, Decode(piece, name)) for piece in pieces]


def joined(case: Decoding, pieces: list[Signal]) -> Signal:
    """The outputs one behind the other along the positions; what stands beside them is that of the first."""
    rows = np.concatenate([piece.values()[case.path].numpy() for piece in pieces])
    first = pieces[0].values()
    value = replace(first[case.path], shape=rows.shape, data=rows.tobytes())
    return pieces[0].with_values({**first, case.path: value})


@law("L114", needs=("parallel", "cache"), case=lambda a: decodings(a.grammar, dtype="float64"))
def test_any_cutting_of_a_sequence_gives_the_whole_forwards_outputs(adapter: Adapter, case: Decoding) -> None:
    """Close, as `CLOSE` says, since a row alone is summed otherwise than among others (P70, P71)."""
    split = wrapped(adapter, case.spec)
    whole = ran(adapter, split, case.whole)
    expected = course(case.spec, case.whole, values_of(case.spec), case.spec.placement)
    event(f"pieces: {len(case.lengths)}; some empty: {0 in case.lengths}")

    outputs = decoded(adapter, split, case.pieces())

    assert [one.values()[case.path].shape[0] for one in outputs] == list(case.lengths)
    assert close(joined(case, outputs), whole, expected.peak)
    assert close(whole, expected.output, expected.peak)


@law("L114", needs=("parallel", "cache"), case=lambda a: decodings(a.grammar))
def test_a_fresh_cache_and_the_whole_sequence_are_the_forward(adapter: Adapter, case: Decoding) -> None:
    """To the bit: the same operations over the same rows (P71)."""
    split = wrapped(adapter, case.spec)

    assert decoded(adapter, split, [case.whole]) == [ran(adapter, split, case.whole)]


@st.composite
def one_changed(draw: DrawFn, adapter: Adapter) -> tuple[Decoding, int]:
    """A sequence, and the position that is to change."""
    case = draw(decodings(adapter.grammar))
    last = sum(case.lengths) - 1
    return case, last - draw(st.integers(0, last))


@law("L115", needs=("parallel",), drawn=lambda a: one_changed(a))
def test_later_positions_change_no_bit_of_earlier_outputs(adapter: Adapter, drawn: tuple[Decoding, int]) -> None:
    """Of the same shape."""
    case, position = drawn
    split = wrapped(adapter, case.spec)
    values = case.whole.values()
    rows = values[case.path].numpy().copy()
    rows[position] = 1 - rows[position] if rows.dtype.kind == "f" else (rows[position] + 1) % 12
    other = case.whole.with_values({**values, case.path: replace(values[case.path], data=rows.tobytes())})
    event(f"positions before: {min(position, 3)}")

    before, after = (ran(adapter, split, one).values()[case.path].numpy() for one in (case.whole, other))

    assert before[:position].tobytes() == after[:position].tobytes()


@law("L116", needs=("parallel", "cache", "transfer_log"), case=lambda a: decodings(a.grammar))
def test_a_split_model_decodes_each_piece_to_the_bits_of_the_unsplit_one(adapter: Adapter, case: Decoding) -> None:
    """Caches stay on their layer's device; only the signal moves, as in a forward (P67, P69)."""
    placement, home = case.spec.placement, adapter.grammar.devices[0]
    alone = built(adapter, case.spec.built_by(placement.all_on(home)))
    expected = decoded(adapter, alone, [piece.on(home) for piece in case.pieces()])
    split = wrapped(adapter, case.spec)
    output(adapter, split, NewCache("one"))
    event(f"devices: {len({*placement.plain.layers})}")
    adapter.log()

    for piece, whole, end in zip(case.pieces(), expected, np.cumsum(case.lengths).tolist(), strict=True):
        found = output(adapter, split, Decode(piece, "one"))

        assert found == whole.on(hardware(placement.output))
        copies = course(case.spec, piece, values_of(case.spec), placement).crossings
        assert crossed(adapter.log()) == copies
        assert output(adapter, split, SeeCache("one")) == caches_after(case.spec, placement, end)


def caches_after(spec: LayeredSpec, placement: Placement, length: int, valid: bool = True) -> tuple[CacheMeta, ...]:
    """The caches after that many positions."""
    stores = [layer.step in REMEMBERING for layer in spec.layers[1:-1]]
    devices = placement.plain.hidden
    return tuple(CacheMeta(length, d if s else None, valid) for d, s in zip(devices, stores, strict=True))


@dataclass(frozen=True, repr=False)
class Interleaved(Printed):
    """A sequence in pieces, another of the same model, and whose turn it is: the pieces of each in their order."""

    case: Decoding
    other: tuple[Signal, ...]
    turns: tuple[bool, ...]


@st.composite
def interleavings(draw: DrawFn, adapter: Adapter) -> Interleaved:
    """The other sequence is the first one backwards."""
    case = draw(decodings(adapter.grammar))
    value = case.whole.values()[case.path]
    rows = value.numpy()[::-1]
    backwards = case.whole.with_values({**case.whole.values(), case.path: replace(value, data=rows.tobytes())})
    other = tuple(replace(case, whole=backwards).pieces())
    turns = draw(st.permutations([False] * len(other) + [True] * len(other)))
    return Interleaved(case, other, tuple(turns))


@law("L117", needs=("parallel", "cache"), case=lambda a: interleavings(a))
def test_sequences_do_not_meet(adapter: Adapter, case: Interleaved) -> None:
    """Two of them in turn give what each gives alone (P72)."""
    split = wrapped(adapter, case.case.spec)
    pieces = {"one": case.case.pieces(), "other": list(case.other)}
    alone = {name: decoded(adapter, split, given, f"{name} alone") for name, given in pieces.items()}
    event(f"turns change: {min(sum(a != b for a, b in pairwise(case.turns)), 4)}")
    together: dict[str, list[Signal]] = {"one": [], "other": []}
    for name in together:
        output(adapter, split, NewCache(name))

    for turn in case.turns:
        name = "other" if turn else "one"
        together[name].append(output(adapter, split, Decode(pieces[name][len(together[name])], name)))

    assert together == alone


def with_layers(adapter: Adapter) -> Any:
    """Sequences for models of at least one hidden layer, over at least two devices."""
    placed = split_placements(adapter.grammar).map(lambda p: p if p.hidden else replace(p, hidden=(p.output,)))
    return decodings(adapter.grammar, placed)


@st.composite
def wrong_numbers(draw: DrawFn, adapter: Adapter) -> tuple[Decoding, tuple[int, ...]]:
    """A sequence, and the caches that are handed over: none, too few, too many, or one twice."""
    case = draw(with_layers(adapter))
    every = tuple(range(len(case.spec.layers) - 2))
    return case, pick(draw, ((), every[:-1], (*every, every[0]), (*every[:-1], every[0]) if every[1:] else ()))


@law("L117", needs=("parallel", "cache", "transfer_log"), drawn=lambda a: wrong_numbers(a))
def test_a_wrong_number_of_caches_is_refused_before_anything_runs(
    adapter: Adapter, drawn: tuple[Decoding, tuple[int, ...]]
) -> None:
    """No layer runs, nothing is copied, and the caches are as good as before (P68)."""
    case, handed = drawn
    split = wrapped(adapter, case.spec)
    expected = decoded(adapter, split, case.pieces())
    output(adapter, split, NewCache("two"))
    event(f"handed: {len(handed)} of {len(case.spec.layers) - 2}")

    for piece, whole in zip(case.pieces(), expected, strict=True):
        before = output(adapter, split, SeeCache("two"))
        adapter.log()
        answer = adapter.apply(split, Decode(piece, "two", handed, fail_at="input"))
        assert isinstance(answer, Refused)
        assert answer.kind != "layer"
        assert adapter.log() == ()
        assert output(adapter, split, SeeCache("two")) == before
        assert output(adapter, split, Decode(piece, "two")) == whole


@st.composite
def failures(draw: DrawFn, adapter: Adapter) -> tuple[Decoding, LayerName, int]:
    """A sequence, the layer that raises, and before which piece."""
    case = draw(with_layers(adapter))
    return case, pick(draw, case.spec.names), draw(st.integers(0, len(case.lengths) - 1))


@law("L117", needs=("parallel", "cache", "transfer_log"), drawn=lambda a: failures(a))
def test_after_a_failure_the_caches_are_refused(adapter: Adapter, drawn: tuple[Decoding, LayerName, int]) -> None:
    """Those of this sequence alone, and before anything runs; the exception names layer and device (P42, P73)."""
    case, name, at = drawn
    split, pieces = wrapped(adapter, case.spec), case.pieces()
    expected = decoded(adapter, split, pieces)
    device = dict(zip(case.spec.names, case.spec.placement.plain.layers, strict=True))[name]
    decoded(adapter, split, pieces[:at], "failing")
    decoded(adapter, split, pieces[:at], "other")
    event(f"fails at {'a hidden layer' if isinstance(name, int) else name}")

    failed = adapter.apply(split, Decode(pieces[at], "failing", fail_at=name))
    adapter.log()
    again = adapter.apply(split, Decode(pieces[at], "failing", fail_at="input"))

    assert isinstance(failed, Refused)
    assert failed.kind == "layer"
    assert names(failed.message, str(name), device)
    assert isinstance(again, Refused)
    assert again.kind != "layer"
    assert adapter.log() == ()
    assert not any(cache.valid for cache in output(adapter, split, SeeCache("failing")))
    assert [output(adapter, split, Decode(piece, "other")) for piece in pieces[at:]] == expected[at:]


@st.composite
def moved_caches(draw: DrawFn, adapter: Adapter) -> tuple[Decoding, Any]:
    """A sequence of at least one piece, and a move of the model behind it."""
    case = draw(with_layers(adapter))
    return case, pick(draw, (Fork, ToDevice))(pick(draw, adapter.grammar.devices))


@law("L117", needs=("parallel", "cache", "fork", "transfer_log"), drawn=lambda a: moved_caches(a))
def test_caches_do_not_move_with_a_model(adapter: Adapter, drawn: tuple[Decoding, Any]) -> None:
    """One that stores values elsewhere is refused before anything runs, with its layer and both devices (P74).

    The model that was moved from goes on.
    """
    case, move = drawn
    split, pieces = wrapped(adapter, case.spec), case.pieces()
    expected = decoded(adapter, split, pieces)
    decoded(adapter, split, pieces[:-1])
    caches = output(adapter, split, SeeCache("one"))
    wrong = [(n, c.device) for n, c in enumerate(caches) if c.device not in (None, move.device)]
    event("refused" if wrong else "nothing is elsewhere")
    moved = applied(adapter, split, move)
    adapter.log()

    answer = adapter.apply(moved, Decode(pieces[-1], "one", fail_at="input" if wrong else None))

    if not wrong:
        assert not isinstance(answer, Refused), answer.message
        assert answer.output == expected[-1].on(move.device)
        return
    assert isinstance(answer, Refused)
    assert answer.kind == "placement"
    assert names(answer.message, str(wrong[0][0]), wrong[0][1], move.device)
    assert adapter.log() == ()
    assert output(adapter, split, Decode(pieces[-1], "one")) == expected[-1]


@law("L117", needs=("parallel", "cache"), spec=lambda a: models(a.grammar))
def test_only_autoregressive_layers_have_caches(adapter: Adapter, spec: LayeredSpec) -> None:
    """The first that is none is named; without hidden layers there are no caches (P65, P66)."""
    lacking = [number for number, layer in enumerate(spec.layers[1:-1]) if layer.step not in CAUSAL]
    split = wrapped(adapter, spec)
    event("refused" if lacking else "made")

    answer = adapter.apply(split, NewCache("one"))

    if lacking:
        assert isinstance(answer, Refused)
        assert names(answer.message, str(lacking[0]))
    else:
        assert not isinstance(answer, Refused)
        assert answer.output == tuple(CacheMeta(0, None, True) for _ in spec.layers[1:-1])
