"""What quantizing the parameters of a module does to each of them, as a report to print."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from engine import QuantScheme, Tensor, dequantize, ops
from engine.dtype import FLOAT32, FLOAT64

_HEAD: Final = ("", "scheme", "bytes", "quantized", "in files", "largest error", "mean error")


@final
@dataclass(frozen=True)
class Outcome:
    """What becomes of one parameter.

    Attributes:
        skipped: why it is not quantized; None if it is.
        scheme: of the quantized value.
        nbytes_before: bytes of the value.
        nbytes_after: bytes of the quantized value in memory, which has a byte for each value whatever its width.
        nbytes_in_file: bytes of it in a record, where values are packed.
        largest_error: the largest difference between a number and what stands for it, 0 without numbers.
        mean_error: the mean of the absolute differences.
    """

    skipped: str | None = None
    scheme: QuantScheme | None = None
    nbytes_before: int = 0
    nbytes_after: int = 0
    nbytes_in_file: int = 0
    largest_error: float = 0.0
    mean_error: float = 0.0

    @classmethod
    def of(cls, before: Tensor, after: Tensor) -> "Outcome":
        """What became of `before`, floats, as `after`, the same quantized; both on one device."""
        scheme = after.dtype
        if not isinstance(scheme, QuantScheme):
            raise AssertionError("what was quantized has a scheme")
        of = FLOAT64 if before.dtype == FLOAT64 else FLOAT32
        error = ops.absolute(dequantize(after, of) - before.without_autodiff().cast(of)) if before.size else None
        return cls(
            scheme=scheme,
            nbytes_before=before.nbytes,
            nbytes_after=after.nbytes,
            nbytes_in_file=scheme.nbytes(after.shape),
            largest_error=0.0 if error is None else float(ops.max(error)),
            mean_error=0.0 if error is None else float(ops.mean(error)),
        )


@final
@dataclass(frozen=True)
class QuantizationReport:
    """What quantizing a module does; `print` it, or read `parameters`.

    Attributes:
        scheme: what parameters are quantized to.
        parameters: the outcome at each path, in visit order; a tied parameter is at each of its places.
    """

    scheme: QuantScheme
    parameters: Mapping[str, Outcome]

    def __str__(self) -> str:
        done = {path: one for path, one in self.parameters.items() if one.skipped is None}
        skipped = {path: one.skipped for path, one in self.parameters.items() if one.skipped is not None}
        lines = [f"nothing to quantize to {self.scheme}"]
        if done:
            lines = _table([_HEAD, *(_row(path, one) for path, one in done.items()), _total(list(done.values()))])
        if skipped:
            lines += ["", "left as they are:", *(f"  {path}: {reason}" for path, reason in skipped.items())]
        return "\n".join(lines)


_Row = tuple[str, ...]


def _row(path: str, one: Outcome) -> _Row:
    errors = (one.largest_error, one.mean_error)
    return path, str(one.scheme), *(f"{size:,}" for size in _sizes(one)), *(f"{error:.3g}" for error in errors)


def _total(done: list[Outcome]) -> _Row:
    """Of the whole; a tied parameter, which is one outcome in several places, counts once."""
    distinct = list({id(one): one for one in done}.values())
    sizes = [_sizes(one) for one in distinct]
    return f"{len(distinct)} parameters", "", *(f"{sum(of_all):,}" for of_all in zip(*sizes, strict=True)), "", ""


def _sizes(one: Outcome) -> tuple[int, int, int]:
    return one.nbytes_before, one.nbytes_after, one.nbytes_in_file


def _table(rows: list[_Row]) -> list[str]:
    """Rows with aligned columns, the first two to the left and the numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
