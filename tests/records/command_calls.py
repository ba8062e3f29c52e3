"""Calling the commands of ``python -m records`` in this process, and a record for them."""

from typing import Any

import numpy as np

from engine import Tensor
from records import ModuleRecord, ParamId, RecordEntry
from records.__main__ import main


def entry(array: object, id: int | None = None) -> RecordEntry:
    """An entry of an array, on cpu:0."""
    return RecordEntry(Tensor.from_numpy(np.asarray(array), "cpu:0"), None if id is None else ParamId(id))


RECORD = ModuleRecord(
    [
        ("net.linear.weight", entry(np.ones((2, 3), "float32"), 1)),
        ("net.linear.bias", entry(np.zeros(3, "float16"), 2)),
        ("head", entry(np.arange(4), 3)),
    ],
    scalars={"step": 7, "nan": float("nan")},
    metadata={"note": "x\ny"},
)


def call(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """The exit status of a command and what it printed."""
    capsys.readouterr()
    status = 0
    try:
        main([str(one) for one in arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err
