"""Steps of `adapt` that files of other frameworks need: norms by other names, entries left out, other float dtypes.

PyTorch calls the parameters of a norm ``weight`` and ``bias``, where modules
here have ``gamma`` and ``beta``, and counts batches, which nothing here does.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from numpy.typing import NDArray

from engine import Device, EngineError, Tensor
from engine.dtype import FLOATS, DType, as_dtype

from .adapt import compiled
from .entry import EntryDType, ForeignDType, RecordEntry, Source, nbytes_of
from .errors import RecordError, RecordFormatError

_HOST: Final = Device("cpu:0")
_NORM_NAMES: Final = {"weight": "gamma", "bias": "beta"}


@final
class NormNames:
    """Renames the parameters of norms: ``weight`` to ``gamma``, and ``bias`` beside it to ``beta``.

    A norm is told by its weight, which has one axis; no other common module
    has such a one, but a PReLU: then say which paths are norms.

    Args:
        pattern: as for ``re.search``, found in the path of the norm itself (``blocks.0.norm``); all by default.

    Raises:
        RecordError: it is no regular expression.
    """

    def __init__(self, pattern: str = "") -> None:
        self._pattern = compiled("NormNames", pattern)

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries, those of norms under their new names.

        Raises:
            RecordFormatError: the new name exists already.
        """
        renamed: dict[str, RecordEntry] = {}
        for path, entry in entries.items():
            target = self._renamed(path, entries)
            if target != path and target in entries:
                raise RecordFormatError(f"NormNames: {path!r} becomes {target!r}, which exists already")
            renamed[target] = entry
        return renamed

    def _renamed(self, path: str, entries: Mapping[str, RecordEntry]) -> str:
        norm, dot, name = path.rpartition(".")
        weight = entries.get(f"{norm}{dot}weight")
        if name not in _NORM_NAMES or weight is None or len(weight.shape) != 1 or not self._pattern.search(norm):
            return path
        return f"{norm}{dot}{_NORM_NAMES[name]}"


@final
class Drop:
    """Leaves out each entry whose path an expression is found in; its data is never read.

    ``Drop(r"\\.num_batches_tracked$")``

    Args:
        pattern: as for ``re.search``.

    Raises:
        RecordError: it is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = compiled("Drop", pattern)

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries that are left."""
        return {path: entry for path, entry in entries.items() if not self._pattern.search(path)}


@final
class Cast:
    """Makes floats of another dtype, when they are read; integers, truth values and quantized entries stay.

    Args:
        dtype: a float dtype, as ``numpy.dtype()`` takes it.
        pattern: as for ``re.search``, found in the path; all by default.

    Raises:
        RecordError: the dtype is no float, or the pattern no regular expression.
    """

    def __init__(self, dtype: Any, pattern: str = "") -> None:
        try:
            self._dtype = as_dtype(dtype)
        except EngineError as error:
            raise RecordError(f"Cast: {error}") from None
        if self._dtype not in FLOATS:
            raise RecordError(f"Cast: {self._dtype} is no float; only floats are cast, to float64, 32, 16 or bfloat16")
        self._pattern = compiled("Cast", pattern)

    def __call__(self, entries: Mapping[str, RecordEntry], /) -> dict[str, RecordEntry]:
        """The entries, the matching ones cast."""
        return {path: self._cast(entry) if self._pattern.search(path) else entry for path, entry in entries.items()}

    def _cast(self, entry: RecordEntry) -> RecordEntry:
        dtype = entry.dtype
        if isinstance(dtype, ForeignDType) or dtype not in FLOATS or dtype == self._dtype:
            return entry
        return RecordEntry(_CastSource(entry.source, self._dtype), entry.id)


@final
class _CastSource:
    """Another source whose floats become those of another dtype, as the engine casts them."""

    __slots__ = ("_dtype", "_source")

    def __init__(self, source: Source, dtype: DType) -> None:
        self._source = source
        self._dtype = dtype

    @property
    def dtype(self) -> EntryDType:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._source.shape

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._dtype, self.shape)

    def host(self) -> NDArray[Any]:
        return self.read(_HOST).numpy()

    def read(self, device: Device) -> Tensor:
        return self._source.read(device).cast(self._dtype)
