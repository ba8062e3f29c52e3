"""Scalars: R64, R65, R67."""

import math
import struct

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import ModuleRecord, RecordError, RecordFormatError, Scalar
from records.burnpack.metadata import shortest_float
from tests.records import strategies


@given(scalar=strategies.scalars)
def test_scalars_convert_to_what_their_kind_allows_and_to_nothing_else(scalar):
    """R67: integers from Int and UInt, floats from these and Float, truth values from Bool."""
    allowed = {"Int": {int, float}, "UInt": {int, float}, "Float": {float}, "Bool": {bool}}[scalar.kind]
    for to in (int, float, bool):
        if to in allowed:
            result = to(scalar)
            assert type(result) is to
            assert result == to(scalar.value) or math.isnan(result)
        else:
            with pytest.raises(RecordError, match="R67"):
                to(scalar)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, "Int"), (-(2**63), "Int"), (2**63 - 1, "Int"), (2**63, "UInt"), (2**64 - 1, "UInt"), (True, "Bool"),
        (0.5, "Float"), (np.int8(-1), "Int"), (np.uint8(1), "UInt"), (np.float32(0.1), "Float"), (np.False_, "Bool"),
    ],
)  # fmt: skip
def test_python_and_numpy_numbers_have_a_kind(value, kind):
    """R64, and the kinds that Burn gives an i32, a usize and an f32."""
    scalar = Scalar.of(value)
    assert scalar.kind == kind
    assert scalar.value == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "1", None, [1], 1j, np.zeros(2)])
def test_other_values_are_no_scalars(value):
    """R64."""
    with pytest.raises(RecordFormatError):
        Scalar.of(value)


@pytest.mark.parametrize(
    ("kind", "value"), [("Int", 2**63), ("UInt", -1), ("Float", 1), ("Bool", 1), ("Int", True), ("Text", "a")]
)
def test_a_scalar_is_of_its_kind_and_in_its_range(kind, value):
    """R64."""
    with pytest.raises(RecordFormatError):
        Scalar(kind, value)


@given(bits=st.integers(0, 2**64 - 1), cut=st.sampled_from([0, 29, 42]))
def test_floats_are_written_in_the_fewest_bytes_that_keep_every_bit(bits, cut):
    """R65: what cbor2 decodes has the same 64 bits, and no shorter float does."""
    value = struct.unpack(">d", struct.pack(">Q", bits >> cut << cut))[0]
    encoded = shortest_float(value)
    assert struct.pack(">d", cbor2.loads(encoded)) == struct.pack(">d", value)
    if not math.isnan(value):
        assert encoded == cbor2.dumps(value, canonical=True)


@pytest.mark.parametrize(
    ("bits", "encoded"),
    [
        (0x3FE0000000000000, "f93800"),
        (0x7FF8000000000000, "f97e00"),
        (0xFFF8000000000000, "f9fe00"),
        (0x7FF8040000000000, "f97e01"),
        (0x7FF8000020000000, "fa7fc00001"),
        (0x7FF800000000BEEF, "fb7ff800000000beef"),
        (0x7FF0040000000000, "fb7ff0040000000000"),
        (0x7FF0000020000000, "fb7ff0000020000000"),  # signalling: a decoder that widens it makes it quiet
    ],
)
def test_examples_of_floats(bits, encoded):
    """R65."""
    assert shortest_float(struct.unpack(">d", struct.pack(">Q", bits))[0]).hex() == encoded


@given(scalars=st.dictionaries(strategies.texts, strategies.scalars, max_size=6))
def test_scalars_survive_a_file_with_kind_and_bits(scalars):
    """R64, R65: equality of scalars is of kind and bits."""
    assert dict(ModuleRecord.from_bytes(ModuleRecord(scalars=scalars).into_bytes()).scalars) == scalars


def test_equality_tells_kinds_zeros_and_nans_apart():
    """R64."""
    nan = struct.unpack(">d", bytes.fromhex("7ff800000000beef"))[0]
    assert Scalar("Int", 1) != Scalar("UInt", 1)
    assert Scalar("Float", 0.0) != Scalar("Float", -0.0)
    assert Scalar("Float", nan) == Scalar("Float", nan)
    assert Scalar("Float", nan) != Scalar("Float", math.nan)
    assert len({Scalar("Int", 1), Scalar("Int", 1), Scalar("UInt", 1)}) == 2
