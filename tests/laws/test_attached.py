"""Laws of what is attached to parameters: LoRA and `materialize` (L85 to L91).

Small integers as values where something is computed, so that base + scale · (a
@ b) is exact. L84, which needs a reparameterization that a user wrote, and the
gradients of L87 are in `tests/modules`.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

from . import operations as op
from .calls import applied, built, events, observed, output, read, runs
from .generators import Pool, pick, special_patterns, trees
from .group_expressions import Difference, Everything, Group, Pieces, matched
from .group_generators import groups
from .law import law
from .layered_calls import ran, with_extra
from .layered_generators import Case, cases
from .layered_operations import GetPlacement, Unwrap, Wrap
from .model_leaves import array_of
from .observations import Bits, FlagMeta, Meta, ValueMeta
from .protocol import Adapter, Grammar, Handle, Refused
from .record_operations import STRICT, Fitting
from .schemes import Scheme, is_scheme
from .spec_tree import (
    FLOATS,
    LORA,
    ParamSpec,
    Seen,
    StructSpec,
    TreeSpec,
    Value,
    attached_at,
    attached_to,
    lazy_paths,
    leaves,
    lora,
    num_params,
    numpy_dtype,
    tied_with,
    walk,
    without_attached,
)

NEEDS: Final = ("lora", "reparam")
Array = NDArray[Any]


def tensor(array: Array, device: str = "cpu:0") -> ParamSpec:
    """A parameter of an array."""
    return ParamSpec(Value(str(array.dtype), array.shape, array.tobytes(), device))


def values_of(adapter: Adapter, module: Handle, path: str) -> Array:
    """What layers compute with."""
    return array_of(output(adapter, module, op.Effective(path)))


# What is computed


@st.composite
def matrices(draw: DrawFn, grammar: Grammar) -> tuple[TreeSpec, float]:
    """A module of a matrix `w` with factors, all of small integers in one dtype, and its scale; b is not zero."""
    dtype = pick(draw, grammar.dtypes_of("float"))
    rows, rank, columns = (draw(st.integers(1, 4)) for _ in range(3))
    small = st.integers(-3, 3)

    def integers(*shape: int) -> ParamSpec:
        drawn = draw(st.lists(small, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
        return tensor(np.array(drawn).astype(numpy_dtype(dtype)).reshape(shape), grammar.devices[0])

    base, a, b = integers(rows, columns), integers(rows, rank), integers(rank, columns)
    ones = np.ones((rank, columns)).astype(numpy_dtype(dtype))
    b = b if any(b.value.data) else tensor(ones, grammar.devices[0])
    scale = pick(draw, (2.0, 0.5, -1.0, 3.0))
    return TreeSpec(StructSpec((("w", replace(base, attached=lora(a, b, scale))),), "Root")), scale


def sum_of(base: Array, a: Array, b: Array, scale: float) -> Array:
    """base + scale · (a @ b), exactly."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return (base.astype(np.float64) + scale * product).astype(a.dtype)


@law(
    "L86",
    needs=(*NEEDS, "map"),
    slow=2,
    case=lambda a: matrices(a.grammar),
    amount=lambda a: st.sampled_from((1, -2, 3)),
)
def test_the_value_is_base_plus_scale_times_product_at_each_read(
    adapter: Adapter, case: tuple[TreeSpec, float], amount: int
) -> None:
    """A base or factor that a map changes between two reads shows at once; nothing is kept (A6, A18)."""
    spec, scale = case
    module = built(adapter, spec)
    for path in ("w", "w.lora.a", "w.lora.b"):
        base, a, b = (array_of(read(adapter, module, at)) for at in ("w", "w.lora.a", "w.lora.b"))
        assert np.array_equal(values_of(adapter, module, "w"), sum_of(base, a, b, scale))
        module = applied(adapter, module, op.Map(((op.AddConstant(path, amount),),)))
    base, a, b = (array_of(read(adapter, module, at)) for at in ("w", "w.lora.a", "w.lora.b"))
    assert np.array_equal(values_of(adapter, module, "w"), sum_of(base, a, b, scale))


@law(
    "L86",
    needs=(*NEEDS, "map"),
    slow=2,
    case=lambda a: matrices(a.grammar),
    rank=lambda a: st.integers(1, 6),
    alpha=lambda a: st.sampled_from((-2.0, 0.5, 3.0)),
)
def test_the_scale_is_alpha_by_rank(adapter: Adapter, case: tuple[TreeSpec, float], rank: int, alpha: float) -> None:
    """Close, since what is drawn for a is no small integer (A16, A18)."""
    plain = built(adapter, without_attached(case[0]))
    module = applied(adapter, plain, op.ApplyLora(rank, alpha, dtype="float64"))
    module = applied(adapter, module, op.Map(((op.AddConstant("w.lora.b", 2),),)))
    base, a, b = (array_of(read(adapter, module, at)) for at in ("w", "w.lora.a", "w.lora.b"))

    expected = base.astype(np.float64) + alpha / rank * (a @ b)
    assert np.allclose(values_of(adapter, module, "w"), expected, rtol=1e-13, atol=1e-13)


def adapted_trees(grammar: Grammar, **of_trees: Any) -> Any:
    """Trees with something attached."""
    return trees(grammar, holding=("adapted",), **of_trees)


@law("L85", needs=NEEDS, each=("dtype", FLOATS), rank=lambda a: st.integers(1, 3), data=lambda a: st.data())
def test_with_b_zero_the_value_is_the_base_but_for_the_sign_of_zero(
    adapter: Adapter, dtype: str, rank: int, data: Any
) -> None:
    """Bit for bit, of all finite patterns, subnormals too; of -0 comes +0, or -0 where the product is -0 (A16, A19)."""
    patterns = [np.frombuffer(one, numpy_dtype(dtype))[0] for one in special_patterns(dtype)]
    with np.errstate(all="ignore"):  # signalling NaNs are among them
        finite = np.array([one for one in patterns if np.isfinite(one)], numpy_dtype(dtype))
    rows = data.draw(st.sampled_from((1, 2, 3)))
    base = finite[: len(finite) // rows * rows].reshape(rows, -1)
    plain = built(adapter, TreeSpec(StructSpec((("w", tensor(base, adapter.grammar.devices[0])),), "Root")))

    module = applied(adapter, plain, op.ApplyLora(rank, 3.0))

    assert not array_of(read(adapter, module, "w.lora.b")).any()
    found, zero = values_of(adapter, module, "w"), base == 0
    assert found.dtype == base.dtype
    assert np.array_equal(found == 0, zero)
    assert found[~zero].tobytes() == base[~zero].tobytes()


# Who gets an adapter


@st.composite
def calls_on(draw: DrawFn, grammar: Grammar, **of_trees: Any) -> tuple[TreeSpec, op.ApplyLora]:
    """A tree with nothing attached, and LoRA on a part of it, by a group or on all."""
    spec = without_attached(draw(trees(grammar, holding=("adapted",), **of_trees)))
    group = draw(groups(spec)) if draw(st.booleans()) else None
    dtype = pick(draw, (None, None, *grammar.dtypes_of("float")))
    return spec, op.ApplyLora(draw(st.integers(1, 3)), 2.0, dtype, group)


def floats_of(spec: TreeSpec) -> dict[str, ParamSpec]:
    """Parameters of floats, by path."""
    return {path: n for path, n in leaves(spec).items() if isinstance(n, ParamSpec) and n.value.kind == "float"}


def adapted_paths(spec: TreeSpec, group: Group | None, ids: dict[str, int]) -> list[str]:
    """The paths of matrices that a group matches (A15)."""
    floats = floats_of(spec)
    return [path for path in matched(group, ids) if path in floats and len(floats[path].value.shape) == 2]


def with_factors(spec: TreeSpec, paths: list[str], call: op.ApplyLora) -> TreeSpec:
    """The tree with factors of zeros at these paths."""
    held: dict[str, tuple[str, StructSpec] | None] = {}
    for path in paths:
        value = floats_of(spec)[path].value
        dtype = numpy_dtype(call.dtype or value.dtype)
        rows, columns = value.shape
        a, b = (tensor(np.zeros(s, dtype), value.device) for s in ((rows, call.rank), (call.rank, columns)))
        held[path] = lora(a, b, call.alpha / call.rank)
    return attached_at(spec, held)


def params(meta: Meta) -> dict[str, ValueMeta]:
    """Parameters and running states, by path."""
    return {value.path: value for value in meta.values if isinstance(value, ValueMeta)}


@law("L87", "L88", "L50", needs=(*NEEDS, "visit", "groups"), slow=2, case=lambda a: calls_on(a.grammar))
def test_matrices_of_the_group_get_an_adapter_and_only_factors_train(
    adapter: Adapter, case: tuple[TreeSpec, op.ApplyLora]
) -> None:
    """Base, then `path.lora.a` and `.b`; counts, shapes, dtypes, devices as told; the rest stays (A5, A14 to A20)."""
    spec, call = case
    module = built(adapter, spec)
    before = observed(adapter, module, spec)
    paths = adapted_paths(spec, call.group, before.meta.ids())
    event(f"adapters: {min(len(paths), 2)}")

    result = applied(adapter, module, call)

    expected = with_factors(spec, paths, call)
    after = observed(adapter, result, expected)
    assert events(adapter, result) == walk(expected)
    assert output(adapter, result, op.CountParams()) == num_params(expected)
    factors = {f"{path}.{LORA}.{name}": path for path in paths for name in "ab"}
    nodes, seen, was = leaves(expected), params(after.meta), params(before.meta)
    for path, value in seen.items():
        node = nodes[path]
        if path in factors:
            assert isinstance(node, ParamSpec)
            told = (value.shape, value.dtype, value.device, value.autodiff, value.trainable, value.requires_grad)
            of = node.value
            assert told == (of.shape, of.dtype, of.hardware, of.autodiff, True, of.autodiff)
        elif path in floats_of(spec):
            now = replace(was[path], lazy=value.lazy, trainable=False, requires_grad=None if value.lazy else False)
            assert value == now
        else:
            assert value == was[path]
    ids = [seen[path].id for path in factors]
    assert not set(ids) & set(before.meta.ids().values())
    made = {tied_with(spec, path): path for path in paths}
    assert len(set(ids)) >= 2 * len(made)
    assert [v for v in after.meta.values if isinstance(v, FlagMeta)] == [
        v for v in before.meta.values if isinstance(v, FlagMeta)
    ]
    kept = {path: bits for path, bits in after.bits.items() if path in before.bits}
    assert kept == before.bits
    assert after.meta.lazy() == before.meta.lazy() - {other for path in paths for other in tied_with(spec, path)}


@law("L24", needs=(*NEEDS, "groups", "lazy"), slow=2, case=lambda a: calls_on(a.grammar, lazy=True))
def test_lora_makes_the_matrices_that_get_an_adapter_only(
    adapter: Adapter, case: tuple[TreeSpec, op.ApplyLora]
) -> None:
    """And what is tied to them (A24)."""
    spec, call = case
    module = built(adapter, spec)
    paths = adapted_paths(spec, call.group, adapter.meta(module).ids())

    applied(adapter, module, call)

    made = {other for path in paths for other in tied_with(spec, path)}
    assert runs(adapter, module, spec) == {path: int(path in made) for path in lazy_paths(spec)}


@law("L24", needs=(*NEEDS, "lazy"), slow=2, spec=lambda a: trees(a.grammar, lazy=True, holding=("adapted",)))
def test_materialize_makes_what_has_something_attached_only(adapter: Adapter, spec: TreeSpec) -> None:
    """What has none is as it was, and stays lazy (A33)."""
    module = built(adapter, spec)
    made = {other for path in attached_to(spec) for other in tied_with(spec, path)}
    before = params(adapter.meta(module))

    folded = applied(adapter, module, op.Materialize())

    assert runs(adapter, module, spec) == {path: int(path in made) for path in lazy_paths(spec)}
    after = params(adapter.meta(folded))
    assert {path: value for path, value in after.items() if path not in made} == {
        path: value for path, value in before.items() if path not in made and f".{LORA}." not in path
    }


@law(
    "L87",
    needs=(*NEEDS, "autodiff", "optimizers"),
    slow=2,
    each=("optimizer", ("SGD", "Adam", "AdamW")),
    case=lambda a: calls_on(a.grammar, pool=Pool(a.grammar.devices[:1], "autodiff")),
)
def test_a_step_of_training_changes_factors_only(
    adapter: Adapter, optimizer: str, case: tuple[TreeSpec, op.ApplyLora]
) -> None:
    """No base bit, with weight decay on (A14, A49)."""
    spec, call = case
    module = built(adapter, spec)
    paths = adapted_paths(spec, call.group, adapter.meta(module).ids())
    if not paths:
        return
    adapted = applied(adapter, module, call)
    expected = with_factors(spec, paths, call)
    used = tuple(floats_of(expected))
    before = observed(adapter, adapted, expected)

    settings: Any = (("lr", 0.5), ("weight_decay", 0.1))
    stepped = observed(adapter, applied(adapter, adapted, op.Step(optimizer, settings, used)), expected)

    changed = {path for path, bits in before.bits.items() if stepped.bits[path] != bits}
    assert changed == {path for path in floats_of(expected) if f".{LORA}." in path and before.bits[path].data}


@law("L88", "L51", needs=(*NEEDS, "groups", "records", "state.params"), slow=2, spec=lambda a: adapted_trees(a.grammar))
def test_groups_and_records_see_base_and_factors_separately(adapter: Adapter, spec: TreeSpec) -> None:
    """A group of bases, one of factors, one of both; by pieces of paths (A5, A26)."""
    module = applied(adapter, built(adapter, spec), op.Unfreeze())
    factors = Pieces((f".{LORA}.",))
    inside = [path for path in leaves(spec) if f".{LORA}." in path]
    outside = [path for path in leaves(spec) if path not in inside]

    for group, paths in ((factors, inside), (Difference(Everything(), factors), outside)):
        assert list(output(adapter, module, op.PathsOfGroup(group))) == paths
        now = params(adapter.meta(applied(adapter, module, op.SetRequireGrad(False, group))))
        for path in floats_of(spec):
            assert now[path].trainable == (path not in paths)
        record = output(adapter, module, op.ToRecord(group))
        flags = {value.path for value in adapter.meta(module).values if isinstance(value, FlagMeta)}
        assert [entry.path for entry in record.entries] == [path for path in paths if path not in flags]


# materialize

SWITCHING: Final = (op.Train, op.Valid, op.Freeze, op.Unfreeze, op.NoGrad)


@law(
    "L89",
    needs=(*NEEDS, "state.params", "state.flags", "visit"),
    slow=2,
    spec=lambda a: adapted_trees(a.grammar),
    calls=lambda a: st.lists(st.sampled_from(SWITCHING), max_size=3),
    quantized=lambda a: st.booleans(),
)
def test_materialize_stores_what_layers_compute_with(
    adapter: Adapter, spec: TreeSpec, calls: list[Any], quantized: bool
) -> None:
    """Bits of the effective value; the base's id, trainability and effective one; twice is once (A32 to A37).

    In any training state; what is quantized becomes dense (A34).
    """
    module = built(adapter, spec)
    if quantized and "quantize" in adapter.capabilities:
        bases = Difference(Everything(), Pieces((f".{LORA}.",)))
        module = applied(adapter, module, op.Quantize(Scheme("Q8S"), "MinMax", bases, allow_nonfinite=True))
    for call in calls:
        module = applied(adapter, module, call())
    values = {path: output(adapter, module, op.Effective(path)) for path in attached_to(spec)}
    before = observed(adapter, module, spec)

    folded = applied(adapter, module, op.Materialize())

    plain = without_attached(spec)
    after = observed(adapter, folded, plain)
    assert {path: after.bits[path] for path in values} == values
    assert not any(is_scheme(bits.dtype) for bits in values.values())
    assert {path: b for path, b in after.bits.items() if path not in values} == {
        path: b for path, b in before.bits.items() if path not in values and f".{LORA}." not in path
    }
    kept = (value for value in before.meta.values if f".{LORA}." not in value.path)
    for was, now in zip(kept, after.meta.values, strict=True):
        if isinstance(was, ValueMeta) and isinstance(now, ValueMeta) and was.path in values:
            was = replace(was, dtype=now.dtype)
        assert now == was
    assert events(adapter, folded) == walk(plain)
    assert output(adapter, folded, op.CountParams()) == num_params(plain)
    assert observed(adapter, applied(adapter, folded, op.Materialize()), plain) == after
    assert {path: output(adapter, folded, op.Effective(path)) for path in values} == values
    assert observed(adapter, module, spec) == before


@law("L89", needs=(*NEEDS, "parallel"), slow=2, case=lambda a: cases(a.grammar))
def test_a_forward_is_the_same_before_and_after_materialize(adapter: Adapter, case: Case) -> None:
    """Bit for bit at one dtype, split or not; with factors that are not zero (A37, L91)."""
    case = with_extra(case, adapter)
    spec = case.spec
    split = applied(adapter, applied(adapter, built(adapter, spec), Wrap(spec.placement)), op.ApplyLora(1, 0.5))
    factors = [path for path in adapter.meta(split).ids() if path.endswith(f".{LORA}.b")]
    event(f"adapters: {min(len(factors), 2)}")
    split = applied(adapter, split, op.Map((tuple(op.AddConstant(path, 1) for path in factors),)))
    expected = ran(adapter, split, case.signal)

    folded = applied(adapter, split, op.Materialize())

    assert ran(adapter, folded, case.signal) == expected
    assert output(adapter, split, GetPlacement()) == output(adapter, folded, GetPlacement()) == spec.placement.plain
    assert list(adapter.meta(folded).ids()) == list(leaves(spec.tree))


# Records


@law("L90", needs=(*NEEDS, "records", "ids"), slow=2, spec=lambda a: adapted_trees(a.grammar), data=lambda a: st.data())
def test_factors_alone_go_over_a_base(adapter: Adapter, spec: TreeSpec, data: Any) -> None:
    """Their ids and bits are the record's, all else is the module's (A28, A30)."""
    source, target = built(adapter, spec), built(adapter, spec)
    source = applied(adapter, source, op.Map((tuple(op.AddConstant(path, 1) for path in _factors(spec)),)))
    only = output(adapter, source, op.ToRecord(Pieces((f".{LORA}.",))))
    assert [entry.path for entry in only.entries] == _factors(spec)
    before = observed(adapter, target, spec)

    loaded = applied(adapter, target, op.LoadRecord(only, op.LoadOptions(allow_partial=True)))

    after, own = observed(adapter, loaded, spec), observed(adapter, source, spec)
    for path, bits in after.bits.items():
        assert bits == (own if path in _factors(spec) else before).bits[path]
    ids = after.meta.ids()
    assert {path: ids[path] for path in _factors(spec)} == {path: own.meta.ids()[path] for path in _factors(spec)}
    answer = adapter.apply(target, op.LoadRecord(only, STRICT))
    assert isinstance(answer, Refused)
    assert answer.kind == "record_missing"


def _factors(spec: TreeSpec) -> list[str]:
    return [path for path in leaves(spec) if f".{LORA}." in path]


@law("L90", "L57", needs=(*NEEDS, "records", "records.options"), slow=2, spec=lambda a: adapted_trees(a.grammar))
def test_plain_and_adapted_modules_take_each_others_records_as_the_options_say(
    adapter: Adapter, spec: TreeSpec
) -> None:
    """Factors are unused here and missing there; the base loads. A materialized one is plain (A29, A31, A48)."""
    plain = without_attached(spec)
    one, other = built(adapter, spec), built(adapter, plain)
    full, bare = output(adapter, one, op.ToRecord()), output(adapter, other, op.ToRecord())
    factors = tuple(_factors(spec))
    bases = tuple(entry for entry in full.entries if entry.path not in factors)

    for target, record, kind in ((other, full, "record_unused"), (one, bare, "record_missing")):
        refused = adapter.apply(target, op.LoadRecord(record))
        assert isinstance(refused, Refused)
        told = (refused.kind, refused.missing, refused.unused)
        unused, missing = (tuple(sorted(factors)), ()) if kind == "record_unused" else ((), factors)
        assert told == (kind, missing, unused)
        allowed = op.LoadOptions(allow_partial=kind == "record_missing", allow_unused=kind == "record_unused")
        answer = adapter.apply(target, op.LoadRecord(record, allowed))
        assert not isinstance(answer, Refused), answer.message
        assert answer.output == Fitting(missing, unused, ())
        entries = {entry.path: entry.bits for entry in (bases if target is other else bare.entries)}
        assert {path: read(adapter, answer.handle, path) for path in entries} == entries
        assert {path: read(adapter, one, path) for path in factors} == {
            entry.path: entry.bits for entry in full.entries if entry.path in factors
        }

    values = {path: output(adapter, one, op.Effective(path)) for path in attached_to(spec)}
    record = output(adapter, applied(adapter, one, op.Materialize()), op.ToRecord())
    assert {entry.path: entry.bits for entry in record.entries} == {e.path: e.bits for e in bases} | values
    applied(adapter, other, op.LoadRecord(record))


# Lifecycle

KEEPING: Final = (op.Clone, op.Map, op.Train, op.Valid, op.Freeze, op.Unfreeze, op.NoGrad, op.Fork, op.LoadRecord)


@law(
    "L91",
    needs=(*NEEDS, "records", "fork", "map", "state.params", "state.flags"),
    slow=2,
    spec=lambda a: adapted_trees(a.grammar),
    kinds=lambda a: st.lists(st.sampled_from(KEEPING), min_size=1, max_size=4),
    quantized=lambda a: st.booleans(),
)
def test_no_method_changes_a_base_or_a_factor_or_detaches_it(
    adapter: Adapter, spec: TreeSpec, kinds: list[Any], quantized: bool
) -> None:
    """Whatever is called, in any order; what is quantized stays so (A9, A25, A36, A49)."""
    module = built(adapter, spec)
    if quantized and "quantize" in adapter.capabilities:
        module = applied(adapter, module, op.Quantize(Scheme("Q8S"), allow_nonfinite=True))
    record = output(adapter, module, op.ToRecord())
    before = observed(adapter, module, spec)
    values: dict[str, Bits] = {path: output(adapter, module, op.Effective(path)) for path in attached_to(spec)}

    now = module
    for kind in kinds:
        call = op.LoadRecord(record) if kind is op.LoadRecord else kind()
        now = applied(adapter, now, op.Fork(adapter.grammar.devices[-1]) if kind is op.Fork else call)

    after = observed(adapter, now, spec)
    assert after.bits == before.bits
    assert after.meta.ids() == before.meta.ids()
    assert events(adapter, now) == walk(spec)
    assert {path: output(adapter, now, op.Effective(path)) for path in values} == values
    second = adapter.apply(now, op.ApplyLora())
    assert isinstance(second, Refused)
    assert next(iter(attached_to(spec))) in second.message
    assert observed(adapter, now, spec) == after


@law("L91", "L99", needs=(*NEEDS, "parallel"), slow=4, case=lambda a: cases(a.grammar))
def test_a_split_model_is_adapted_where_it_runs(adapter: Adapter, case: Case) -> None:
    """Before it is wrapped or after; with b = 0 it gives what it gave (P52, P63, A19)."""
    case = with_extra(case, adapter)
    spec = case.spec
    model = built(adapter, spec)
    split = applied(adapter, model, Wrap(spec.placement))
    call = op.ApplyLora(2, 1.0)
    one = applied(adapter, applied(adapter, model, call), Wrap(spec.placement))
    other = applied(adapter, split, call)

    metas = [adapter.meta(applied(adapter, handle, Unwrap())).numbered() for handle in (one, other)]
    assert metas[0] == metas[1]
    held = {path: value.device for path, value in params(metas[0]).items()}
    assert all(held[path] == held[path.partition(f".{LORA}.")[0]] for path in held)
    assert ran(adapter, one, case.signal) == ran(adapter, other, case.signal)
    assert [one.path for one in events(adapter, other) if isinstance(one, Seen)] == list(adapter.meta(other).ids())
