"""The display of modules (M101 to M103), and how its settings are combined."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, Tensor, zeros
from modules import Array, DisplaySettings, EnumModule, Flag, Module, ModuleError, Param, display, skip
from modules.parallel import DistributedLayeredModel, LayerParallelism, LayerPlacement

from .small_modules import Block, Holder, Linear, any_module, numbers

settings = st.builds(
    DisplaySettings,
    show_param_id=st.none() | st.booleans(),
    show_all_attributes=st.none() | st.booleans(),
    show_num_parameters=st.none() | st.booleans(),
)


class Summed(Module):
    """A module with a summary and settings of its own."""

    def __init__(self) -> None:
        self.weight = Param(numbers(2, 2))
        self.inner = Linear(2, 1)

    def display_settings(self) -> DisplaySettings:
        return DisplaySettings(new_line_after_attribute=False)

    def display_content(self) -> list[tuple[str, Any]]:
        return [("size", 5), ("name", "x"), ("inner", self.inner), ("pair", (self.weight, 2))]


def test_a_module_shows_one_attribute_per_line_then_its_parameters():
    """M101, with every kind of child."""
    assert Block(2).display() == (
        "Block {\n"
        "  linear: Linear {\n"
        "    d_input: 2\n"
        "    d_output: 2\n"
        "    weight: ParamTensor {rank: 2, shape: [2, 2], kind: float}\n"
        "    bias: ParamTensor {rank: 1, shape: [2], kind: float}\n"
        "    params: 6\n"
        "  }\n"
        "  steps: ParamTensor {rank: 1, shape: [2], kind: int}\n"
        "  training: enabled\n"
        "  mean: RunningState\n"
        "  table: Tensor {rank: 1, shape: [2]}\n"
        "  params: 8\n"
        "}"
    )


def test_containers_have_headings_and_no_count():
    """M101, M102: lists, arrays, tuples, dicts, and empty ones."""
    flag = Flag(False)
    module = Holder(a=[flag], b=Array([flag, flag]), c=(flag, 3, None), d={"x": flag, "y": "s"}, e=[], f={})

    assert module.display() == (
        "Holder {\n"
        "  a: Vec<0..1> {\n    0: disabled\n  }\n"
        "  b: [0..2] {\n    0: disabled\n    1: disabled\n  }\n"
        "  c: (L0, L1, L2) {\n    0: disabled\n    1: 3\n    2: None\n  }\n"
        "  d: Dict<0..2> {\n    x: disabled\n    y: 's'\n  }\n"
        "  e: Vec<0..0>\n"
        "  f: Dict<0..0>\n"
        "}"
    )


def test_configuration_and_skipped_fields_show_their_repr():
    """M102: whatever they hold."""
    module = Holder(a="x", b=[1, None], c=skip([Linear(1, 1)]), d=Device("cpu:1"), e=skip(None))

    assert module.display() == (
        f"Holder {{\n  a: 'x'\n  b: [1, None]\n  c: {module.fields()['c']!r}\n  d: Device('cpu:1')\n  e: None\n}}"
    )


def test_an_optional_is_shown_at_its_own_level():
    """M101: as what it holds, or None."""
    module = Holder(inner=Linear(1, 1, bias=False))

    assert module.display(DisplaySettings(show_num_parameters=False)) == (
        "Holder {\n"
        "  inner: Linear {\n"
        "    d_input: 1\n"
        "    d_output: 1\n"
        "    weight: ParamTensor {rank: 2, shape: [1, 1], kind: float}\n"
        "    bias: None\n"
        "  }\n"
        "}"
    )


def test_an_enum_is_headed_by_its_variant():
    """M101: its attribute is _0, and it has a count."""

    class Act(EnumModule): ...

    shown = DisplaySettings(new_line_after_attribute=False)

    assert display(Act("Scaled", Param(numbers(3))), shown) == (
        "Scaled {_0: ParamTensor {rank: 1, shape: [3], kind: float}, params: 3}"
    )


def test_the_function_takes_whatever_can_stand_in_a_module():
    """DESIGN: containers too; what no module could hold shows its repr."""
    linear = Linear(1, 1)
    oneline = DisplaySettings(new_line_after_attribute=False)

    assert display(None) == "None"
    assert display(Flag(True)) == "enabled"
    assert display(3) == "3"
    assert display([], oneline) == "Vec<0..0>"
    assert display([linear], oneline) == f"Vec<0..1> {{0: {linear.display(oneline)}}}"
    assert display((linear, None), oneline) == f"(L0, L1) {{0: {linear.display(oneline)}, 1: None}}"
    assert display({"a": linear}, oneline) == f"Dict<0..1> {{a: {linear.display(oneline)}}}"
    assert display(numbers(2).numpy()) == "array([1., 2.], dtype=float32)"


def test_ids_are_shown_on_request():
    """M101: before the closing brace, of parameters alone."""
    param = Param(numbers(2)).with_id(1)
    module = Holder(weight=param, on=Flag(True))
    text = module.display(DisplaySettings(show_param_id=True, show_num_parameters=False))

    assert text == (
        "Holder {\n  weight: ParamTensor {rank: 1, shape: [2], kind: float, id: 0400000000000}\n  on: enabled\n}"
    )


def test_a_summary_stands_in_place_of_the_fields_unless_all_are_asked_for():
    """M102: its values may be anything; the count is that of the whole module."""
    inner = "Linear {d_input: 2, d_output: 1, weight: ParamTensor {rank: 2, shape: [2, 1], kind: float}, bias: "
    inner += "ParamTensor {rank: 1, shape: [1], kind: float}, params: 3}"
    weight = "ParamTensor {rank: 2, shape: [2, 2], kind: float}"

    assert Summed().display() == (
        f"Summed {{size: 5, name: 'x', inner: {inner}, pair: (L0, L1) {{0: {weight}, 1: 2}}, params: 7}}"
    )
    assert Summed().display(DisplaySettings(show_all_attributes=True)) == (
        f"Summed {{weight: {weight}, inner: {inner}, params: 7}}"
    )


def test_what_a_module_sets_holds_below_it_and_what_the_caller_sets_everywhere():
    """M102: the caller wins, then the outer module; beside it nothing is changed."""
    module = Holder(first=Summed(), second=Linear(1, 1))
    lines = module.display().splitlines()

    assert lines[1].startswith("  first: Summed {size: 5")
    assert lines[1].endswith("params: 7}")
    assert lines[2] == "  second: Linear {"
    assert module.display(DisplaySettings(new_line_after_attribute=True)).count("\n    size: 5\n") == 1
    assert "\n" not in module.display(DisplaySettings(new_line_after_attribute=False))


def test_a_display_initialises_nothing():
    """M103: a lazy parameter shows the shape that it is declared with."""

    def init(device: Device, require_grad: bool) -> Tensor:
        raise AssertionError("displayed")

    lazy = Param.lazy(init, (2, 3), "float32", "cpu:0").with_mappers(init=lambda tensor: tensor.T)
    text = Holder(weight=lazy).display()

    assert text == "Holder {\n  weight: ParamTensor {rank: 2, shape: [2, 3], kind: float}\n  params: 6\n}"
    assert not lazy.is_initialized


def test_a_split_model_shows_its_model():
    """M6: the wrapper adds nothing of its own, here as in paths."""

    class Model(LayerParallelism):
        def __init__(self) -> None:
            self.stem = Linear(2, 2)
            self.blocks = [Linear(2, 2)]
            self.head = Linear(2, 2)

        def layer_input(self) -> Module:
            return self.stem

        def layers_hidden(self) -> Any:
            return self.blocks

        def layer_output(self) -> Module:
            return self.head

        def display_settings(self) -> DisplaySettings:
            return DisplaySettings(indentation_size=1)

    model = Model()
    wrapped = DistributedLayeredModel(model, LayerPlacement("cpu:0", ["cpu:0"], "cpu:0"))

    assert wrapped.display() == model.display()
    assert wrapped.display().startswith("Model {\n stem: Linear {\n  d_input: 2\n")


def test_a_negative_indentation_is_refused():
    """DESIGN, errors."""
    with pytest.raises(ModuleError, match="indentation_size is -1"):
        DisplaySettings(indentation_size=-1)


@given(any_module, settings)
def test_one_line_and_many_lines_say_the_same(case: tuple[Module, Any], chosen: DisplaySettings):
    """M102: a line break after an attribute is a comma without it, in every setting."""
    module, runs = case
    lines = display(module, DisplaySettings(indentation_size=0).over(chosen))
    line = display(module, DisplaySettings(new_line_after_attribute=False).over(chosen))

    assert line == lines.replace("{\n", "{").replace("\n}", "}").replace("\n", ", ")
    assert not any(runs.values())


@given(any_module, settings, st.integers(0, 5))
def test_each_line_is_indented_by_its_depth(case: tuple[Module, Any], chosen: DisplaySettings, size: int):
    """M101, M102: depth is the number of blocks that are open; a closing brace stands one level higher."""
    module, _ = case
    depth = 0
    for line in display(module, DisplaySettings(indentation_size=size).over(chosen)).splitlines():
        depth -= line.strip() == "}"
        assert len(line) - len(line.lstrip(" ")) == depth * size
        depth += line.endswith(" {")
    assert depth == 0


@given(any_module, settings)
def test_counts_are_lines_of_their_own(case: tuple[Module, Any], chosen: DisplaySettings):
    """M99, M102: without them the text is the same less those lines; the last one counts the whole module."""
    module, _ = case
    lines = display(module, DisplaySettings(show_num_parameters=True).over(chosen)).splitlines()
    without = display(module, DisplaySettings(show_num_parameters=False).over(chosen)).splitlines()
    counts = [int(match[1]) for line in lines if (match := re.fullmatch(r" *params: (\d+)", line))]

    assert without == [line for line in lines if not re.fullmatch(r" *params: \d+", line)]
    assert all(counts)
    assert counts[-1:] == ([module.num_params()] if module.num_params() else [])


@given(settings, settings, settings)
def test_settings_over_settings_are_associative_and_keep_what_is_set(
    one: DisplaySettings, two: DisplaySettings, three: DisplaySettings
):
    """M102: so it does not matter in which order a tree hands them down."""
    assert one.over(two).over(three) == one.over(two.over(three))
    assert one.over(one) == one.over(DisplaySettings()) == DisplaySettings().over(one) == one


def test_a_parameter_that_is_no_number_is_not_counted():
    """M99: integers and constants have no params line."""
    assert "params" not in Holder(steps=Param(zeros((2,), device="cpu:0", dtype="int64")), table=numbers(2)).display()
