"""Loads of burnpack files into modules as Burn 0.23.0-pre.1 did them: ``loads.json.gz`` in ``burn/burnpack.zip``.

Each load is repeated with a module of the same paths, kinds, shapes, values,
ids and mappers. Outcome, lists of paths and every value must be Burn's, except
where a rule marked *project* says otherwise; such a case is counted under the
rule, and what the rule says is compared in its place:

* R13 (M33): a shape-mapped parameter is compared in file orientation, initialised or not.
* R15, R16: with ``CastToModule`` a quantized entry is dequantized into a dense parameter, where Burn leaves it
  quantized, and refused where the parameter has another scheme; a dense one is refused where it has any.
* R17: float, int and bool must agree, where Burn panics, converts or takes the other kind.
* R27: all three lists at once, where Burn tells the first.
* R40 (D9): an entry without an id leaves the parameter its own, where Burn draws a fresh one.
* R68: a tensor of Flex32 is one of float32, as it is stored.

The richer store (``BurnpackStore``) has rules of its own and is for reading only.
"""

import gzip
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from engine import Device
from modules import Flag, LoadResult, LoraAdapter, Module, Param, ParamGroup, Reparameterizer, RunningState
from records import ModuleRecord, RecordIoError, RecordValidationError, open_record
from tests.golden_files import FOLDER, SHIPPED, golden_file

from .burn_trees import struct_type
from .burn_values import dequantized, is_quantized, kind_of_entry, same, scheme_of, tensor_of, value_of, value_of_entry

pytestmark = pytest.mark.golden

LEFT_OUT: Final = {"BurnpackStore: for reading only": 21}  # in the data we ship
RULES: Final = {"R13": 2, "R15": 9, "R16": 7, "R17": 100, "R27": 6, "R40": 5, "R68": 3}  # loads that differ, likewise
COMPARED: Final = 306

FIELDS: Final = {"api", "file", "label", "module", "options", "outcome", "target", "flags"}
SOMETIMES: Final = {"record_len", "result", "result_unreadable", "text", "variant", "list", "stage"}
STAGES: Final = {"Apply errors": "mismatched", "Missing tensors": "missing", "Unused tensors": "unused"}


@dataclass(frozen=True)
class Kind:
    """What the words for a module say beyond its entries."""

    running: frozenset[str] = frozenset()  # paths of running states
    turned: frozenset[str] = frozenset()  # paths of parameters that are stored transposed
    load_mapper: Any = None  # of the parameter w
    device: str = "cpu:0"
    tied: bool = False  # entries of one id are one parameter


_COL: Final = Kind(turned=frozenset({"weight"}))
KINDS: Final = {
    **dict.fromkeys(
        (
            "Two", "Three", "NoParams", "Nested", "Two{a: Linear 3->4, b: Linear 4->2}", "Linear 3->5 without bias",
            "Two (parameters not initialised)", "Three{a, b as Two, c: Linear 2->2}", "Three with b: Linear 5->2",
            "Two{a: Linear 4->3, b: Linear 4->2}", "Two with a: Linear 4->3", "Linear 3->2", "Two (F32)",
            "Nested with the other enum variants", "Nested without gates", "Tied (two parameters)",
            "OneF{w: F32 [2, 3]}", "OneF{w: F16 [2, 3]}", "OneI{w: Int [2, 3]}", "OneB{w: Bool [2, 3]}",
            "Linear 3->5 layout Row", "Linear 5->3 layout Row, no bias",
            "OneF quantized Q8S Native [2, 3]", "Two quantized", "Two with LoRA rank 2", "Two with LoRA rank 1",
            "Two with LoRA rank 2 (float bases)",
        ),
        Kind(),
    ),
    "Tied (shared)": Kind(tied=True),
    "Mix": Kind(running=frozenset({"r"})),
    "Run1{r: RunningState, w}": Kind(running=frozenset({"r"})),
    "ConvBn": Kind(running=frozenset({"norm.running_mean", "norm.running_var"})),
    "Linear 3->5 layout Col, not initialised": _COL,
    "Linear 3->5 layout Col, initialised": _COL,
    "OneF with load mapper to F32": Kind(load_mapper=lambda tensor: tensor.cast("float32")),
    "OneF with load mapper /2": Kind(load_mapper=lambda tensor: tensor / 2),
    "Two after train()": Kind(device="cpu:0+autodiff"),
    "Two after train() and freeze()": Kind(device="cpu:0+autodiff"),
}  # fmt: skip


@cache
def archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(golden_file("burn/burnpack.zip").read_bytes()))


@cache
def loads() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(archive().read("loads.json.gz")))


def stored(file: str) -> dict[str, dict[str, Any]]:
    """The entries of a file by path, as its sidecar tells them."""
    sidecar = json.loads(archive().read(file.removesuffix(".bpk") + ".json"))
    return {entry["name"]: entry for entry in sidecar["tensors"]}


def reason_to_leave_out(load: Mapping[str, Any]) -> str | None:
    if load["api"] == "BurnpackStore":
        return "BurnpackStore: for reading only"
    assert load["api"] == "try_load_record", load["api"]
    return None


def replayed() -> Iterator[tuple[str, dict[str, Any]]]:
    for number, load in enumerate(loads()):
        if reason_to_leave_out(load) is None:
            assert FIELDS <= load.keys() <= FIELDS | SOMETIMES, f"load {number} is not understood: {sorted(load)}"
            assert load["module"] in KINDS, f"load {number}: module {load['module']!r} is not understood"
            yield f"load {number}: {load['label']}, {load['file']}, {load['options']}", load


# Modules and what is in them


def never(device: Device, require_grad: bool) -> NoReturn:
    raise AssertionError("a load has run an initialiser (R21)")


def leaf_of(entry: Mapping[str, Any], kind: Kind) -> Param | RunningState:
    path, id_ = entry["name"], entry["param_id"]
    turned = path in kind.turned
    if not entry["initialized"]:
        dtype = {"float": "float32", "int": "int32", "bool": "bool"}[entry["kind"]]
        made = Param.lazy(never, entry["lazy_shape"], dtype, kind.device, entry["require_grad"], id_)
        made = made.with_mappers(init=lambda tensor: tensor.T) if turned else made
    else:
        value = tensor_of(value_of_entry(entry.get("in_memory", entry)), kind.device)
        if path in kind.running:
            return RunningState(value, id_)
        made = Param.initialized(id_, value.set_require_grad(entry.get("require_grad", False)))
    if turned:
        return made.with_mappers(load=lambda tensor: tensor.T, save=lambda tensor: tensor.T)
    return made.with_mappers(load=kind.load_mapper)


def module_of(load: Mapping[str, Any]) -> Module:
    """A module with the target's parameters and flags at their paths."""
    kind = KINDS[load["module"]]
    leaves: dict[str, Any] = {}
    by_id: dict[int, Any] = {}
    for entry in load["target"]:
        leaf = by_id.get(entry["param_id"]) if kind.tied else None
        leaves[entry["name"]] = by_id[entry["param_id"]] = leaf or leaf_of(entry, kind)
    for text in load["flags"]:
        match = re.fullmatch(r"flag (\S+) id (\d+) (true|false)", text)
        assert match, f"the flag is not understood: {text}"
        leaves[match[1]] = Flag(match[3] == "true", int(match[2]))
    factors = {path: leaves.pop(path) for path in list(leaves) if ".lora." in path}
    module = nested(leaves)
    return module.apply_reparameterization(Adapters(factors)) if factors else module


class Adapters(Reparameterizer):
    """Attaches adapters of given factors, by path."""

    def __init__(self, factors: Mapping[str, Any]) -> None:
        self._factors = factors

    def reparameterize(self, path: str, param: Param, /) -> tuple[Param, LoraAdapter | None]:
        if f"{path}.lora.a" not in self._factors:
            return param, None
        a, b = (self._factors[f"{path}.lora.{name}"] for name in "ab")
        return param, LoraAdapter(a, b, scale=2.0)


def nested(leaves: Mapping[str, Any]) -> Module:
    fields: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, leaf in leaves.items():
        name, _, rest = path.partition(".")
        if rest:
            below.setdefault(name, {})[rest] = leaf
            fields[name] = None
        else:
            fields[name] = leaf
    return struct_type("Loaded")({**fields, **{name: nested(inner) for name, inner in below.items()}})


def flags_of(module: Module, load: Mapping[str, Any]) -> list[str]:
    found = []
    for text in load["flags"]:
        path = text.split()[1]
        flag = module.at(path)
        found.append(f"flag {path} id {int(flag.id)} {str(flag.is_enabled).lower()}")
    return found


def observed(module: Module, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at an entry's path, in the words of the golden data; values as arrays."""
    leaf = module.at(entry["name"])
    if not leaf_is_made(leaf):
        return {"lazy_shape": list(leaf.shape), "id": int(leaf.id)}
    value = leaf.value() if isinstance(leaf, RunningState) else leaf.base()
    record = module.into_record_group(ParamGroup.from_path(entry["name"]))[entry["name"]]
    return {
        "id": int(leaf.id),
        "in_file": value_of(record.read("cpu:0")),
        "in_memory": value_of(value),
        "e": value.is_require_grad if record.kind == "float" else None,
    }


def leaf_is_made(leaf: Param | RunningState) -> bool:
    return isinstance(leaf, RunningState) or leaf.is_initialized


def expected_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry of the golden data says, as `observed` writes it."""
    if not entry.get("initialized", True):
        return {"lazy_shape": entry["lazy_shape"], "id": entry["param_id"]}
    in_memory = entry.get("in_memory", entry)
    return {
        "id": entry["param_id"],
        "in_file": value_of_entry(entry),
        "in_memory": value_of_entry(in_memory),
        "e": entry["require_grad"] if entry["kind"] == "float" else None,
    }


# What the rules say


@dataclass
class Expected:
    """The lists that a load must give, worked out from paths, shapes and kinds alone (R9 to R17)."""

    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    of_other_kind: set[str] = field(default_factory=set)  # R17
    of_other_scheme: dict[str, str] = field(default_factory=dict)  # with the rule, R15 or R16

    def refused_under(self, options: Mapping[str, Any]) -> dict[str, list[str]]:
        """What of the lists is an error (R23 to R26)."""
        lists = {
            "mismatched": self.mismatched if options["validate"] else [],
            "missing": [] if options["allow_partial"] else self.missing,
            "unused": [] if options["allow_unused"] else self.unused,
        }
        return {name: paths for name, paths in lists.items() if paths}


def expected_lists(load: Mapping[str, Any], file: Mapping[str, Mapping[str, Any]]) -> Expected:
    expected = Expected(unused=sorted(file.keys() - {entry["name"] for entry in load["target"]}))
    for entry in load["target"]:
        path = entry["name"]
        if path not in file:
            expected.missing.append(path)
            continue
        if kind_of_entry(file[path]) != entry["kind"]:
            expected.of_other_kind.add(path)
        elif load["options"]["dtype_policy"] == "CastToModule" and is_quantized(entry):
            if not is_quantized(file[path]):
                expected.of_other_scheme[path] = "R16"
            elif scheme_of(file[path]["scheme"]) != scheme_of(entry["scheme"]):
                expected.of_other_scheme[path] = "R15"
        is_other = path in expected.of_other_kind or path in expected.of_other_scheme
        if is_other or file[path]["shape"] != entry.get("shape", entry.get("lazy_shape")):
            expected.mismatched.append(path)
    return expected


def compare_refusal(load: Mapping[str, Any], expected: Expected, result: LoadResult[Any], what: str) -> str | None:
    """A load that must be refused: our error tells everything, Burn's the first list (R27)."""
    refused = expected.refused_under(load["options"])
    assert isinstance(result.error, RecordValidationError), what
    error = result.error
    assert result.module is None, what
    found = {"mismatched": error.mismatched, "missing": error.missing, "unused": error.unused}
    assert {name: list(paths) for name, paths in found.items() if paths} == refused, what
    if load["outcome"] == "error" and not expected.of_other_kind:
        stage = STAGES[load["stage"]]
        paths = [text.partition(": ")[0] for text in load["list"]]
        assert refused[stage] == paths, what
        assert next(iter(refused)) == stage, what
        return "R27" if len(refused) > 1 else None
    if load["outcome"] == "error":  # Burn found another shape, and so do we
        assert [text.partition(": ")[0] for text in load["list"]] == expected.mismatched, what
        return None
    if expected.of_other_kind:
        return "R17"
    assert expected.of_other_scheme, f"{what}: refused for no reason"
    return next(iter(expected.of_other_scheme.values()))


def compare_values(
    load: Mapping[str, Any], file: Mapping[str, Mapping[str, Any]], module: Module, what: str
) -> set[str]:
    """A load that must succeed: every parameter is what Burn made of it."""
    rules: set[str] = set()
    targets = {entry["name"]: entry for entry in load["target"]}
    turned = {path for path, entry in targets.items() if path in file and fits_only_in_file_form(entry, file[path])}
    if load["outcome"] == "error":
        assert {text.partition(": ")[0] for text in load["list"]} == turned, f"{what}: {load['text']}"
    else:
        assert load["outcome"] == "ok", what
    for entry in load.get("result", load["target"]):
        path = entry["name"]
        expected = expected_of(entry)
        if turned and (path in turned or load["outcome"] == "error"):
            expected = loaded_from(file[path], targets[path], is_turned=path in turned)
            rules.add("R13")
        elif path in file and file[path]["param_id"] is None:
            expected["id"] = targets[path]["param_id"]
            rules.add("R40")
        casts = load["options"]["dtype_policy"] == "CastToModule"
        if casts and path in file and is_quantized(file[path]) and not is_quantized(targets[path]):
            numbers = dequantized(file[path], targets[path])
            expected |= {"in_file": numbers, "in_memory": numbers, "e": targets[path]["require_grad"]}
            rules.add("R15")
        if entry.get("dtype") == "Flex32":
            rules.add("R68")
        assert same(observed(module, entry), expected), f"{what}: {path}"
    return rules


def fits_only_in_file_form(target: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether an entry fits the form in which a parameter is stored, but not its value, with which Burn compares."""
    return "in_memory" in target and entry["shape"] == target["shape"] != target["in_memory"]["shape"]


def loaded_from(entry: Mapping[str, Any], target: Mapping[str, Any], *, is_turned: bool) -> dict[str, Any]:
    """What a parameter must be after it has taken a file's entry (R18)."""
    in_file = value_of_entry(entry)
    in_memory = in_file.T if is_turned else in_file
    return {"id": entry["param_id"], "in_file": in_file, "in_memory": in_memory, "e": target["require_grad"]}


def test_loads_are_burns_case_by_case(tmp_path: Path):
    """R9 to R33; what differs by a rule of the project is counted under it, and nothing else does."""
    rules: Counter[str] = Counter()
    compared = 0
    for what, load in replayed():
        compared += 1
        module = module_of(load)
        before = [observed(module, entry) for entry in load["target"]]
        if load["file"] not in archive().namelist():
            assert load["variant"] == "Io", what
            with pytest.raises(RecordIoError):
                open_record(tmp_path / load["file"])
            continue
        archive().extract(load["file"], tmp_path)
        file = stored(load["file"])
        expected = expected_lists(load, file)
        with open_record(tmp_path / load["file"]) as record:
            result = module.try_load_record(record.with_options(**load["options"]))

            assert list(result.missing) == expected.missing, what
            assert list(result.unused) == expected.unused, what
            assert [mismatch.path for mismatch in result.mismatched] == expected.mismatched, what
            if expected.refused_under(load["options"]):
                rules.update(filter(None, [compare_refusal(load, expected, result, what)]))
            else:
                loaded = result.unwrap()
                rules.update(compare_values(load, file, loaded, what))
                assert flags_of(loaded, load) == load["flags"], what
        assert all(map(same, before, [observed(module, entry) for entry in load["target"]])), f"{what}: R29"
    if FOLDER == SHIPPED:
        assert (compared, rules) == (COMPARED, RULES)


def test_a_tied_parameter_is_loaded_once():
    """D8: both of its places hold one object afterwards."""
    for what, load in replayed():
        if KINDS[load["module"]].tied:
            loaded = module_of(load).load_record(ModuleRecord.from_bytes(archive().read(load["file"])))

            assert loaded.at("embed") is loaded.at("head"), what


def test_the_richer_store_is_the_only_one_left_out():
    """Nothing is left out in silence."""
    left_out = Counter(reason for load in loads() if (reason := reason_to_leave_out(load)))

    if FOLDER == SHIPPED:
        assert left_out == LEFT_OUT
