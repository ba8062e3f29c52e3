"""What goes wrong with records: the file itself, what is in it, or how it fits a module."""

from collections.abc import Sequence

from engine import EngineError


class RecordError(EngineError):
    """Base of all errors about records; raised itself where a writer refuses what it is given."""


class RecordIoError(RecordError, OSError):
    """The system would not open, read or write a file. `errno` is the system's number where it gave one."""

    @classmethod
    def of(cls, what: str, cause: Exception) -> "RecordIoError":
        """An error that says `what` failed and why."""
        error = cls(f"{what}: {getattr(cause, 'strerror', None) or cause}")
        error.errno = getattr(cause, "errno", None)
        return error


class RecordFormatError(RecordError, ValueError):
    """Bytes that are no record, entries that contradict each other, or a step of `adapt` that does not apply."""


class RecordValidationError(RecordError, ValueError):
    """A record that does not fit a module. All that is wrong is told at once (R27).

    Args:
        findings: one line for each thing that is an error under the record's options.
        missing: paths of the module that the record lacks.
        unused: paths of the record that the module lacks, sorted.
        mismatched: paths that are in both and do not fit each other.
    """

    _SHOWN = 20

    def __init__(
        self,
        findings: Sequence[str],
        *,
        missing: Sequence[str] = (),
        unused: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        self.findings = tuple(findings)
        self.missing = tuple(missing)
        self.unused = tuple(unused)
        self.mismatched = tuple(mismatched)
        lines = list(self.findings[: self._SHOWN])
        if len(self.findings) > self._SHOWN:
            lines.append(f"… and {len(self.findings) - self._SHOWN} more (all are in .findings)")
        super().__init__("the record does not fit the module:\n" + "\n".join(f"  {line}" for line in lines))
