"""Where a model's layers go: the placement that the options ask for, and the table that shows one."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from engine import Device, transfer
from examples.command_line import sizes_of, stages_of
from examples.errors import ArgumentError
from examples.packages import library
from modules import Module, ModuleVisitor, Param
from modules.parallel import (
    DeviceMemory,
    DistributedLayeredModel,
    LayerMemory,
    LayerParallelism,
    LayerPlacement,
    LayerStage,
)


def placement_of(
    devices: Sequence[Device],
    num_layers: int,
    measured: Callable[[], LayerMemory],
    *,
    is_tied: bool,
    stages: str | None = None,
    memory: str | None = None,
) -> LayerPlacement:
    """The placement that options ask for: by stages, by memory, or in even shares.

    Args:
        devices: in forward order.
        num_layers: hidden layers of the model.
        measured: gives the bytes of the model's layers; called only where they matter.
        is_tied: whether the output layer shares the input layer's weights, so that it must run where they are.
        stages: the option --stages, layers for each device.
        memory: the option --memory, bytes of each device.

    Raises:
        ArgumentError: an option cannot be read, does not add up, or the layers do not fit.
    """
    if memory is not None:
        return _fitting(devices, sizes_of(memory, devices), measured())
    if stages is not None:
        counts = stages_of(stages, devices, num_layers)
        placement = LayerPlacement.from_stages(list(map(LayerStage, devices, counts)))
    else:
        placement = LayerPlacement.even(devices, num_layers)
    return dataclasses.replace(placement, output=placement.input) if is_tied else placement


def tell_unused(name: str, devices: Sequence[Device], placement: LayerPlacement) -> None:
    """Name in one line, on the error stream, the devices that have no layer of a placement, if there are any.

    Args:
        name: of the command.
        devices: those that the option names, in its order.
        placement: made of them.
    """
    used = placement.devices()
    unused = [str(device.inner()) for device in dict.fromkeys(devices) if device not in used]
    if unused:
        print(f"{name}: no layer goes to {', '.join(unused)}", file=sys.stderr)


def _fitting(devices: Sequence[Device], sizes: Sequence[int], memory: LayerMemory) -> LayerPlacement:
    placement = LayerPlacement.by_memory(list(map(DeviceMemory, devices, sizes)), memory)
    if placement is None:
        total = memory.input + sum(memory.hidden) + memory.output.nbytes
        given = ", ".join(f"{size:,} on {device}" for device, size in zip(devices, sizes, strict=True))
        largest = max((memory.input, *memory.hidden, memory.output.nbytes))
        raise ArgumentError(
            f"--memory: the layers do not fit in order; together they take {total:,} bytes, "
            f"the largest {largest:,}, and there are {given}"
        )
    return placement


class Row(NamedTuple):
    """One line of a placement's table: what runs there, where, and the number and bytes of its parameters."""

    stage: str
    device: Device
    layers: str
    num_params: int
    nbytes: int


def rows(model: DistributedLayeredModel[Any]) -> list[Row]:
    """Input layer, stages and output layer of a split model: the parameters of each, shared ones in the first."""
    inner: LayerParallelism = model.model
    placement, counter = model.placement, _Counter()
    hidden = list(inner.layers_hidden())
    made = [Row("input", placement.input, "input", *counter.of([inner.layer_input()]))]
    start = 0
    for number, stage in enumerate(placement.stages()):
        end = start + stage.num_hidden_layers
        made.append(Row(str(number), stage.device, _layers_text(start, end), *counter.of(hidden[start:end])))
        start = end
    output = "output, tied to input" if LayerMemory.of(inner).output.shares_input else "output"
    return [*made, Row("output", placement.output, output, *counter.of([inner.layer_output()]))]


def _layers_text(start: int, end: int) -> str:
    return f"{start}" if end == start + 1 else f"{start}–{end - 1} ({end - start})"


class _Counter(ModuleVisitor):
    """Counts the elements of parameters and their bytes, each parameter once."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._counted = (0, 0)

    def of(self, layers: Sequence[Module]) -> tuple[int, int]:
        """Elements and bytes of the parameters of these layers that were in none before."""
        self._counted = (0, 0)
        for layer in layers:
            layer.visit(self)
        return self._counted

    def visit_float(self, path: str, param: Param, /) -> None:
        if param.id not in self._seen:
            self._seen.add(param.id)
            elements, nbytes = self._counted
            self._counted = elements + param.num_elements, nbytes + param.nbytes

    visit_int = visit_bool = visit_float


def placement_table(model: DistributedLayeredModel[Any]) -> Any:
    """The placement of a model as a table of the library `rich`; where it is too wide, cells are folded, never cut."""
    table = library("rich.table").Table(box=library("rich.box").SIMPLE)
    for heading in ("stage", "device", "layers"):
        table.add_column(heading, overflow="fold")
    for heading in ("parameters", "bytes"):
        table.add_column(heading, justify="right", overflow="fold")
    found = rows(model)
    for row in found:
        table.add_row(row.stage, str(row.device.inner()), row.layers, f"{row.num_params:,}", f"{row.nbytes:,}")
    table.add_section()
    table.add_row("all", "", "", f"{sum(r.num_params for r in found):,}", f"{sum(r.nbytes for r in found):,}")
    return table


def placement_json(placement: LayerPlacement) -> dict[str, Any]:
    """A placement as JSON has it: where the input layer, each hidden layer and the output layer are; no autodiff."""
    return {
        "input": str(placement.input.inner()),
        "hidden": [str(device.inner()) for device in placement.hidden],
        "output": str(placement.output.inner()),
    }


def copies_json(log: transfer.TransferLog) -> list[dict[str, Any]]:
    """What a log has seen, one entry for each way that something went."""
    return [
        {
            "source": str(source),
            "destination": str(destination),
            "route": route,
            "copies": count.copies,
            "nbytes": count.nbytes,
        }
        for (source, destination, route), count in log.items()
    ]


def copies_lines(prompt: transfer.TransferLog, later: transfer.TransferLog, passes: int) -> Iterator[str]:
    """What crossed between devices, in all and each way, for the prompt and per token after it; or that nothing did.

    Args:
        prompt: of the pass of the prompt, which gives the first token.
        later: of the passes of a single token.
        passes: how many those were.
    """
    if not prompt and not later:
        yield "nothing crossed between devices"
        return
    yield from _ways("for the prompt", prompt, 1)
    if passes:
        yield from _ways("per token", later, passes)


def _ways(of: str, log: transfer.TransferLog, passes: int) -> Iterator[str]:
    yield f"between devices, {of}: {_amount(log, passes)}"
    for (source, destination, route), count in log.items():
        yield f"  {source} -> {destination} ({route}): {_amount(count, passes)}"


def _amount(counted: transfer.TransferLog | transfer.Count, passes: int) -> str:
    copies = counted.copies / passes
    return f"{copies:g} {'copy' if copies == 1 else 'copies'}, {counted.nbytes / passes:,.0f} bytes"
