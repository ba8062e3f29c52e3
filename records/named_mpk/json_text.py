"""From JSON to a tree: what Burn's JSON recorders wrote holds the same values as its MessagePack files (N14)."""

import json
from typing import Any, Final, NoReturn

import numpy as np

from records.burnpack.wire import Flaw
from records.shown import said, shown
from records.storage import Limits

from .message_pack import MAX_DEPTH
from .tree import Form, Numbers, Store, Tree

_MAX_NBYTES: Final = 2**28  # a text is held in memory, and takes several times its size
_INTEGERS: Final = (-(2**63), 2**63 - 1)


def read_json(store: Store, limits: Limits) -> Tree:
    """The one value that the text is.

    Raises:
        Flaw: it is none, or beyond a limit.
    """
    if store.reaches(_MAX_NBYTES + 1):
        raise Flaw(f"a JSON text of more than {_MAX_NBYTES} bytes; write the record with a MessagePack recorder")
    try:
        made = json.loads(
            store.read(0, _MAX_NBYTES).decode(), object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise Flaw("values nest too deep") from None
    except ValueError as error:  # of the decoder, of UTF-8, of integers with thousands of digits
        raise Flaw(f"no JSON text: {said(error)}") from None
    _check(made, min(limits.max_depth, MAX_DEPTH), "")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise Flaw(f"{name}, which JSON does not have")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Tree]:
    made: dict[str, Tree] = {}
    for key, value in pairs:
        if key in made:
            raise Flaw(f"the key {shown(key)} is there twice")
        made[key] = _array(key, value) if isinstance(value, list) and value else value
    return made


def _array(key: str, values: list[Any]) -> Tree:
    """The array as `Numbers` if it is one of numbers."""
    types = set(map(type, values))
    if types <= {dict, list, str} or types == {type(None)}:
        return values
    forms: dict[Any, tuple[Form, Any]] = {int: ("int", np.int64), float: ("decimal", np.float64), bool: ("bool", bool)}
    if len(types) != 1:
        if types <= {float, type(None)}:
            raise Flaw(f"{shown(key)} holds null for what was NaN or infinite, which JSON has lost")
        return values
    form, dtype = forms[types.pop()]
    low, high = (min(values), max(values)) if form == "int" else (0, 0)
    if low < _INTEGERS[0] or high > _INTEGERS[1]:
        raise Flaw(f"{shown(key)} holds integers that 64 bits do not")
    made = np.array(values, dtype)
    return Numbers(form, len(values), low, high, lambda: made)


def _check(tree: Tree, depth: int, path: str) -> None:
    if depth < 0:
        raise Flaw(f"at {shown(path)}: values nest too deep")
    if isinstance(tree, str):
        _check_text(tree)
    if isinstance(tree, dict):
        for key in tree:
            _check_text(key)
    if isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            _check(value, depth - 1, f"{path}.{key}" if path else str(key))


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Flaw(f"{shown(text)} is no Unicode text") from None
