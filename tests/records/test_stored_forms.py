"""Flex32 and the two other stores of booleans, for which tensors have no dtype: R68, R69, N5."""

import numpy as np
import pytest

from engine import Tensor
from modules import Param
from records import ModuleRecord, RecordEntry, RecordError, Transpose, open_record
from tests.modules.small_modules import Holder
from tests.records import burnpack_oracle as oracle

FLOATS = np.array([[1.5, -0.0], [np.nan, 2]], "<f4")
TRUTHS = np.array([[1, 0], [1, 1]], "u1")
STORED = [
    oracle.Stored("f", "Flex32", (2, 2), FLOATS.tobytes(), 1),
    oracle.Stored("n", {"Bool": "Native"}, (2, 2), TRUTHS.tobytes(), 2),
    oracle.Stored("u", {"Bool": "U8"}, (2, 2), TRUTHS.tobytes(), 3),
    oracle.Stored("w", {"Bool": "U32"}, (2, 2), TRUTHS.astype("<u4").tobytes(), None),
]
FORMS = {"f": "Flex32", "n": None, "u": "Bool(U8)", "w": "Bool(U32)"}


def record() -> ModuleRecord:
    return ModuleRecord.from_bytes(oracle.burnpack(STORED))


def check(found: ModuleRecord) -> None:
    assert found["f"].read("cpu:0").tobytes() == FLOATS.tobytes()
    assert str(found["f"].dtype) == "float32"
    for path in "nuw":
        assert str(found[path].dtype) == "bool"
        assert np.array_equal(found[path].read("cpu:0").numpy(), TRUTHS.astype(bool))
        assert found[path].nbytes == 4  # of what is read, whatever the file has


def test_they_load_as_float32_and_bool_and_are_written_as_they_were():
    """R68, R69: byte for byte; `repr` tells."""
    found = record()
    check(found)
    assert {path: entry.form for path, entry in found.items()} == FORMS
    assert found.into_bytes(digest=False) == oracle.burnpack(STORED)
    assert "form='Flex32'" in repr(found["f"])
    assert "form" not in repr(found["n"])


def test_a_transposed_entry_keeps_its_form_and_a_module_drops_it():
    """R68, R69: what a module holds are floats and truth values."""
    turned = record().adapt(Transpose("^[fuw]$"))
    assert turned.into_bytes(digest=False) == oracle.burnpack(
        [
            STORED[0]._replace(data=FLOATS.T.tobytes()),
            STORED[1],
            STORED[2]._replace(data=TRUTHS.T.tobytes()),
            STORED[3]._replace(data=TRUTHS.T.astype("<u4").tobytes()),
        ]
    )
    zeros = {path: np.zeros((2, 2), "bool") for path in "nuw"} | {"f": np.zeros((2, 2), "float32")}
    module = Holder(**{path: Param(Tensor.from_numpy(array, "cpu:0")) for path, array in sorted(zeros.items())})
    again = module.load_record(record()).into_record()
    check(again)
    assert {entry.form for entry in again.values()} == {None}


def test_large_booleans_are_widened_piece_by_piece(tmp_path):
    """R69, R83: more than one piece of four-byte booleans."""
    truths = np.arange(9 * 2**20) % 3 == 0
    entry = RecordEntry(Tensor.from_numpy(truths, "cpu:0"), form="Bool(U32)")
    ModuleRecord([("b", entry)]).save(tmp_path / "r.bpk")
    with open_record(tmp_path / "r.bpk", check_data=True) as found:
        assert found["b"].form == "Bool(U32)"
        assert np.array_equal(found["b"].read("cpu:0").numpy(), truths)
        assert (tmp_path / "r.bpk").stat().st_size > 4 * truths.size


@pytest.mark.parametrize(
    ("version", "forms"),
    [("0.16", {}), ("0.17", {"f": "Flex32"}), ("0.20", {"f": "Flex32"}), ("0.21", FORMS)],
)
def test_named_message_pack_has_the_forms_that_its_version_has(version, forms, tmp_path):
    """N5, N18."""
    record().save(tmp_path / "r.mpk", for_burn=version)
    with open_record(tmp_path / "r.mpk") as found:
        check(found)
        assert {path: entry.form for path, entry in found.items()} == {path: forms.get(path) for path in FORMS}


def test_a_form_that_the_dtype_cannot_have_is_refused():
    """R81."""
    entry = RecordEntry(Tensor.from_numpy(FLOATS, "cpu:0"), form="Bool(U8)")
    with pytest.raises(RecordError, match=r"tensor 'x': .*no dtype float32 in the form Bool\(U8\)"):
        ModuleRecord([("x", entry)]).into_bytes()
