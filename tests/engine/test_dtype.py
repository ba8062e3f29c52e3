"""Dtypes, and the three kinds they fall into."""

import ml_dtypes
import numpy as np
import pytest

from engine import DTypeError, as_dtype, kind_of
from tests.engine.strategies import BFLOAT16, BOOL, DTYPES, FLOATS, INTS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whatever_names_a_dtype_gives_the_one_object_for_it(dtype):
    for spec in (
        dtype,
        str(dtype),
        dtype.type,
        np.zeros(1, dtype).dtype,
        dtype.newbyteorder(">"),
        dtype.newbyteorder("<"),
    ):
        assert as_dtype(spec) is as_dtype(dtype)
    assert as_dtype(dtype) == dtype


def test_python_types_and_numpys_second_int64_are_taken():
    assert as_dtype(float) is as_dtype("float64")
    assert as_dtype(int) is as_dtype("int64")
    assert as_dtype(bool) is as_dtype("bool")
    assert as_dtype(np.longlong) is as_dtype("int64")
    assert as_dtype(ml_dtypes.bfloat16) is as_dtype("bfloat16")


def test_each_dtype_has_its_kind():
    assert {kind_of(dtype) for dtype in FLOATS} == {"float"}
    assert {kind_of(dtype) for dtype in INTS} == {"int"}
    assert kind_of(BOOL) == "bool"
    assert kind_of(BFLOAT16) == "float"


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "complex64",
        "float128",
        "float8_e5m2",
        "int4",
        "S3",
        "O",
        "datetime64[s]",
        "no",
        ",",
        "2f4,(",
        [("a", "f4")],
        ("f4", -1),
    ],
)
def test_what_no_tensor_can_have_is_refused(spec):
    with pytest.raises(DTypeError, match="dtype"):
        as_dtype(spec)
