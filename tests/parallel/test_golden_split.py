"""Split models that Burn ran over several devices: refusals, devices, values, outputs, gradients, stages, moves, loads.

Where `to_device` finds a value on that device already, it stays a leaf (D4),
while Burn records a copy. `stray` was recorded only: where Burn lets a mapper
move a parameter away, D2 refuses.
"""

import gzip
import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine import Device, Gradients, Tensor, ops, tensor
from modules import Flag, Module, ModuleMapper, ModuleVisitor, Param, RunningState
from modules.parallel import (
    DistributedLayeredModel,
    LayerParallelism,
    LayerPlacement,
    LayerSequence,
    PlacementError,
)
from tests.golden_files import golden_file

pytestmark = pytest.mark.golden

_UNDERSTOOD = {
    *("kind", "model", "placement", "initialised_by_new", "refused", "collect_devices", "devices", "num_params"),
    *("values_at", "same_placement_after", "input", "forward", "into_stages", "fork", "to_device"),
    *("fork_existing", "to_device_existing", "load_from_device_0", "stray"),
}


@cache
def rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Burn's names of the devices, and the cases of kind `split`."""
    with gzip.open(golden_file("burn/placements.jsonl.gz"), "rt") as lines:
        cases = [json.loads(line) for line in lines]
    return cases[0]["names"], [case for case in cases if case["kind"] == "split"]


def device(text: str) -> Device:
    """The device that a case calls `text`: a number, and ``a`` for its autodiff handle."""
    return Device(f"cpu:{text.rstrip('a')}{'+autodiff' if text.endswith('a') else ''}")


def named(found: Device) -> str:
    """What a case calls a device."""
    return f"{found.index}{'a' if found.is_autodiff else ''}"


@dataclass
class Builder:
    """Builds a case's model; counts the initialisers that have run. With `only`, everything on that device."""

    only: str | None = None
    initialised: int = field(default=0)

    def tensor(self, value: Mapping[str, Any]) -> Tensor:
        values = value["values"]
        array = np.frombuffer(bytes.fromhex(values), "<f4") if isinstance(values, str) else np.array(values, "int64")
        place = device(value["device"] if self.only is None else self.only)
        shape = value["shape"] if isinstance(values, str) else [1, 2]
        return Tensor.from_numpy(array.reshape(shape), place)

    def param(self, value: Mapping[str, Any] | None) -> Param | None:
        if value is None:
            return None
        made = self.tensor(value)
        if not value["lazy"]:
            return Param(made).with_id(int(value["id"]))

        def init(where: Device, require_grad: bool) -> Tensor:
            self.initialised += 1
            return Tensor.from_numpy(made.numpy(), where)

        return Param.lazy(init, made.shape, made.dtype, made.device, id=int(value["id"]))


class Layer(Module):
    def __init__(self, spec: Mapping[str, Any], build: Builder) -> None:
        self.weight = build.param(spec["weight"])
        self.bias = build.param(spec.get("bias"))
        mean, table = spec.get("mean"), spec.get("table")
        self.mean = None if mean is None else RunningState(build.tensor(mean), int(mean["id"]))
        self.table = None if table is None else build.tensor(table)
        self.index = build.param(spec.get("index"))
        self.training = Flag(spec["training"]["value"], int(spec["training"]["id"]))
        self.order = spec["order"]

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.val()
        y = y if self.bias is None else y + self.bias.val()
        return y if self.table is None else y * self.table


class Model(LayerParallelism):
    def __init__(self, spec: Mapping[str, Any], build: Builder) -> None:
        self.head = Layer(spec["output"], build)
        self.blocks = [Layer(layer, build) for layer in spec["hidden"]]
        self.stem = Layer(spec["input"], build)
        self.extra = build.param(spec.get("extra"))
        self.into = spec["into"]

    def layer_input(self) -> Module:
        return self.stem

    def layers_hidden(self) -> list[Module]:
        return self.blocks

    def layer_output(self) -> Module:
        return self.head

    def into_layers(self) -> LayerSequence:
        blocks = list(self.blocks)
        hidden = {0: blocks, 1: blocks[::-1], 2: blocks[:-1], 3: [*blocks, *blocks[-1:]]}[self.into]
        return LayerSequence(self.stem, hidden, self.head)


def placement_of(fields: Mapping[str, Any]) -> LayerPlacement:
    return LayerPlacement(device(fields["input"]), [device(d) for d in fields["hidden"]], device(fields["output"]))


class ValuesAt(ModuleVisitor):
    """What `values_at` records of each parameter and running state."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def visit_float(self, path: str, param: Param, /) -> None:
        row = {"path": path, "id": str(int(param.id)), "init": param.is_initialized, "device": named(param.device)}
        if param.is_initialized:
            row |= {"e": param.base().is_require_grad, "tracked": param.base().is_tracked}
        self.seen.append(row)

    def visit_int(self, path: str, param: Param, /) -> None:
        self.visit_float(path, param)
        for name in ("e", "tracked"):
            self.seen[-1].pop(name, None)


def values_at(module: Module) -> list[dict[str, Any]]:
    visitor = ValuesAt()
    module.visit(visitor)
    return visitor.seen


def leaves_that_stay(before: list[dict[str, Any]], to: Device) -> set[str]:
    """Paths of the leaves that are on the device that they are moved to: they stay leaves (D4)."""
    return {row["path"] for row in before if row.get("e") and device(row["device"]) == to}


def recorded(values: list[dict[str, Any]], staying: set[str]) -> list[dict[str, Any]]:
    """A recorded `values_at`, those leaves still being leaves that Burn has copied to where they were."""
    return [row | {"e": True} if row["path"] in staying else row for row in values]


def check_forward(
    module: DistributedLayeredModel[Model],
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    staying: Set[str] = frozenset(),
    source: DistributedLayeredModel[Model] | None = None,
) -> None:
    """The output, its device and the gradients, bit for bit but for the sign of zero (PROGRAMS.md, hex)."""
    values = np.frombuffer(bytes.fromhex(given["values"]), "<f4").reshape(-1, 2)
    output = module(tensor(values, device=device(given["device"])))
    assert set(expected) <= {"output_device", "output", "tracked", "grads", "source_grads"}
    assert named(output.device) == expected["output_device"]
    np.testing.assert_array_equal(output.numpy().ravel(), np.frombuffer(bytes.fromhex(expected["output"]), "<f4"))
    assert output.is_tracked == expected["tracked"]
    assert ("source_grads" in expected) <= (source is not None)
    if output.is_tracked:
        gradients = ops.sum(output).backward()
        check_gradients(module, gradients, expected["grads"], staying)
        if source is not None:
            check_gradients(source, gradients, expected["source_grads"], set())


def check_gradients(module: Module, gradients: Gradients, expected: list[dict[str, Any]], staying: Set[str]) -> None:
    """Each float's gradient, on its device; of a leaf that stayed (D4) its own, where Burn's is only the source's."""
    assert [row["path"] for row in expected] == [
        row["path"] for row in values_at(module) if is_float(module.at(row["path"]))
    ]
    for row in expected:
        leaf = module.at(row["path"])
        found = None if isinstance(leaf, RunningState) else leaf.grad(gradients)
        if row["grad"] is None:
            assert found is None or row["path"] in staying
            continue
        assert found is not None, row["path"]
        assert named(found.device) == row["device"].rstrip("a")
        np.testing.assert_array_equal(found.numpy().ravel(), np.frombuffer(bytes.fromhex(row["grad"]), "<f4"))


def is_float(leaf: Param | RunningState) -> bool:
    return isinstance(leaf, RunningState) or leaf.kind == "float"


def check_refusal(names: Mapping[str, str], case: Mapping[str, Any], error: PlacementError) -> None:
    """The layer and the device that Burn's text names, or both numbers."""
    text = case["refused"]
    numbers = re.fullmatch(r".*: the model has (\d+), the placement gives (\d+)", text)
    if numbers:
        assert (error.found, error.expected) == (int(numbers[1]), int(numbers[2]))
        assert numbers[1] in str(error)
        assert numbers[2] in str(error)
        return
    layer = re.fullmatch(r"(?:the (input|output) layer|(?:the )?hidden layer (\d+)) must be built on (.*)", text)
    assert layer, f"not understood: {text}"
    handle = next(short for short, long in names.items() if long == layer[3])
    assert error.layer == (layer[1] or int(layer[2]))
    assert error.expected == device(handle)
    assert str(device(handle).inner()) in str(error)
    assert str(error.found) in str(error)
    assert error.path in str(error)


def check_move(case: Mapping[str, Any], method: str, existing: bool) -> None:
    """Placement, devices and values after a move, how many initialisers ran, and the forward that follows (P53)."""
    expected = case[f"{method}_existing" if existing else method]
    build = Builder()
    wrapped = DistributedLayeredModel(Model(case["model"], build), placement_of(case["placement"]))
    if existing:
        for row in values_at(wrapped):
            found = wrapped.at(row["path"])
            found.value() if isinstance(found, RunningState) else found.base()
    to = device(expected["to"])
    staying = leaves_that_stay(values_at(wrapped), to) if method == "to_device" else set()
    moved = getattr(wrapped, method)(to)
    assert moved.placement == placement_of(expected["placement"])
    assert [named(found) for found in moved.devices()] == expected["devices"]
    assert values_at(moved) == recorded(expected["values_at"], staying)
    assert build.initialised == expected["initialised"]
    check_forward(moved, case["input"], expected["forward"], staying, wrapped if existing else None)


def check_stages(case: Mapping[str, Any], wrapped: DistributedLayeredModel[Model]) -> None:
    """The layers by stage; with too few or too many of them P48 refuses where Burn does not notice."""
    expected = case["into_stages"]
    if "panic" in expected or case["model"]["into"] in (2, 3):
        if not case["model"]["hidden"] and "panic" not in expected:
            assert wrapped.into_stages().stages == []
            return
        with pytest.raises(PlacementError):
            wrapped.into_stages()
        return
    staged = wrapped.into_stages()
    assert (staged.input.order, staged.output.order) == (expected["input"], expected["output"])
    assert [[named(s.device), [layer.order for layer in s.layers]] for s in staged.stages] == expected["stages"]


def check_stray(case: Mapping[str, Any], wrapped: DistributedLayeredModel[Model]) -> None:
    """A mapper that moves a parameter of a layer off the layer's device is refused with the layer's name (D2)."""
    stray = case["stray"]
    to = device(stray["to"])

    class Move(ModuleMapper):
        def map_float(self, path: str, param: Param, /) -> Param:
            return param.map(lambda value: value.to_device(to)) if path == stray["moved"] else param

    if wrapped.at(stray["moved"]).device == to:
        assert wrapped.map(Move()).placement == wrapped.placement
        return
    with pytest.raises(PlacementError) as refused:
        wrapped.map(Move())
    assert refused.value.found == to
    assert stray["moved"].endswith(refused.value.path)


def check_split(names: Mapping[str, str], case: Mapping[str, Any]) -> None:
    unknown = set(case) - _UNDERSTOOD
    assert not unknown, f"not understood: {unknown}"
    build = Builder()
    model, placement = Model(case["model"], build), placement_of(case["placement"])
    if "refused" in case:
        with pytest.raises(PlacementError) as refused:
            DistributedLayeredModel(model, placement)
        check_refusal(names, case, refused.value)
        return
    wrapped = DistributedLayeredModel(model, placement)
    assert build.initialised == case["initialised_by_new"]
    given = [device(text) for text in case["collect_devices"]["given"]]
    assert [named(found) for found in wrapped.collect_devices(given)] == case["collect_devices"]["result"]
    assert [named(found) for found in wrapped.devices()] == case["devices"]
    assert wrapped.num_params() == case["num_params"]
    assert values_at(wrapped) == case["values_at"]
    same = {"valid": wrapped.valid().placement == placement, "train": wrapped.train().placement == placement}
    assert same == case["same_placement_after"]
    check_stages(case, wrapped)
    check_forward(wrapped, case["input"], case["forward"])
    for method in ("fork", "to_device"):
        check_move(case, method, existing=False)
        check_move(case, method, existing=True)
    check_load(case)
    if "stray" in case:
        check_stray(case, DistributedLayeredModel(Model(case["model"], Builder()), placement))


def check_load(case: Mapping[str, Any]) -> None:
    """A record of the model built on device 0 goes straight to each layer's device, and makes no initial value."""
    expected, build = case["load_from_device_0"], Builder()
    placement = placement_of(case["placement"])
    record = Model(case["model"], Builder(only="0")).into_record()
    loaded = DistributedLayeredModel(Model(case["model"], build), placement).load_record(record)
    assert build.initialised == expected["initialised"]
    assert (loaded.placement == placement) == expected["placement_kept"]
    assert values_at(loaded) == expected["values_at"]


def test_every_split_model_does_what_burn_recorded() -> None:
    """P24 to P57, case by case."""
    names, cases = rows()
    assert len(cases) >= 20
    for number, case in enumerate(cases):
        try:
            check_split(names, case)
        except Exception as error:
            error.add_note(f"split case {number}")
            raise
