"""A record: what a module, an optimizer or a training run is made of, by path, in memory or still in a file.

The walk that fills a record from a module, or applies one to a module, is the
module's; a record knows names, ids, dtypes, shapes and bytes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NoReturn, Protocol, Self, TypeAlias, final, get_args

from .adapt import Step
from .adapt_changes import StepChanges
from .burnpack import burnpack_bytes, read_burnpack, write_burnpack
from .entry import Contents, RecordEntry
from .errors import RecordError, RecordFormatError
from .files import FilePath, Format, destination_of, format_of
from .named_mpk import KIND_KEY, write_named_mpk
from .safetensors_writer import write_safetensors
from .scalar import Scalar
from .storage import LIMITS, Storage

DTypePolicy: TypeAlias = Literal["FromRecord", "CastToModule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a record is applied to a module (R7). They are not stored in files."""

    dtype_policy: DTypePolicy = "FromRecord"
    allow_partial: bool = False
    allow_unused: bool = False
    validate: bool = True

    def __post_init__(self) -> None:
        if self.dtype_policy not in get_args(DTypePolicy):
            raise RecordError(f"dtype_policy is {self.dtype_policy!r}; there are {', '.join(get_args(DTypePolicy))}")
        for name in ("allow_partial", "allow_unused", "validate"):
            if not isinstance(getattr(self, name), bool):
                raise RecordError(f"{name} is {getattr(self, name)!r}; it is True or False")


class Closable(Protocol):
    """A file that a record reads from; `name` is what errors call it."""

    name: str

    def close(self) -> None:
        """Let go of it. What was read stays valid."""
        ...


@final
class ModuleRecord(Mapping[str, RecordEntry]):
    """An ordered, read-only mapping from path to entry, with scalars, metadata and options for loading.

    A record of a file is a context manager that closes the file; what was
    read before stays valid, and reading afterwards is a `RecordIoError`. Every
    method that changes something gives another record over the same data.

    Args:
        entries: pairs of path and entry, in order, or a mapping of them.
        scalars: numbers by name; Python and NumPy numbers are taken as `Scalar.of` takes them.
        metadata: texts by name. A GGUF file has numbers and sequences too; a
            burnpack file holds those as JSON text.

    Raises:
        RecordFormatError: two entries have one path (R8), a path has an empty component, what stands at a path is
            no RecordEntry, or a scalar is no number.
    """

    __slots__ = ("_entries", "_files", "adapted", "format", "metadata", "options", "scalars")

    adapted: tuple[StepChanges, ...]
    format: str | None
    options: LoadOptions
    scalars: Mapping[str, Scalar]
    metadata: Mapping[str, Any]

    def __init__(
        self,
        entries: Mapping[str, RecordEntry] | Iterable[tuple[str, RecordEntry]] = (),
        *,
        scalars: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._entries: dict[str, RecordEntry] = {}
        for path, entry in _pairs(entries):
            if not isinstance(path, str) or "" in path.split("."):
                raise RecordFormatError(f"{path!r} is no path of an entry; components between dots are not empty")
            if path in self._entries:
                raise RecordFormatError(f"two entries have the path {path!r}")
            if not isinstance(entry, RecordEntry):
                raise RecordFormatError(
                    f"{path!r}: a {type(entry).__name__} is no RecordEntry; give RecordEntry(tensor)"
                )
            self._entries[path] = entry
        for name in (*(scalars or ()), *(metadata or ())):
            if not isinstance(name, str):
                raise RecordFormatError(f"{name!r} is no name of a scalar or of metadata; names are texts")
        self._files: tuple[Closable, ...] = ()
        self.adapted = ()
        self.format = None
        self.options = LoadOptions()
        self.scalars = MappingProxyType({name: Scalar.of(value) for name, value in (scalars or {}).items()})
        self.metadata = MappingProxyType(dict(metadata or {}))

    @classmethod
    def of_file(cls, contents: Contents, file: Closable, format: str | None = None) -> Self:
        """The record of a file's contents, which closes it; `format` is what its format is called.

        Raises:
            RecordFormatError: two entries have one path, or one has none; the message names the file.
        """
        try:
            made = cls(contents.entries, scalars=contents.scalars, metadata=contents.metadata)
        except RecordFormatError as error:
            raise RecordFormatError(f"{file.name}: {error}") from None
        made._files = (file,)
        made.format = format
        return made

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, check_data: bool = False) -> Self:
        """The record in the bytes of a burnpack file (R37a). Its tensors own their memory.

        Args:
            data: the whole file.
            check_data: whether to compare the tensors' bytes with the digest, if there is one (D1).

        Raises:
            RecordError: `data` are no bytes.
            RecordFormatError: they are no burnpack file, or break one of its rules (R85 to R103a).
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise RecordError(f"from_bytes takes the bytes of a file, not {data!r:.80}; open_record opens a path")
        storage = Storage("bytes in memory", bytes(data))
        return cls.of_file(read_burnpack(storage, LIMITS, check_data=check_data), storage, "burnpack")

    def _like(self, entries: Iterable[tuple[str, RecordEntry]], **changes: Any) -> Self:
        """A record over the same files, with other entries and, where they are given, scalars and metadata."""
        given = {"scalars": self.scalars, "metadata": self.metadata, **changes}
        made = type(self)(entries, **given)
        made._files = self._files
        made.adapted = self.adapted
        made.format = self.format
        made.options = self.options
        return made

    @property
    def kind(self) -> str:
        """``"module"``, or ``"optimizer"`` or ``"scheduler"`` for which Burn up to 0.21 stored it (N13)."""
        return str(self.metadata.get(KIND_KEY, "module"))

    # Entries

    def __getitem__(self, path: str) -> RecordEntry:
        return self._entries[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def __repr__(self) -> str:
        count = "1 tensor" if len(self) == 1 else f"{len(self)} tensors"
        options = ", ".join(f"{name}={getattr(self.options, name)}" for name in LoadOptions.__slots__)
        return f"ModuleRecord({count}, {options})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ModuleRecord is not pickled; into_bytes() gives its bytes, ModuleRecord.from_bytes reads them"
        )

    # Other records over the same data

    def with_options(
        self,
        *,
        dtype_policy: DTypePolicy | None = None,
        allow_partial: bool | None = None,
        allow_unused: bool | None = None,
        validate: bool | None = None,
    ) -> Self:
        """This record with other options for loading (R7); those not given stay.

        Args:
            dtype_policy: ``"FromRecord"``: a parameter takes the entry's dtype; ``"CastToModule"``: it keeps its own.
            allow_partial: whether parameters without an entry keep what they have, without an error.
            allow_unused: whether entries without a parameter are no error.
            validate: whether a parameter that its entry does not fit is an error; it keeps its value anyway.

        Raises:
            RecordError: an option has no such value.
        """
        given = {
            "dtype_policy": dtype_policy,
            "allow_partial": allow_partial,
            "allow_unused": allow_unused,
            "validate": validate,
        }
        made = self._like(self.items())
        made.options = replace(self.options, **{name: value for name, value in given.items() if value is not None})
        return made

    def cast_to_module_dtype(self) -> Self:
        """Short for ``with_options(dtype_policy="CastToModule")``."""
        return self.with_options(dtype_policy="CastToModule")

    def with_scalars(self, **scalars: Any) -> Self:
        """This record with more scalars; one of a name that is there already replaces it.

        Raises:
            RecordFormatError: a value is no number that 64 bits hold.
        """
        return self._like(self.items(), scalars={**self.scalars, **scalars})

    def with_metadata(self, **texts: str) -> Self:
        """This record with more metadata, free for the user (R63); one of a name that is there already replaces it."""
        return self._like(self.items(), metadata={**self.metadata, **texts})

    def adapt(self, *steps: Step) -> Self:
        """This record with its entries changed by `steps`, in the order given: KeyRemapper, NormNames, Drop, ….

        The new record's `adapted` says what each step did, of this call and
        those before it: ``print(*record.adapted, sep="\\n")``.

        Raises:
            RecordFormatError: a step does not apply; it names the paths.
            RecordError: one is no step.
        """
        entries: Mapping[str, RecordEntry] = self._entries
        changes: list[StepChanges] = []
        for step in steps:
            if not callable(step):
                raise RecordError(f"adapt: {step!r} is no step; KeyRemapper, Transpose and Join make steps")
            before, entries = entries, _stepped(step, entries)
            changes.append(StepChanges.between(step, before, entries))
        made = self._like(entries.items())
        made.adapted = (*self.adapted, *changes)
        return made

    def under(self, prefix: str) -> Self:
        """This record with every path, and every scalar's name, put below `prefix`."""
        return self._like(
            ((f"{prefix}.{path}", entry) for path, entry in self.items()),
            scalars={f"{prefix}.{name}": value for name, value in self.scalars.items()},
        )

    def part(self, prefix: str) -> Self:
        """What `under` put below `prefix`, without it; empty where nothing is there."""
        start = f"{prefix}."
        return self._like(
            ((path.removeprefix(start), entry) for path, entry in self.items() if path.startswith(start)),
            scalars={name.removeprefix(start): value for name, value in self.scalars.items() if name.startswith(start)},
        )

    def __or__(self, other: "ModuleRecord") -> Self:
        """Both records as one, this one's entries first, with this one's options.

        Raises:
            RecordFormatError: they have a path or a scalar in common, or different metadata of one name.
        """
        if not isinstance(other, ModuleRecord):
            return NotImplemented
        for path in self:
            if path in other:
                raise RecordFormatError(f"both records have the path {path!r}; put one of them under(…) a prefix")
        for name in self.scalars:
            if name in other.scalars:
                raise RecordFormatError(f"both records have the scalar {name!r}; put one of them under(…) a prefix")
        for name, text in self.metadata.items():
            if other.metadata.get(name, text) != text:
                raise RecordFormatError(f"the records have different metadata {name!r}")
        made = self._like(
            [*self.items(), *other.items()],
            scalars={**self.scalars, **other.scalars},
            metadata={**self.metadata, **other.metadata},
        )
        made._files = (*self._files, *other._files)
        return made

    # Files

    def save(
        self,
        file: FilePath,
        format: Format | None = None,
        digest: bool = True,
        *,
        for_burn: str | None = None,
        stateless: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a file, whole or not at all: beside the destination, flushed to disk, renamed over it (R43).

        One tensor at a time is in host memory beyond what the record holds itself.

        Args:
            file: the destination. ``.bpk``, or the extension of `format`, is appended to a name without one (R38).
            format: ``"burnpack"``, ``"safetensors"``, ``"mpk"`` (named MessagePack) or ``"mpk.gz"``; None to tell it
                by the extension.
            digest: whether a burnpack file carries two SHA-256 digests in its metadata, by
                which damage is found (D1); without, the bytes are those that Burn writes.
            for_burn: of named MessagePack the version of Burn that is to read it, ``"0.9"`` to
                ``"0.21"``; None for ``"0.21"``. Later ones read burnpack.
            stateless: of named MessagePack, what stands at paths of the module that have no entry, where Burn asks
                for something: empty vectors, and enums and arrays of configuration without state (N17), as in
                ``{"act.Relu": None, "blocks": [], "conv.stride": [None, None]}``. A record that was read from such
                a file knows them, and a field that holds nothing may be left out.

        Raises:
            RecordError: the record holds what the format cannot, or more than readers take.
            RecordIoError: the system refused; the old file, if any, is still there.
        """
        destination = destination_of(file, format)
        chosen = format_of(destination, format)
        is_named_mpk = chosen in ("mpk", "mpk.gz")
        if not is_named_mpk and (for_burn is not None or stateless is not None):
            raise RecordError(f"{destination}: for_burn and stateless are for named MessagePack, *.mpk or *.mpk.gz")
        if is_named_mpk:
            write_named_mpk(
                destination,
                self,
                self.scalars,
                self.metadata,
                for_burn="0.21" if for_burn is None else for_burn,
                stateless=stateless or {},
                is_gzip=chosen == "mpk.gz",
            )
        elif chosen == "safetensors":
            write_safetensors(destination, self, self.scalars, self._texts())
        else:
            write_burnpack(destination, self.items(), self.scalars, self._texts(), with_digest=digest)

    def into_bytes(self, digest: bool = True) -> bytes:
        """The bytes of the burnpack file that `save` would write.

        Raises:
            RecordError: the record holds what the format cannot, or more than readers take.
        """
        return burnpack_bytes(self.items(), self.scalars, self._texts(), with_digest=digest)

    def _texts(self) -> dict[str, str]:
        return {name: _text(name, value) for name, value in self.metadata.items()}

    def close(self) -> None:
        """Close the files that entries are read from. Tensors that were read stay valid."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stepped(step: Step, entries: Mapping[str, RecordEntry]) -> Mapping[str, RecordEntry]:
    """What a step gives, checked to be entries by path."""
    made: Any = step(entries)
    if not isinstance(made, Mapping) or not all(isinstance(entry, RecordEntry) for entry in made.values()):
        raise RecordFormatError(f"adapt: {step!r} gave something else than RecordEntries by path")
    return made


def _pairs(entries: Mapping[str, RecordEntry] | Iterable[tuple[str, RecordEntry]]) -> Iterator[tuple[Any, Any]]:
    """Pairs of path and entry, as the caller gave them, each checked to be a pair."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise RecordFormatError(f"entries are pairs of a path and a RecordEntry, not {entries!r:.80}")
    for pair in entries.items() if isinstance(entries, Mapping) else entries:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RecordFormatError(f"entries are pairs of a path and a RecordEntry; {pair!r:.80} is none")
        yield pair[0], pair[1]


def _text(name: str, value: Any) -> str:
    """Metadata as a burnpack file holds it: a text as it is, other values as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"metadata {name!r} cannot be written: it is no text, and has no JSON form ({error})"
        ) from None
