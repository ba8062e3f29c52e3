"""The header of a file: Burn's version, and the precision that its numbers have (N2)."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from engine.dtype import FLOAT16, FLOAT32, FLOAT64, DType
from records.burnpack.wire import Flaw
from records.errors import RecordError
from records.shown import shown

from .tree import Tree

_KEYS: Final = ("float", "int", "format", "version", "settings")
_HALF: Final = "half::binary16::f16"
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:[.\-+].*)?", re.ASCII | re.DOTALL)
_INTS: Final = {"i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64)}
_FLOATS: Final = {"f32": FLOAT32, _HALF: FLOAT16, "f64": FLOAT64}
_RELEASES: Final = ("0.9.0", "0.10.0", "0.11.1", "0.12.0", "0.13.2", "0.14.1", "0.15.0", "0.16.1", "0.17.1", "0.18.0",
                    "0.19.1", "0.20.1", "0.21.0")  # fmt: skip

Version = tuple[int, int]
TEXT_IDS: Final = (0, 13)  # the last version with UUIDs,
SHORT_IDS: Final = (0, 14)  # and with ids of 6 bytes
NEWEST: Final = (0, 21)


class Precision(NamedTuple):
    """One of Burn's three precision settings."""

    settings: str
    float_name: str
    float_dtype: DType
    int_name: str
    int_dtype: DType


FULL: Final = Precision("FullPrecisionSettings", "f32", FLOAT32, "i32", _INTS["i32"])
HALF: Final = Precision("HalfPrecisionSettings", _HALF, FLOAT16, "i16", _INTS["i16"])
DOUBLE: Final = Precision("DoublePrecisionSettings", "f64", FLOAT64, "i64", _INTS["i64"])
PRECISIONS: Final = {precision.settings: precision for precision in (FULL, HALF, DOUBLE)}


class Header(NamedTuple):
    """What the metadata of a file says: its texts, the version or the newest where it is none, and dtypes of numbers.

    `ints_are_floats`: integers stand as float32 (0.11 in full precision).
    """

    texts: dict[str, str]
    version: Version
    float_dtype: DType
    int_dtype: DType
    ints_are_floats: bool


def header_of(tree: Tree) -> Header:
    """The header that the value of `metadata` is.

    Raises:
        Flaw: it is no map, or one of the five texts is missing.
    """
    if not isinstance(tree, dict):
        raise Flaw("metadata is no map")
    for key in _KEYS:
        if not isinstance(tree.get(key), str):
            raise Flaw(f"metadata has no text {key!r}")
    texts = {key: tree[key] for key in _KEYS}
    found = _VERSION.fullmatch(texts["version"])
    return Header(
        texts,
        (int(found[1]), int(found[2])) if found else NEWEST,
        _FLOATS.get(texts["float"], FLOAT32),
        _INTS.get(texts["int"], _INTS["i32"]),
        texts["int"] == "f32",
    )


def metadata_of(release: str, precision: Precision, *, is_gzip: bool) -> dict[str, str]:
    """The metadata that a release of Burn writes."""
    integers = "f32" if precision is FULL and version_of(release) < (0, 12) else precision.int_name
    recorder = "NamedMpkGzFileRecorder" if is_gzip else "NamedMpkFileRecorder"
    return {
        "float": precision.float_name,
        "int": integers,
        "format": f"burn_core::record::file::{recorder}<burn_core::record::settings::{precision.settings}>",
        "version": release,
        "settings": precision.settings,
    }


def version_of(release: str) -> Version:
    """The first two numbers of a release."""
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def release_of(version: str) -> str:
    """The release that stands for a version of Burn: ``"0.14"`` and ``"0.14.0"`` are ``"0.14.1"``.

    Raises:
        RecordError: files are not written for that version.
    """
    for release in _RELEASES:
        if isinstance(version, str) and version.split(".")[:2] == release.split(".")[:2]:
            return release
    raise RecordError(f"for_burn is {version!r}; named MessagePack is written for Burn 0.9 to 0.21")


def recorded_precision(texts: Mapping[str, object]) -> Precision | None:
    """The precision that a record's metadata names, if it has that of a file of Burn."""
    named = texts.get("settings")
    return PRECISIONS.get(named) if isinstance(named, str) else None


def refuse_id(text: str) -> Flaw:
    """What is wrong with an id that Burn cannot read either (N7)."""
    return Flaw(f"{shown(text)} is no parameter id; ids are 13 characters of 0-9 and a-v")
