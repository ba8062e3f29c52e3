"""Laws of quantization that can be put to any implementation (L71, L73 to L79, L82, L83).

The oracle takes scalar float32 steps, an element at a time. L72, L80 and L81,
which need scales that are given, or bytes of every store, are in `tests/engine`.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from hypothesis import assume, event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

from tests.engine import quantization_oracle as oracle
from tests.engine.quantization_oracle import Expected

from . import operations as op
from .calls import all_bits, applied, built, observed, output, read, runs
from .generators import Pool, pick, trees
from .group_expressions import Group, matched
from .group_generators import groups
from .law import law
from .layered_calls import ran, with_extra
from .layered_generators import Case as LayeredCase
from .layered_generators import cases as layered_cases
from .layered_operations import Unwrap, Wrap
from .observations import Bits, ValueMeta
from .programs import SCHEMES
from .protocol import Adapter, Grammar, Handle, Refused
from .quantization_generators import EVERY_SCALE, INTEGERS, KINDS, SYMMETRIC, Case, cases, numbers, pairs_of_blocks
from .record_generators import Builds, builds
from .schemes import SCALES, Scheme, is_scheme, scheme_of
from .spec_tree import ParamSpec, StructSpec, TreeSpec, Value, lazy_paths, leaves, num_params, numpy_dtype, tied_with
from .training_state import fits

QUANTIZE: Final = ("quantize",)
F32: Final = np.float32
Array = NDArray[Any]


def holding(x: Array, device: str) -> TreeSpec:
    """A module of one parameter, `w`."""
    value = Value(str(x.dtype), x.shape, x.tobytes(), device)
    return TreeSpec(StructSpec((("w", ParamSpec(value)),), "Root"))


def module_of(adapter: Adapter, x: Array, scheme: Scheme, calibration: Any = "MinMax") -> Handle:
    """A module whose one parameter is quantized."""
    plain = built(adapter, holding(x, adapter.grammar.devices[0]))
    return applied(adapter, plain, op.Quantize(scheme, calibration))


def parts(adapter: Adapter, x: Array, scheme: Scheme, calibration: Any = "MinMax") -> Expected:
    """Values, scales and the global scale of what is made of an array."""
    bits = read(adapter, module_of(adapter, x, scheme, calibration), "w")
    assert (bits.dtype, bits.shape) == (scheme.text, x.shape)
    return oracle.from_bytes(bits.data, bits.shape, scheme)


def numbers_of(adapter: Adapter, module: Handle, path: str = "w") -> Array:
    """What layers compute with."""
    bits: Bits = output(adapter, module, op.Effective(path))
    return np.frombuffer(bits.data, bits.dtype).reshape(bits.shape)


def effective(made: Expected, case: Case) -> Array:
    """The effective scale of each element."""
    return oracle.effective_scales(made.scales, made.factor, case.scheme, case.x.shape)


# Values


@law("L71", needs=QUANTIZE, case=lambda a: cases(packed=True))
def test_values_and_scales_are_those_of_scalar_steps(adapter: Adapter, case: Case) -> None:
    """Integers, codes, scales of each block and the global scale, to the bit (Q16 to Q30); then the bytes (Q41)."""
    scheme, x = case
    expected = oracle.quantized(x, scheme)

    bits = read(adapter, module_of(adapter, x, scheme), "w")

    made = oracle.from_bytes(bits.data, bits.shape, scheme)
    assert made.scales.tobytes() == expected.scales.tobytes()
    assert made.factor == expected.factor
    assert np.array_equal(made.values, expected.values)
    assert bits == Bits(scheme.text, x.shape, oracle.to_bytes(expected, scheme))


@law("L71", needs=QUANTIZE, slow=2, case=lambda a: cases(two=False))
def test_under_abs_mean_the_scale_is_the_mean_and_what_is_beyond_it_is_the_end(adapter: Adapter, case: Case) -> None:
    """The scale within float32 rounding; the integers exactly those of the scale that was stored (Q15)."""
    scheme, x = case
    made = parts(adapter, x, scheme, "AbsMean")

    if scheme.scale_dtype.name == "F32":
        np.testing.assert_allclose(made.scales, oracle.quantized(x, scheme, mean=True).scales, rtol=2e-6)
    scales = effective(made, case)
    for at in np.ndindex(*x.shape):
        assert made.values[at] == oracle.value_of(x[at], scales[at], scheme.value)


@law("L71", needs=(*QUANTIZE, "reparam"), slow=2, case=lambda a: cases(INTEGERS, zeros=False))
def test_the_error_is_at_most_half_a_step(adapter: Adapter, case: Case) -> None:
    """s · (1/2 + 1.5 · B · 2^-23) within the range, the range's end beyond it; in exact arithmetic (Q29, Q59)."""
    scheme, x = case
    module = module_of(adapter, x, scheme)
    bits, back = read(adapter, module, "w"), numbers_of(adapter, module)
    steps = effective(oracle.from_bytes(bits.data, bits.shape, scheme), case)
    low, high = scheme.value.low, scheme.value.high
    s, largest = steps.astype(np.float64), max(-low, high)
    inside = (x >= (low - 0.5) * s) & (x <= (high + 0.5) * s)
    event(f"beyond the range: {not inside.all()}")

    assert back.dtype == F32
    error = abs(back.astype(np.float64) - x)
    assert np.all(error[inside] <= (s * (0.5 + 1.5 * largest * 2.0**-23))[inside])
    with np.errstate(over="ignore"):
        ends = np.where(x < 0, F32(low) * steps, F32(high) * steps)
    assert np.array_equal(back[~inside], ends[~inside])


FINE: Final = (  # Q61: kinds of values with dtypes whose step is fine enough to find the scale again
    *((kind, scale) for kind in SYMMETRIC for scale in ("F32", "F16", "UE8M0")),
    *(("Q4S", "BF16"), ("Q2S", "BF16"), ("Q2S", "UE4M3")),
)
_SMALLEST: Final = {"F16": 2.0**-14, "UE4M3": 2.0**-6}


@st.composite
def fine_cases(draw: DrawFn) -> Case:
    """Two blocks of a scheme whose scale is found again, in the normal range of its dtype."""
    kind, scale = pick(draw, FINE)
    block = draw(st.integers(1, 4))
    scheme = Scheme(kind, blocks=(block,), each=scale)
    return Case(scheme, draw(numbers((2 * block,), scheme, zeros=False)) * F32(2.0**-20))


@law("L73", needs=(*QUANTIZE, "reparam"), slow=2, case=lambda a: fine_cases())
def test_afresh_symmetric_kinds_with_fine_scales_come_back(adapter: Adapter, case: Case) -> None:
    """The integers and the scales, where no scale is saturated or below the normal range (Q61)."""
    scheme, x = case
    module = module_of(adapter, x, scheme)
    bits = read(adapter, module, "w")
    scales = oracle.from_bytes(bits.data, bits.shape, scheme).scales
    assume(np.all(scales >= _SMALLEST.get(scheme.each, 2.0**-126)) and np.all(scales < SCALES[scheme.each].largest))

    again = module_of(adapter, numbers_of(adapter, module), scheme)

    assert read(adapter, again, "w") == bits


CHANGING: Final = (
    ("Q8F", "F32", (1.0, 0.3), "MinMax"),
    ("Q2S", "F32", (0.9, -0.1, 0.0), "AbsMean"),
    ("Q8S", "BF16", (127.4, 1.0), "MinMax"),
    ("Q8S", "UE4M3", (14.9, 1.0), "MinMax"),
)


@law("L73", needs=(*QUANTIZE, "reparam"), each=("example", CHANGING))
def test_afresh_other_schemes_need_not_come_back(adapter: Adapter, example: Any) -> None:
    """One example each of where quantizing again changes something, so that nobody promises it (Q61)."""
    kind, scale, x, calibration = example
    scheme = Scheme(kind, whole=scale)
    module = module_of(adapter, np.array(x, F32), scheme, calibration)

    again = module_of(adapter, numbers_of(adapter, module), scheme, calibration)

    assert read(adapter, again, "w") != read(adapter, module, "w")


@law("L74", needs=QUANTIZE, slow=2, case=lambda a: cases(INTEGERS))
def test_values_are_monotone_within_a_block(adapter: Adapter, case: Case) -> None:
    """Rule Q63."""
    scheme, x = case
    values, extents = parts(adapter, x, scheme).values, oracle.block_extents(scheme, x.shape)
    for place in np.ndindex(*(n // e for n, e in zip(x.shape, extents, strict=True))):
        at = oracle.part(place, extents)
        order = np.argsort(x[at].ravel(), kind="stable")
        assert np.all(np.diff(values[at].ravel()[order]) >= 0)


@law("L75", needs=QUANTIZE, slow=2, case=lambda a: cases(SYMMETRIC), mean=lambda a: st.booleans())
def test_symmetric_kinds_commute_with_negation(adapter: Adapter, case: Case, mean: bool) -> None:
    """Integers negated, scales the same, under AbsMean too (Q62)."""
    scheme, x = case
    calibration = "AbsMean" if mean and not scheme.is_two_level else "MinMax"
    one, other = (parts(adapter, array, scheme, calibration) for array in (x, -x))

    assert np.array_equal(other.values, -one.values)
    assert other.scales.tobytes() == one.scales.tobytes()
    assert other.factor == one.factor


@law(
    "L76",
    needs=QUANTIZE,
    slow=2,
    case=lambda a: cases(INTEGERS, zeros=False, two=False, scales=("F32",)),
    power=lambda a: st.integers(-40, 40),
)
def test_powers_of_two_scale_the_scales_alone(adapter: Adapter, case: Case, power: int) -> None:
    """Of float32 scales of one level (Q64)."""
    scheme, x = case
    factor = F32(2.0**power)
    one, other = (parts(adapter, array, scheme) for array in (x, np.asarray(x * factor, F32)))

    assert np.array_equal(other.values, one.values)
    assert np.array_equal(other.scales, one.scales * factor)


@law("L77", needs=QUANTIZE, slow=4, drawn=lambda a: pairs_of_blocks())
def test_blocks_do_not_see_each_other(adapter: Adapter, drawn: Any) -> None:
    """Changing a block changes that block; permuting blocks permutes the result, bit for bit (Q9, Q65)."""
    scheme, x, other, place = drawn
    extents = oracle.block_extents(scheme, x.shape)
    at = oracle.part(place, extents)
    changed = x.copy()
    changed[at] = other[at]
    turned = np.ascontiguousarray(np.roll(x, extents[0], axis=0))
    before, after, others, rolled = (parts(adapter, array, scheme) for array in (x, changed, other, turned))

    expected, scales = before.values.copy(), before.scales.copy()
    expected[at], scales[place] = others.values[at], others.scales[place]
    assert np.array_equal(after.values, expected)
    assert np.array_equal(after.scales, scales)
    assert np.array_equal(rolled.values, np.roll(before.values, extents[0], axis=0))
    assert np.array_equal(rolled.scales, np.roll(before.scales, 1, axis=0))


@st.composite
def whole_cases(draw: DrawFn) -> Case:
    """A scheme of one scale per tensor, and numbers of one to three axes."""
    scheme = Scheme(pick(draw, KINDS), whole=pick(draw, EVERY_SCALE))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    return Case(scheme, draw(numbers(shape, scheme)))


@law("L78", needs=QUANTIZE, slow=2, case=lambda a: whole_cases(), mean=lambda a: st.booleans())
def test_one_block_over_the_whole_is_one_scale_per_tensor(adapter: Adapter, case: Case, mean: bool) -> None:
    """Of the same dtype (Q66)."""
    scheme, x = case
    size = x.shape
    while len(size) > 1 and size[0] == 1:
        size = size[1:]
    block = Scheme(scheme.kind, blocks=size, each=scheme.whole or "F32")
    one, other = (parts(adapter, x, of, "AbsMean" if mean else "MinMax") for of in (scheme, block))

    assert np.array_equal(other.values, one.values)
    assert other.scales.ravel().tobytes() == one.scales.tobytes()


_POOL: Final = (0.0, -0.0, 1e-45, -3e-44, 1.1754944e-38, 1.0, -0.75, 3.4028235e38, -2e38, 1.6e38)


@st.composite
def with_zeros(draw: DrawFn) -> Case:
    """Zeros of either sign beside subnormals and, in every second case, numbers whose double overflows."""
    scheme, x = draw(cases())
    last = draw(st.sampled_from((3, 9)))
    places = [draw(st.integers(0, last)) for _ in range(x.size)]
    return Case(scheme, np.array([_POOL[place] for place in places], F32).reshape(x.shape))


@law("L79", needs=(*QUANTIZE, "reparam"), slow=2, case=lambda a: with_zeros())
def test_zero_stays_zero_and_no_nan_ever_leaves(adapter: Adapter, case: Case) -> None:
    """Of either sign, in any block; every scale is positive and finite (Q22, Q27, Q69)."""
    scheme, x = case
    module = module_of(adapter, x, scheme)
    bits, back = read(adapter, module, "w"), numbers_of(adapter, module)
    made = oracle.from_bytes(bits.data, bits.shape, scheme)

    assert np.all((made.scales > 0) & np.isfinite(made.scales))
    assert made.factor is None or 0 < made.factor < np.inf
    assert not np.isnan(back).any()
    assert np.all(back[x == 0] == 0)


# Modules


@st.composite
def calls_on(draw: DrawFn, grammar: Grammar, lazy: bool = False) -> tuple[TreeSpec, op.Quantize]:
    """A tree, and a call that quantizes a part of it, by groups or without one."""
    spec = draw(trees(grammar, lazy=lazy))
    group = draw(groups(spec)) if draw(st.booleans()) else None
    return spec, op.Quantize(pick(draw, SCHEMES), group=group, allow_nonfinite=draw(st.booleans()))


def concerned(spec: TreeSpec, group: Group | None, ids: dict[str, int]) -> list[str]:
    """The paths of what is quantized: parameters of floats that the group matches (Q49)."""
    nodes = leaves(spec)
    held = ((path, nodes[path]) for path in matched(group, ids))
    return [path for path, node in held if isinstance(node, ParamSpec) and node.value.kind == "float"]


def offends(bits: Bits, call: op.Quantize) -> bool:
    """Whether a value cannot be quantized so."""
    with np.errstate(all="ignore"):
        array = np.frombuffer(bits.data, numpy_dtype(bits.dtype)).astype(F32)
    return not fits(call.scheme, bits.shape) or not (call.allow_nonfinite or np.isfinite(array).all())


@law("L82", "L83", "L50", needs=(*QUANTIZE, "groups"), slow=2, case=lambda a: calls_on(a.grammar))
def test_floats_that_a_group_matches_are_quantized_or_the_error_names_all_that_cannot_be(
    adapter: Adapter, case: tuple[TreeSpec, op.Quantize]
) -> None:
    """Values are the oracle's; ids, paths, counts, configured trainability and the rest stay (Q49 to Q54).

    If a block does not divide, or there is NaN or infinity, nothing is done (Q11, Q28, Q58).
    """
    spec, call = case
    module = built(adapter, spec)
    paths = concerned(spec, call.group, adapter.meta(module).ids())
    made = {path: read(adapter, module, path) for path in paths}
    bad = [path for path in paths if offends(made[path], call)]
    before = observed(adapter, module, spec)
    event(f"refused: {len(bad) if len(bad) < 2 else 'several'}")

    with np.errstate(all="ignore"):
        answer = adapter.apply(module, call)

    if bad:
        assert isinstance(answer, Refused)
        assert answer.kind == "scheme"
        assert all(any(f"{other}: " in answer.message for other in tied_with(spec, path)) for path in bad)
        assert observed(adapter, module, spec) == before
        return
    assert not isinstance(answer, Refused), answer.message
    after = observed(adapter, answer.handle, spec)
    quantized = {path: _quantized(bits, call.scheme) for path, bits in made.items()}
    assert after.bits == before.bits | quantized
    for was, now in zip(before.meta.values, after.meta.values, strict=True):
        if isinstance(was, ValueMeta) and was.path in paths:
            was = replace(was, dtype=call.scheme.text, requires_grad=False)
        assert now == was
    assert after.meta.skeleton == before.meta.skeleton
    assert output(adapter, answer.handle, op.CountParams()) == num_params(spec)
    assert observed(adapter, module, spec) == before


def _quantized(bits: Bits, scheme: Scheme) -> Bits:
    array = np.frombuffer(bits.data, numpy_dtype(bits.dtype)).reshape(bits.shape)
    with np.errstate(all="ignore"):
        made = oracle.quantized(array.astype(F32), scheme)
    return Bits(scheme.text, bits.shape, oracle.to_bytes(made, scheme))


@law("L24", "L83", needs=(*QUANTIZE, "groups", "lazy"), slow=2, case=lambda a: calls_on(a.grammar, lazy=True))
def test_quantizing_makes_what_the_group_matches_only(adapter: Adapter, case: tuple[TreeSpec, op.Quantize]) -> None:
    """And what is tied to it, whether it succeeds or is refused (Q53)."""
    spec, call = case
    module = built(adapter, spec)
    paths = concerned(spec, call.group, adapter.meta(module).ids())
    made = {other for path in paths for other in tied_with(spec, path)}

    adapter.apply(module, call)

    assert runs(adapter, module, spec) == {path: int(path in made) for path in lazy_paths(spec)}


@law(
    "L83",
    needs=(*QUANTIZE, "devices", "fork"),
    slow=2,
    case=lambda a: calls_on(a.grammar),
    place=lambda a: st.integers(0, 3),
)
def test_what_is_quantized_is_the_same_on_every_device(
    adapter: Adapter, case: tuple[TreeSpec, op.Quantize], place: int
) -> None:
    """Quantizing and then moving is moving first; what is quantized moves whole, and stays so (Q34, Q57, M42a)."""
    spec, call = case
    call = replace(call, allow_nonfinite=True)
    module = built(adapter, spec)
    move = op.Fork(pick_device(adapter, place))
    answer = adapter.apply(module, call)
    if isinstance(answer, Refused):
        return
    one = applied(adapter, answer.handle, move)
    other = applied(adapter, applied(adapter, module, move), call)

    assert observed(adapter, one, spec) == observed(adapter, other, spec)
    assert all_bits(adapter, one, spec) == all_bits(adapter, answer.handle, spec)


def pick_device(adapter: Adapter, place: int) -> str:
    """One of the grammar's devices."""
    return adapter.grammar.devices[place % len(adapter.grammar.devices)]


@law("L31", "L28", needs=(*QUANTIZE, "devices", "transfer_log"), slow=2, case=lambda a: cases())
def test_a_quantized_value_is_copied_whole_and_counted_once(adapter: Adapter, case: Case) -> None:
    """A byte for each value, and its scales in float32, in one copy (Q34, Q38)."""
    scheme, x = case
    here, there = adapter.grammar.devices[:2]
    module = module_of(adapter, x, scheme)
    bits = read(adapter, module, "w")
    adapter.log()

    moved = applied(adapter, module, op.ToDevice(there))

    made = oracle.from_bytes(bits.data, bits.shape, scheme)
    nbytes = made.values.size + 4 * made.scales.size + 4 * scheme.is_two_level
    assert [(c.source, c.destination, c.copies, c.nbytes) for c in adapter.log()] == [(here, there, 1, nbytes)]
    assert read(adapter, moved, "w") == bits


@law("L83", needs=(*QUANTIZE, "parallel", "lazy"), slow=4, case=lambda a: layered_cases(a.grammar, dtype="float32"))
def test_a_split_model_is_quantized_to_the_bits_of_the_whole_one(adapter: Adapter, case: LayeredCase) -> None:
    """Each layer on its own device; then it computes what the model of the dequantized values does (Q35, Q55, Q57).

    In float32, to which a quantized value goes that stands beside no other (Q35).
    """
    case = with_extra(case, adapter)
    spec = case.spec
    call = op.Quantize(Scheme("Q8S"), allow_nonfinite=True)
    model = built(adapter, spec)
    bare = applied(adapter, model, call)
    split = applied(adapter, applied(adapter, model, Wrap(spec.placement)), call)

    assert observed(adapter, applied(adapter, split, Unwrap()), spec.tree) == observed(adapter, bare, spec.tree)
    record = output(adapter, bare, op.ToRecord())
    assert any(is_scheme(entry.bits.dtype) for entry in record.entries)
    dense = tuple(replace(entry, bits=_dense(entry.bits, spec.dtype)) for entry in record.entries)
    plain = applied(adapter, applied(adapter, model, Wrap(spec.placement)), op.LoadRecord(op.Record(dense)))
    assert ran(adapter, split, case.signal) == ran(adapter, plain, case.signal)


def _dense(bits: Bits, dtype: str) -> Bits:
    """A quantized entry as what it stands for."""
    return _cast(bits, dtype) if is_scheme(bits.dtype) else bits


def _autodiff(grammar: Grammar) -> Pool:
    return Pool(grammar.devices[:2], "autodiff" if grammar.autodiff else "plain")


@law(
    "L83",
    needs=(*QUANTIZE, "state.params", "autodiff"),
    slow=2,
    spec=lambda a: trees(a.grammar, pool=_autodiff(a.grammar)),
)
def test_a_quantized_value_never_trains_but_remembers_that_it_shall(adapter: Adapter, spec: TreeSpec) -> None:
    """Whatever is asked of it; made dense by a load, it trains again (Q33, Q51, M60)."""
    module = built(adapter, spec)
    record = output(adapter, module, op.ToRecord())
    quantized = applied(adapter, module, op.Quantize(Scheme("Q8S"), allow_nonfinite=True))
    for now in (quantized, *(applied(adapter, quantized, call) for call in (op.Unfreeze(), op.Train(), op.Fork()))):
        for value in adapter.meta(now).values:
            if isinstance(value, ValueMeta) and is_scheme(value.dtype):
                assert value.requires_grad is False
    wishes = {value.path: value for value in adapter.meta(module).values}
    for value in adapter.meta(applied(adapter, quantized, op.LoadRecord(record))).settled().values:
        if isinstance(value, ValueMeta):
            assert value.trainable == getattr(wishes[value.path], "trainable", None)
            assert value.requires_grad == (value.trainable and value.autodiff)


# Records


@st.composite
def quantized_builds(draw: DrawFn, grammar: Grammar) -> tuple[Builds, Scheme, bool]:
    """Two builds of a module, a scheme that fits any shape for the recorded one, and whether the other casts."""
    fitting = [scheme for scheme in SCHEMES if scheme.blocks is None]
    return draw(builds(grammar)), pick(draw, fitting), draw(st.booleans())


@law("L54", "L60", needs=(*QUANTIZE, "records", "ids"), slow=2, case=lambda a: quantized_builds(a.grammar))
def test_a_quantized_parameter_is_loaded_as_it_is_or_as_its_numbers(
    adapter: Adapter, case: tuple[Builds, Scheme, bool]
) -> None:
    """Bits and id are the record's; a cast to the module dequantizes to the dtype there (R15, R18). It never trains."""
    both, scheme, cast = case
    source = applied(adapter, built(adapter, both.source), op.Quantize(scheme, allow_nonfinite=True))
    record = output(adapter, source, op.ToRecord())
    target = built(adapter, both.target)
    was = {value.path: value for value in adapter.meta(target).values if isinstance(value, ValueMeta)}
    quantized = {entry.path: entry for entry in record.entries if is_scheme(entry.bits.dtype)}
    event(f"cast: {cast}, quantized: {bool(quantized)}")

    with np.errstate(all="ignore"):
        loaded = applied(adapter, target, op.LoadRecord(record, op.LoadOptions(cast=cast)))

    now = {value.path: value for value in adapter.meta(loaded).values if isinstance(value, ValueMeta)}
    for path, entry in quantized.items():
        bits = _cast(entry.bits, was[path].dtype) if cast else entry.bits
        assert read(adapter, loaded, path) == bits
        trains = was[path].trainable and was[path].autodiff and cast
        told = replace(was[path], id=entry.id, dtype=bits.dtype, lazy=False, requires_grad=trains)
        assert now[path] == told
    assert set(runs(adapter, target, both.target).values()) <= {0}


def _cast(bits: Bits, dtype: str) -> Bits:
    """What a quantized value stands for, in a dtype."""
    scheme = scheme_of(bits.dtype)
    with np.errstate(all="ignore"):
        made = oracle.dequantized(oracle.from_bytes(bits.data, bits.shape, scheme), scheme).astype(numpy_dtype(dtype))
    return Bits(dtype, bits.shape, made.tobytes())


@law(
    "L60",
    needs=(*QUANTIZE, "records", "records.options"),
    slow=2,
    case=lambda a: cases(),
    other=lambda a: st.sampled_from(SCHEMES),
)
def test_a_load_does_not_quantize(adapter: Adapter, case: Case, other: Scheme) -> None:
    """A cast keeps an entry of the module's scheme; another scheme, or dense numbers, is a mismatch (R15, R16)."""
    scheme, x = case
    module = module_of(adapter, x, scheme)
    mine = output(adapter, module, op.ToRecord())
    plain = built(adapter, holding(x, adapter.grammar.devices[0]))
    entries = [mine, output(adapter, plain, op.ToRecord())]
    if fits(other, x.shape):
        entries.append(output(adapter, module_of(adapter, x, other), op.ToRecord()))
    for record in entries:
        answer = adapter.apply(module, op.LoadRecord(record, op.LoadOptions(cast=True)))
        if record.entries[0].bits.dtype == scheme.text:
            assert not isinstance(answer, Refused), answer.message
            assert read(adapter, answer.handle, "w") == record.entries[0].bits
        else:
            assert isinstance(answer, Refused)
            assert (answer.kind, answer.mismatched) == ("record_mismatch", ("w",))
