"""The `repr` of modules and of their read-only containers (DESIGN, repr and display)."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine import Device, ops
from modules import Array, EnumModule, Flag, Module, ModuleMapper, Param, ParamGroup, RunningState, skip
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement
from modules.representation import brief

from .small_modules import AUTODIFF, Block, Holder, LazyLinear, Linear, Stack, any_module, modules, numbers

MARK = (7, 5, 3)


class Layer(Module):
    """A layer with a number, so that no two have the same configuration."""

    def __init__(self, index: int, device: str = "cpu:0") -> None:
        self.index = index
        self.linear = Linear(2, 2, device, bias=False)


def lines(module: Any) -> list[str]:
    return repr(module).splitlines()


def test_a_module_of_leaves_takes_one_line():
    """Type, configuration, device, number of parameters, then each leaf."""
    assert repr(Linear(2, 3)) == (
        "Linear(d_input=2, d_output=3) on cpu:0, 9 params: weight float32 [2, 3], bias float32 [3]"
    )
    assert repr(Linear(2, 3, bias=False)) == (
        "Linear(d_input=2, d_output=3) on cpu:0, 6 params: weight float32 [2, 3], bias None"
    )


def test_every_kind_of_child_is_told():
    """Integers, flags, running states and constants; the device is said once."""
    assert repr(Block(2)) == (
        "Block on cpu:0, 8 params\n"
        "  linear: Linear(d_input=2, d_output=2), 6 params: weight float32 [2, 2], bias float32 [2]\n"
        "  steps: int64 [2]\n"
        "  training: enabled\n"
        "  mean: float32 [2] running\n"
        "  table: float32 [2] constant"
    )


def test_a_module_without_children_is_its_type_and_configuration():
    """M5."""
    assert repr(Holder()) == "Holder"
    assert repr(Holder(prob=0.5, name="x")) == "Holder(prob=0.5, name='x')"


def test_a_device_is_named_where_it_is_not_the_one_around():
    """With the autodiff flag of the tensors there."""
    module = Holder(near=Linear(1, 1, bias=False), far=Linear(1, 1, AUTODIFF, bias=False), here=numbers(1))

    assert lines(module) == [
        "Holder on cpu:0, cpu:0+autodiff, 2 params",
        "  near: Linear(d_input=1, d_output=1) on cpu:0, 1 param: weight float32 [1, 1], bias None",
        "  far: Linear(d_input=1, d_output=1) on cpu:0+autodiff, 1 param: weight float32 [1, 1], bias None",
        "  here: float32 [1] constant on cpu:0",
    ]


def test_lazy_is_said_where_not_all_around_is_lazy():
    """And showing it makes nothing."""
    made: list[Device] = []
    module = Holder(a=LazyLinear(2, 2, made=made), b=LazyLinear(2, 2, made=made))

    assert lines(module) == [
        "Holder on cpu:0, lazy, 8 params",
        "  a: LazyLinear, 4 params: weight float32 [2, 2]",
        "  b: LazyLinear, 4 params: weight float32 [2, 2]",
    ]
    assert not made
    module.a.weight.val()
    assert lines(module) == [
        "Holder on cpu:0, 8 params",
        "  a: LazyLinear, 4 params: weight float32 [2, 2]",
        "  b: LazyLinear, lazy, 4 params: weight float32 [2, 2]",
    ]
    assert repr(Holder(made=Param(numbers(1)), weight=module.b.weight)) == (
        "Holder on cpu:0, 5 params: made float32 [1], weight float32 [2, 2] lazy"
    )


def test_frozen_is_said_where_not_all_around_is_frozen():
    """So that a group that matched nothing is noticed (M92); integers and running states never train anyway."""
    module = Holder(a=Linear(1, 1), b=Block(1), c=[Linear(1, 1), Linear(1, 1)])

    assert lines(module.freeze_group(ParamGroup.from_any_predicates(["a.", "c.0", "linear.bias"]))) == [
        "Holder on cpu:0, 9 params",
        "  a: Linear(d_input=1, d_output=1), frozen, 2 params: weight float32 [1, 1], bias float32 [1]",
        "  b: Block, 3 params",
        "    linear: Linear(d_input=1, d_output=1), 2 params: weight float32 [1, 1], bias float32 [1] frozen",
        "    steps: int64 [2]",
        "    training: enabled",
        "    mean: float32 [1] running",
        "    table: float32 [1] constant",
        "  c.0: Linear(d_input=1, d_output=1), frozen, 2 params: weight float32 [1, 1], bias float32 [1]",
        "  c.1: Linear(d_input=1, d_output=1), 2 params: weight float32 [1, 1], bias float32 [1]",
    ]
    assert lines(module.no_grad())[:2] == [
        "Holder on cpu:0, frozen, 9 params",
        "  a: Linear(d_input=1, d_output=1), 2 params: weight float32 [1, 1], bias float32 [1]",
    ]
    lazy = Holder(made=Param(numbers(1)), weight=LazyLinear(1, 1).weight).freeze_group(ParamGroup.from_path("weight"))
    assert repr(lazy) == "Holder on cpu:0, 2 params: made float32 [1], weight float32 [1, 1] lazy frozen"


def test_a_tied_parameter_is_counted_once_and_says_where_it_stood_before():
    """D8; beside it stands what num_params counts more."""
    module = Stack(2, ["cpu:0"])

    assert lines(module)[0] == "Stack on cpu:0, 8 params + 4 tied"
    assert lines(module)[-1] == "  head: float32 [2, 2] tied to blocks.0.linear.weight"
    assert module.num_params() == 12


def test_items_that_are_alike_share_a_line():
    """Runs in lists, arrays and tuples; differing ones stand for themselves."""
    blocks = [Linear(1, 1) for _ in range(3)] + [Linear(1, 2)] + [Linear(1, 1) for _ in range(2)]
    module = Holder(blocks=blocks, pair=(Linear(1, 1), Linear(1, 1)), ids=Array([Flag(True), Flag(True), Flag(False)]))

    assert lines(module) == [
        "Holder on cpu:0, 18 params",
        "  blocks.0-2: 3 x Linear(d_input=1, d_output=1), 2 params each: weight float32 [1, 1], bias float32 [1]",
        "  blocks.3: Linear(d_input=1, d_output=2), 4 params: weight float32 [1, 2], bias float32 [2]",
        "  blocks.4-5: 2 x Linear(d_input=1, d_output=1), 2 params each: weight float32 [1, 1], bias float32 [1]",
        "  pair.0-1: 2 x Linear(d_input=1, d_output=1), 2 params each: weight float32 [1, 1], bias float32 [1]",
        "  ids.0-1: 2 x enabled",
        "  ids.2: disabled",
    ]


def test_alike_items_may_differ_in_configuration_which_is_told():
    """Up to three values each, of more the first and the last."""
    assert lines(Holder(layers=[Layer(index) for index in range(3)]))[1:] == [
        "  layers.0-2: 3 x Layer(index=0 | 1 | 2), 4 params each",
        "    linear: Linear(d_input=2, d_output=2), 4 params: weight float32 [2, 2], bias None",
    ]
    assert "  layers.0-8: 9 x Layer(index=0 … 8), 4 params each" in lines(
        Holder(layers=[Layer(index) for index in range(9)])
    )


def test_what_is_like_an_earlier_part_but_elsewhere_takes_one_line():
    """So a model that is cut over many devices shows its layer once; what else differs is told."""

    class Outer(Module):
        def __init__(self, index: int, device: str) -> None:
            self.layer = Layer(index, device)

    module = Holder(blocks=[Outer(index, f"cpu:{index // 2}") for index in range(6)])

    assert lines(module) == [
        "Holder on cpu:0, cpu:1, cpu:2, 24 params",
        "  blocks.0-1: 2 x Outer on cpu:0, 4 params each",
        "    layer: Layer(index=0 | 1), 4 params",
        "      linear: Linear(d_input=2, d_output=2), 4 params: weight float32 [2, 2], bias None",
        "  blocks.2-3: 2 x Outer on cpu:1, 4 params each, like blocks.0-1 but layer.index=2 | 3",
        "  blocks.4-5: 2 x Outer on cpu:2, 4 params each, like blocks.0-1 but layer.index=4 | 5",
    ]


def test_parts_of_another_structure_or_over_other_devices_are_shown_in_full():
    """One that lies on several devices is like another only if it lies on the same ones."""

    class Pair(Module):
        def __init__(self, first: str, second: str) -> None:
            self.first = Layer(0, first)
            self.second = Layer(0, second)

    blocks = [Pair("cpu:0", "cpu:1"), Pair("cpu:1", "cpu:0"), Pair("cpu:0", "cpu:1"), Pair("cpu:2", "cpu:2")]

    assert [line for line in lines(Holder(blocks=blocks)) if "  blocks." in line] == [
        "  blocks.0: Pair on cpu:0, cpu:1, 8 params",
        "  blocks.1: Pair on cpu:1, cpu:0, 8 params",
        "  blocks.2: Pair on cpu:0, cpu:1, 8 params, like blocks.0",
        "  blocks.3: Pair on cpu:2, 8 params",
    ]


def test_what_takes_more_than_a_line_to_tell_is_shown_in_full():
    """Differences in long configuration."""

    class Named(Module):
        def __init__(self, name: str, size: int) -> None:
            self.layer = Holder(name=name * 30, linear=Linear(1, size))

    module = Holder(blocks=[Named("a", 1), Named("b", 2), Named("b", 1)])

    assert [line for line in lines(module) if "  blocks." in line] == [
        "  blocks.0: Named, 2 params",
        "  blocks.1: Named, 4 params",
        "  blocks.2: Named, 2 params, like blocks.0 but layer.name='bbbbbbbbbbbb...bbbbbbbbbbbbb'",
    ]
    far = Holder(blocks_of_a_rather_long_name=[Named("a", 1), Named("b", 2), Named("b", 1)])
    assert lines(far)[-2] == "    layer: Holder(name='bbbbbbbbbbbb...bbbbbbbbbbbbb'), 2 params"


def test_lazy_and_made_items_are_not_alike():
    """Nor are tied and untied ones; a constant in several places is no tie, for it is not counted."""
    layers = [LazyLinear(1, 1) for _ in range(3)]
    layers[1].weight.val()
    constant = numbers(1)
    module = Holder(layers=layers, same=[constant, constant], blocks=[Holder(w=layers[1].weight), LazyLinear(1, 1)])

    assert lines(module)[1:] == [
        "  layers.0: LazyLinear, lazy, 1 param: weight float32 [1, 1]",
        "  layers.1: LazyLinear, 1 param: weight float32 [1, 1]",
        "  layers.2: LazyLinear, lazy, 1 param: weight float32 [1, 1]",
        "  same.0-1: 2 x float32 [1] constant",
        "  blocks.0: Holder, 1 param: w float32 [1, 1] tied to layers.1.weight",
        "  blocks.1: LazyLinear, lazy, 1 param: weight float32 [1, 1]",
    ]


def test_a_model_of_thirty_layers_over_three_devices_fits_on_one_screen():
    """Less than 25 lines of at most 120 characters, whatever the number of layers."""
    module = Stack(8, [f"cpu:{index // 10}" for index in range(30)])

    assert len(lines(module)) < 25
    assert max(map(len, lines(module))) <= 120
    assert len(lines(Stack(8, [f"cpu:{index // 100}" for index in range(300)]))) == len(lines(module))


def test_containers_lend_their_items_their_name():
    """Nested ones too; empty ones and configuration inside are told."""
    linear = Linear(1, 1, bias=False)
    module = Holder(a=[[linear], []], b={"x": linear, "y": None}, c=(linear, 3), d={}, e=())
    text = "Linear(d_input=1, d_output=1), 1 param: weight float32 [1, 1]"

    assert lines(module) == [
        "Holder on cpu:0, 1 param + 2 tied",
        f"  a.0.0: {text}, bias None",
        "  a.1: empty list",
        f"  b.x: {text} tied to a.0.0.weight, bias None",
        "  b.y: None",
        f"  c.0: {text} tied to a.0.0.weight, bias None",
        "  c.1: 3",
        "  d: empty dict",
        "  e: empty tuple",
    ]


def test_equal_lists_of_equal_lists_are_folded_twice():
    """Both numbers are told."""
    module = Holder(grid=[[Param(numbers(2)) for _ in range(3)] for _ in range(2)])

    assert lines(module) == ["Holder on cpu:0, 12 params", "  grid.0-1.0-2: 2 x 3 x float32 [2]"]


def test_a_container_is_headed_by_its_type_and_length():
    """What `model.blocks` shows at the prompt."""
    module = Holder(a=[Linear(1, 1, bias=False)] * 2, b={"x": None}, c=Array([Flag(True)]), d=[None])

    assert lines(module.a) == [
        "ReadOnlyList of 2 on cpu:0, 1 param + 1 tied",
        "  0: Linear(d_input=1, d_output=1), 1 param: weight float32 [1, 1], bias None",
        "  1: Linear(d_input=1, d_output=1), 1 param: weight float32 [1, 1] tied to 0.weight, bias None",
    ]
    assert repr(module.b) == "ReadOnlyDict of 1: x None"
    assert repr(module.c) == "Array of 1: 0 enabled"
    assert repr(module.d) == "ReadOnlyList of 1: 0 None"
    assert repr(Holder(a=[]).a) == "ReadOnlyList of 0"


def test_an_enum_module_names_its_variant():
    """M7: it is a component of the paths below."""

    class Act(EnumModule): ...

    assert lines(Act("Off", Linear(1, 1, bias=False))) == [
        "Act on cpu:0, 1 param",
        "  Off: Linear(d_input=1, d_output=1), 1 param: weight float32 [1, 1], bias None",
    ]


def test_large_numbers_are_rounded_to_millions_and_billions():
    """Smaller ones are exact."""

    def lazy(*shape: int) -> Module:
        return Holder(w=Param.lazy(lambda device, require_grad: numbers(1), shape, "float32", "cpu:0"))

    assert "999,999 params" in repr(lazy(999_999))
    assert "1.0M params" in repr(lazy(1_000_000))
    assert "28.3M params" in repr(lazy(49152, 576))
    assert "1.2B params" in repr(lazy(1_235_000, 1000))


def test_configuration_is_shown_briefly():
    """On one line; functions and types by name; long ones cut in the middle; a failing repr does no harm."""

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert brief(ops.add) == "add"
    assert brief(len) == "len"
    assert brief(Device) == "Device"
    assert brief("a\n b") == r"'a\n b'"
    assert len(brief("x" * 1000)) <= 40
    assert len(brief(dict.fromkeys(range(50), "y" * 50))) <= 40
    assert "\n" not in brief(numbers(40, 40))
    assert "Broken" in brief(Broken())
    assert brief(list(range(1000))).startswith("[0, 1, 2")
    assert len(lines(Holder(table=skip(numbers(40, 40)), other=[1] * 50))[0]) < 90


def test_a_split_model_says_so_and_shows_its_model():
    """What the README prints."""

    class Model(LayerParallelism):
        def __init__(self, placement: LayerPlacement) -> None:
            self.stem = Linear(2, 2, str(placement.input))
            self.blocks = [Linear(2, 2, str(device)) for device in placement.hidden]
            self.head = Linear(2, 2, str(placement.output))

        def layer_input(self) -> Module:
            return self.stem

        def layers_hidden(self) -> Any:
            return self.blocks

        def layer_output(self) -> Module:
            return self.head

    placement = LayerPlacement("cpu:0", ["cpu:0", "cpu:1"], "cpu:1")
    model = Model(placement)
    wrapped = DistributedLayeredModel(model, placement)

    assert lines(wrapped) == [f"DistributedLayeredModel of {lines(model)[0]}", *lines(model)[1:]]
    assert lines(Holder(inner=wrapped))[1] == f"  inner: {lines(model)[0].replace(' on cpu:0, cpu:1', '')}"


@given(any_module)
def test_the_counts_of_the_first_line_add_up(case: tuple[Module, Any]):
    """Each parameter and running state once, and the rest as tied, together num_params (M99)."""
    module, runs = case
    distinct = {id(leaf): leaf for leaf in leaves_of(module)}
    once = sum(size_of(leaf) for leaf in distinct.values())
    match = re.search(r", ([\d,]+) params?(?: \+ ([\d,]+) tied)?(?:$|:)", lines(module)[0])
    found = tuple(int((text or "0").replace(",", "")) for text in match.groups()) if match else (0, 0)

    assert found == (once, module.num_params() - once)
    assert not any(runs.values())


def leaves_of(module: Module) -> list[Param | RunningState]:
    """The parameters of floats and the running states, each place once, found by path."""
    paths: list[str] = []

    class Paths(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            paths.append(path)
            return param

    module.map(Paths())
    return [module.at(path) for path in paths]


def size_of(leaf: Param | RunningState) -> int:
    shape = leaf.value().shape if isinstance(leaf, RunningState) else leaf.shape
    size = 1
    for extent in shape:
        size *= extent
    return size


@given(any_module, st.data())
def test_no_leaf_is_hidden(case: tuple[Module, Any], data: st.DataObject):
    """Whichever parameter, running state or flag is changed, one can see it."""
    module, _ = case

    class Places(ModuleMapper):
        def __init__(self, changed: int = -1) -> None:
            self.seen = -1
            self.changed = changed

        def _is_next(self) -> bool:
            self.seen += 1
            return self.seen == self.changed

        def map_float(self, path: str, param: Param, /) -> Param:
            return param.map(lambda base: numbers(*MARK, device=str(base.device))) if self._is_next() else param

        map_int = map_bool = map_float

        def map_flag(self, path: str, flag: Flag, /) -> Flag:
            return flag.map(lambda value: not value) if self._is_next() else flag

    count = Places()
    module.map(count)
    changed = module.map(Places(data.draw(st.integers(0, count.seen))))

    assert repr(changed) != repr(module)


@given(any_module, st.data())
def test_what_is_frozen_can_be_seen(case: tuple[Module, Any], data: st.DataObject):
    """M92: whichever parameter that trains it is; and nothing is made to show it."""
    module, runs = case
    places = [path for path in ParamGroup.all().paths(module) if getattr(module.at(path), "trainable", False)]
    group = ParamGroup.from_paths(data.draw(st.sets(st.sampled_from(places))) if places else [])
    frozen = module.set_require_grad_group(group, False)

    assert (repr(frozen) != repr(module)) == bool(group.paths(module))
    assert not any(runs.values())


@given(any_module, st.sampled_from(("cpu:0", "cpu:7")))
def test_a_moved_module_names_one_device(case: tuple[Module, Any], device: str):
    """If it names any: a module without tensors has none (M116)."""
    module, _ = case
    named = {
        text.removesuffix("+autodiff") for text in re.findall(r"cpu:\d+(?:\+autodiff)?", repr(module.to_device(device)))
    }

    assert named <= {device}


@given(modules())
def test_a_clone_looks_the_same(case: tuple[Module, Any]):
    """M26."""
    module, _ = case

    assert repr(module.clone()) == repr(module)
