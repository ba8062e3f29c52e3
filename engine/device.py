"""Devices: where a tensor's memory lies and where operations on it run.

A `Device` is a value, the name of a piece of hardware. Naming one touches
nothing; using one that is not there is a `DeviceError`. The *autodiff flag*
rides along without being part of the identity: it decides what a tensor made
on the device is (M39, M44), and two devices that differ in nothing else are
equal. Nothing is kept about a *current* device: each call is told its own.
"""

import re
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, cast, final

from . import backend
from .backend import Backend, Memory
from .errors import DeviceError

Hardware: TypeAlias = Literal["cpu", "cuda"]

_TEXT: Final = re.compile(r"(cpu|cuda):(0|[1-9][0-9]{0,8})(\+autodiff)?", re.ASCII)


@final
class Device:
    """A place for tensors: ``Device("cpu:0")``, ``Device("cuda:1+autodiff")``.

    Equality and hash are those of the hardware, so an autodiff and a plain
    device of one card are equal (M39).

    Args:
        text: ``"KIND:INDEX"`` with kind ``cpu`` or ``cuda``, then perhaps ``+autodiff``; or a Device.

    Raises:
        DeviceError: `text` is not of that form.

    Source: Burn 0.23, ``Device``.
    """

    __slots__ = ("_backend", "index", "is_autodiff", "kind")

    kind: Hardware
    index: int
    is_autodiff: bool
    _backend: Backend | None

    _known: ClassVar[dict[tuple[str, int, bool], "Device"]] = {}

    def __new__(cls, text: "str | Device") -> "Device":
        if isinstance(text, Device):
            return text
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DeviceError(f"{text!r} is no device; write 'cpu:0', 'cuda:1' or 'cuda:1+autodiff'")
        kind, index, flag = match.groups()
        return cls._of(cast(Hardware, kind), int(index), flag is not None)

    @classmethod
    def _of(cls, kind: Hardware, index: int, is_autodiff: bool) -> "Device":
        """The one object of these three, so that comparing devices is mostly comparing addresses."""
        key = (kind, index, is_autodiff)
        found = cls._known.get(key)
        if found is None:
            made = object.__new__(cls)
            values = {"kind": kind, "index": index, "is_autodiff": is_autodiff, "_backend": None}
            for name, value in values.items():
                object.__setattr__(made, name, value)
            found = cls._known.setdefault(key, made)
        return found

    @classmethod
    def cpu(cls, index: int) -> "Device":
        """The CPU device of that index; any index from 0 on exists."""
        return cls(f"cpu:{index}")

    @classmethod
    def cuda(cls, index: int) -> "Device":
        """The GPU of that index, as CUDA numbers them."""
        return cls(f"cuda:{index}")

    @classmethod
    def available(cls, kind: Hardware) -> list["Device"]:
        """The devices of a kind that this machine has: ``[cpu:0]`` for CPUs, and never an error.

        Raises:
            DeviceError: there is no such kind.
        """
        if kind not in ("cpu", "cuda"):
            raise DeviceError(f"{kind!r} is no kind of device; there are 'cpu' and 'cuda'")
        try:
            return [cls._of(kind, index, False) for index in backend.load(kind).indices()]
        except DeviceError:
            return []

    def autodiff(self) -> "Device":
        """This hardware with the autodiff flag: tensors made on it can be tracked."""
        return self._of(self.kind, self.index, True)

    def inner(self) -> "Device":
        """This hardware without the autodiff flag."""
        return self._of(self.kind, self.index, False)

    @property
    def backend(self) -> Backend:
        """What computes and copies for this kind of device.

        Raises:
            DeviceError: the package that a GPU needs is not installed.
        """
        found = self._backend
        if found is None:
            found = backend.load(self.kind)
            object.__setattr__(self, "_backend", found)
        return found

    @property
    def xp(self) -> Any:
        """The array module: ``numpy``, or ``cupy``."""
        return self.backend.xp

    def memory(self) -> Memory:
        """Free and total bytes of this device's memory, asked of it now. CPU devices share the machine's."""
        return self.backend.memory(self.index)

    def synchronize(self) -> None:
        """Wait until the device has finished all work given to it. On a CPU device nothing is ever pending."""
        self.backend.synchronize(self.index)

    def __enter__(self) -> Self:
        self.backend.enter(self.index)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.backend.leave(self.index, error)

    def host(self) -> "Device":
        """The CPU device whose memory serves while a tensor for this one is made: itself, or cpu:0 for a GPU."""
        return self if self.kind == "cpu" else self.cpu(0)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Device) and (self.kind, self.index) == (other.kind, other.index))

    def __hash__(self) -> int:
        return hash((self.kind, self.index))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Device is a value; {name} cannot be assigned")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Device is a value; {name} cannot be deleted")

    def __reduce__(self) -> tuple[type["Device"], tuple[str]]:
        return Device, (str(self),)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}{'+autodiff' if self.is_autodiff else ''}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"
