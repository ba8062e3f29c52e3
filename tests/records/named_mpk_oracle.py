"""Named-MessagePack files as plain data, by the rules alone: what a tree of modules is in a file, and what is in it.

A tree is a dict or list of trees, None, or an `Item` of `strategies`, which is
a parameter. `item_of` gives the values that the library `msgpack` packs;
`walked` the parameters by path.
"""

from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from records import ParamId
from tests.records.strategies import Item, arrays

NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
METADATA = {
    "float": "f32", "int": "i32", "version": "0.21.0", "settings": "FullPrecisionSettings",
    "format": "burn_core::record::file::NamedMpkFileRecorder<burn_core::record::settings::FullPrecisionSettings>",
}  # fmt: skip
HALF = {**METADATA, "float": "half::binary16::f16", "int": "i16", "settings": "HalfPrecisionSettings"}
DOUBLE = {**METADATA, "float": "f64", "int": "i64", "settings": "DoublePrecisionSettings"}


def tensor(array: NDArray[Any], dtype: Any = None) -> dict[str, Any]:
    """The map of a tensor from 0.14 on."""
    name = {"Bool": "Native"} if array.dtype == bool else NAMES[str(array.dtype)]
    return {"bytes": array.tobytes(), "shape": list(array.shape), "dtype": name if dtype is None else dtype}


def values(array: NDArray[Any]) -> dict[str, Any]:
    """The map of a tensor before 0.14 that is a list of Python numbers."""
    return {"value": array.reshape(-1).tolist(), "shape": list(array.shape)}


def parameter(tensor: dict[str, Any], id: str = "0000000000000") -> dict[str, Any]:
    return {"id": id, "param": tensor}


def packed(item: Any, metadata: Any = METADATA, **more: Any) -> bytes:
    """A file."""
    return msgpack.packb({"metadata": metadata, "item": item, "_b": [], **more}, use_single_float=True)


def item_of(tree: Any) -> Any:
    if isinstance(tree, Item):
        return parameter(tensor(tree.array), str(ParamId(tree.id or 0)))
    if isinstance(tree, dict):
        return {key: item_of(value) for key, value in tree.items()}
    return [item_of(value) for value in tree] if isinstance(tree, list) else None


def walked(tree: Any, path: str = "") -> Iterator[Item]:
    if isinstance(tree, Item):
        yield tree._replace(path=path)
    elif isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from walked(value, f"{path}.{key}" if path else str(key))


def module_trees() -> st.SearchStrategy[dict[str, Any]]:
    """Trees of modules; fields may have the names that parameters and tensors are made of (N4)."""
    leaf = st.none() | st.builds(Item, st.just(""), arrays(max_dims=3), st.integers(0, 2**64 - 1))
    names = st.sampled_from(["id", "param", "bytes", "shape", "dtype", "value", "weight", "Relu"]) | (
        st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=4)
    )

    def inside(trees: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.dictionaries(names, trees, max_size=3) | st.lists(trees, max_size=3)

    return st.dictionaries(names, st.recursive(leaf, inside, max_leaves=6), max_size=3)


def half_patterns(array: NDArray[Any]) -> list[int]:
    return array.reshape(-1).view(np.uint16).tolist()
