"""Running states: tensors that a layer updates while it runs, such as a mean over batches.

It is the one child of a module that changes. Every derived module has its own
over the same tensor, so only the module that runs changes (M97).
"""

import threading
from collections.abc import Callable
from typing import Any, Self, final

from engine import Tensor, kind_of
from records import ParamId

from .errors import ModuleError
from .param import Param


@final
class RunningState:
    """A tensor of floats that changes under a lock; never trainable, never quantized (M93, M96).

    Args:
        tensor: the first value.
        id: by default a fresh one.

    Raises:
        ModuleError: `tensor` is no tensor of floats.
    """

    __slots__ = ("__weakref__", "_id", "_lock", "_value")

    def __init__(self, tensor: Tensor, id: ParamId | int | None = None) -> None:
        if not isinstance(tensor, Tensor) or kind_of(tensor.dtype) != "float":
            raise ModuleError(f"a running state holds a Tensor of floats, not {tensor!r}")
        self._id = ParamId.new() if id is None else ParamId(id)
        self._value = tensor.set_require_grad(False)
        self._lock = threading.RLock()

    @property
    def id(self) -> ParamId:
        """Its identity, which loading does not change (R19)."""
        return self._id

    def value(self) -> Tensor:
        """What it is now; an update shows at once (M94)."""
        with self._lock:
            return self._value

    def update(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Replace the value by ``f(value)``, under the lock, so that threads take turns; gives the new value.

        Raises:
            ModuleError: `f` gives no Tensor of the same shape, dtype and device; the value stays as it was.
        """
        with self._lock:
            before = self._value
            after = f(before)
            if not isinstance(after, Tensor):
                raise ModuleError(f"update of a running state gave a {type(after).__qualname__}, not a Tensor")
            was, now = ((t.shape, str(t.dtype), str(t.device.inner())) for t in (before, after))
            if was != now:
                raise ModuleError(f"update of a running state gave {now}; it holds {was} (shape, dtype, device)")
            self._value = after.set_require_grad(False)
            return self._value

    def _as_param(self) -> Param:
        """What visitors and mappers are shown (M95)."""
        return Param.initialized(self._id, self.value())

    def _derived(self, value: Tensor) -> Self:
        """A running state of its own with the same id (M97)."""
        return type(self)(value, self._id)

    def __repr__(self) -> str:
        value = self.value()
        return f"RunningState({value.dtype} {list(value.shape)} on {value.device}, id {self._id})"

    def __copy__(self) -> Self:
        return self._derived(self.value())

    def __deepcopy__(self, memo: Any) -> Self:
        return self._derived(self.value())

    def __reduce__(self) -> Any:
        raise TypeError("a RunningState is not pickled; put it into a Module and use save_file")
