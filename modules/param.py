"""Parameters: a tensor with an identity, that a module owns.

A `Param` is a value. Its methods return a new one; places that hold the same
object are tied (D8). It may be *lazy*: its tensor is made when somebody first
reads it, and everything that can be known without it (shape, dtype, device,
id) is there before.

Two facts about gradients are kept apart (M21). `trainable` is what was
configured, and survives validation and plain devices. Whether the tensor
itself retains a gradient is the tensor's own ``is_require_grad``.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, final

from engine import Device, Gradients, Tensor, kind_of
from engine.creation import checked_shape
from engine.dtype import DType, Kind
from records import ParamId

from .attached import Attached
from .errors import ModuleError
from .lazy import INITIALIZING, Cell, Initializer

if TYPE_CHECKING:
    from .reparameterization import Reparameterization

TensorMap: TypeAlias = Callable[[Tensor], Tensor]


class ParamMappers(NamedTuple):
    """What a parameter does to tensors from and for records (M32), and its configured trainability (M30).

    `trainable` None means: as the tensor itself is.
    """

    load: TensorMap | None = None
    save: TensorMap | None = None
    trainable: bool | None = None


@final
class Param:
    """A parameter over a tensor, with a fresh id. It is configured to train if the tensor is of floats.

    On an autodiff device the tensor becomes a leaf that retains its gradient;
    on a plain one that is remembered for `Module.train` (M23).

    Args:
        tensor: the value.

    Raises:
        TypeError: `tensor` is no Tensor.
        AutodiffError: a recorded operation made it; `detach` it first.
    """

    __slots__ = ("__weakref__", "_attached", "_cell", "_device", "_id", "_mappers", "_trainable", "_value")

    _id: ParamId
    _attached: Attached | None  # of one with a reparameterization, which has neither value nor cell of its own
    _value: Tensor | None
    _cell: Cell | None  # while the value is not made, or not taken over
    _device: Device | None  # while there is a cell: where the value will be, and whether autodiff
    _trainable: bool
    _mappers: ParamMappers

    def __init__(self, tensor: Tensor) -> None:
        _check_tensor("Param", tensor)
        trainable = kind_of(tensor.dtype) == "float"
        value = tensor.set_require_grad(True) if trainable else tensor
        self._set(ParamId.new(), value, None, None, trainable, ParamMappers())

    def _set(
        self,
        id_: ParamId,
        value: Tensor | None,
        cell: Cell | None,
        device: Device | None,
        trainable: bool,
        mappers: ParamMappers,
    ) -> Self:
        self._id = id_
        self._value = value
        self._cell = cell
        self._device = device
        self._trainable = trainable
        self._mappers = mappers
        self._attached = None
        return self

    @classmethod
    def _new(cls) -> Self:
        return cls.__new__(cls)

    @classmethod
    def initialized(cls, id: ParamId | int, tensor: Tensor, mappers: ParamMappers | None = None) -> Self:
        """A parameter of an id and a tensor; it trains if the tensor requires a gradient, or as `mappers` say (M30)."""
        _check_tensor("Param.initialized", tensor)
        mappers = mappers or ParamMappers()
        trainable = tensor.is_require_grad if mappers.trainable is None else mappers.trainable
        trainable = trainable and kind_of(tensor.dtype) == "float"
        return cls._new()._set(ParamId(id), tensor, None, None, trainable, mappers._replace(trainable=None))

    @classmethod
    def lazy(
        cls,
        init: Initializer,
        shape: Sequence[int],
        dtype: Any,
        device: Device | str,
        require_grad: bool = True,
        id: ParamId | int | None = None,
    ) -> Self:
        """A parameter whose tensor ``init(device, require_grad)`` makes when it is first read (M24).

        Args:
            init: gets the device it must create the value on, and whether the value will retain a gradient.
                All initialisers run under one lock: it may read other lazy parameters, but not wait for
                another thread that does.
            shape: the shape it will have.
            dtype: the dtype it will have.
            device: where it will be; an autodiff device makes it part of autodiff.
            require_grad: whether it trains; integers and booleans never do.
            id: by default a fresh one.
        """
        cell = Cell(init, checked_shape("Param.lazy", shape), dtype)
        trainable = require_grad and kind_of(cell.dtype) == "float"
        id_ = ParamId.new() if id is None else ParamId(id)
        return cls._new()._set(id_, None, cell, Device(device), trainable, ParamMappers())

    # What can be known without the value

    @property
    def id(self) -> ParamId:
        """Its identity, which records and optimizers go by."""
        return self._id

    @property
    def is_initialized(self) -> bool:
        """Whether the value exists, whichever version of the parameter made it (D3)."""
        return self._pending() is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; while lazy the declared one, which an init mapper does not change (M33)."""
        known = self._known()
        return known.shape

    @property
    def dtype(self) -> DType:
        """Its dtype; while lazy the declared one."""
        return self._known().dtype

    @property
    def kind(self) -> Kind:
        """``"float"``, ``"int"`` or ``"bool"``."""
        value = self._value  # asked of every parameter in every walk, so without a detour where the value is there
        return kind_of(self.dtype if value is None else value.dtype)

    @property
    def device(self) -> Device:
        """Where the value is, or will be made, with its autodiff flag."""
        value, device = self._value, self._device
        if value is not None:
            return value.device
        return self._bare.device if device is None else device

    @property
    def trainable(self) -> bool:
        """Whether it is configured to train; while lazy, whether it will."""
        return self._trainable

    @property
    def _is_recorded(self) -> bool:
        """Whether a recorded operation made the value, as `Module.to_device` does: it cannot train then (M49)."""
        value = self._value
        return value is not None and value.is_tracked and not value.is_require_grad

    @property
    def num_elements(self) -> int:
        """Product of its shape; 1 for rank 0."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of its value in memory; while lazy those that it will take."""
        known = self._known()
        return known.nbytes if isinstance(known, Tensor) else self.num_elements * known.dtype.itemsize

    @property
    def _bare(self) -> "Param":
        """The parameter without its reparameterization; itself if it has none (M17)."""
        attached = self._attached
        return self if attached is None else attached.bare

    def _known(self) -> Tensor | Cell:
        """Whatever says shape and dtype: the value if there is one, else the cell's declaration."""
        value, cell = self._bare._now()
        if value is not None or cell is None:
            return self.base()
        return cell if cell.value is None else cell.value

    def _now(self) -> tuple[Tensor | None, Cell | None]:
        """The value and the cell, of which one is there: who takes the value over sets it before dropping the cell."""
        cell = self._cell
        return self._value, cell

    def _pending(self) -> Cell | None:
        """The cell, if nobody has made its value yet."""
        cell = self._bare._cell
        return cell if cell is not None and cell.value is None else None

    # The value

    def val(self) -> Tensor:
        """The value that layers compute with: what its reparameterization makes of the stored one, which is made
        now if it is lazy; without one the stored value itself (M28).

        Raises:
            ModuleError: the reparameterization gives no floats of the base's rank.
        """
        value = self._value  # None where there is a reparameterization, so that the others cost nothing more
        return self._computed() if value is None else value

    def base(self) -> Tensor:
        """The stored value; made now if it is lazy (M28)."""
        value, attached = self._value, self._attached
        if value is not None:
            return value
        return self._taken_over() if attached is None else attached.bare.base()

    @property
    def reparameterization(self) -> "Reparameterization | None":
        """The reparameterization that is attached to it, or None (A12)."""
        attached = self._attached
        return None if attached is None else attached.reparameterization

    def _computed(self) -> Tensor:
        attached = self._attached
        return self._taken_over() if attached is None else attached.value()

    def grad(self, gradients: Gradients) -> Tensor | None:
        """The gradient of the stored value, plain and on its device; None if it has none there (M73). Makes nothing."""
        value = self._bare._value  # of a lazy one nothing can have been computed
        return None if value is None else value.grad(gradients)

    def _taken_over(self) -> Tensor:
        """Make the cell's value, or take it over as a leaf of this version's own (D3)."""
        with INITIALIZING:
            value, cell, device = self._value, self._cell, self._device
            if value is not None:
                return value
            if cell is None or device is None:
                raise AssertionError("a parameter without value has a cell and a device")
            wish = self._trainable and device.is_autodiff
            value = cell.value_for(device, wish).to_device(device)
            value = value.autodiff().set_require_grad(wish) if device.is_autodiff else value
            self._value = value
            self._cell = None
            return value

    # New parameters out of this one

    def map(self, f: TensorMap) -> Self:
        """The parameter with ``f(base)`` as its value, of the same id and settings; made first if lazy (M29).

        It has no reparameterization any more.
        """
        mapped = f(self.base())
        _check_tensor("Param.map", mapped)
        return self._with_value(mapped)

    def consume(self) -> "tuple[ParamId, Tensor, ParamMappers]":
        """Its id, stored value and mappers, for `Param.initialized` to put together again (M30)."""
        return self._id, self.base(), self._mappers._replace(trainable=self._trainable)

    def with_id(self, id: ParamId | int) -> "Param":
        """The parameter under another id."""
        if self._attached is not None:
            return self._attached_to(self._bare.with_id(id))
        value, cell = self._now()
        return self._new()._set(ParamId(id), value, cell, self._device, self._trainable, self._mappers)

    def set_require_grad(self, require: bool) -> "Param":
        """The parameter configured to train or not; integers and booleans never do (M35). Makes nothing (M63).

        A reparameterization stays attached, as it is (M53a).

        Raises:
            AutodiffError: `require`, and a recorded operation made the value.
        """
        if self._attached is not None:
            return self._attached_to(self._bare.set_require_grad(require))
        if self.kind != "float" or (require == self._trainable and self._is_settled(require)):
            return self
        value, cell = self._now()
        value = None if value is None else value.set_require_grad(require)
        return self._new()._set(self._id, value, cell, self._device, require, self._mappers)

    def with_mappers(
        self, *, load: TensorMap | None = None, save: TensorMap | None = None, init: TensorMap | None = None
    ) -> "Param":
        """The parameter with other mappers; None leaves the one there is (M32).

        Args:
            load: applied to a record's tensor when it is loaded.
            save: applied to the stored value when it is recorded.
            init: applied once to the value when it is made, or now if it is there; it gets it untracked. It drops
                a reparameterization.
        """
        if self._attached is not None:
            changed = self._bare.with_mappers(load=load, save=save, init=init)
            return self._attached_to(changed) if init is None else changed
        mappers = self._mappers._replace(load=load or self._mappers.load, save=save or self._mappers.save)
        if init is None:
            value, cell = self._now()
            return self._new()._set(self._id, value, cell, self._device, self._trainable, mappers)
        pending = self._pending()
        if pending is not None:
            return self._new()._set(self._id, None, pending.mapped(init), self._device, self._trainable, mappers)
        base = self.base()
        mapped = init(base.set_require_grad(False))
        _check_tensor("the init mapper", mapped)
        value = mapped.set_require_grad(base.is_require_grad)
        return self._new()._set(self._id, value, None, None, self._trainable, mappers)

    @property
    def mappers(self) -> ParamMappers:
        """Its load and save mappers."""
        return self._mappers

    def _with_value(self, value: Tensor) -> Self:
        return self._new()._set(self._id, value, None, None, self._trainable, self._mappers)

    def _with_reparameterization(self, reparameterization: "Reparameterization") -> Self:
        """This parameter, which has none, with a reparameterization; `attach` checks that it can have it."""
        made = self._new()._set(self._id, None, None, None, self._trainable, self._mappers)
        made._attached = Attached(self, reparameterization)
        return made

    def _attached_to(self, bare: "Param") -> "Param":
        """Another parameter with the reparameterization of this one, or this one where that is its own bare one."""
        attached = self._attached
        if attached is None:
            raise AssertionError("asked of a parameter with a reparameterization")
        return self if bare is attached.bare else bare._with_reparameterization(attached.reparameterization)

    def _is_settled(self, require: bool) -> bool:
        """Whether the value, if there is one, already is a leaf exactly if it should be, and else has no history."""
        value = self._value
        return value is None or value.is_require_grad == value.is_tracked == (require and value.device.is_autodiff)

    def _moved(self, device: Device, cut: bool) -> Self:
        """The parameter on another device, still lazy if it was (M46, M47); `cut` makes it a leaf there (M42)."""
        pending = self._pending()
        if pending is not None:
            place = device.autodiff() if self.device.is_autodiff else device.inner()
            return self._new()._set(self._id, None, pending, place, self._trainable, self._mappers)
        base = self.base()
        if cut:
            moved = base.set_require_grad(False).to_device(device).set_require_grad(base.is_require_grad)
        else:
            moved = base.to_device(device)
        return self if moved is base else self._with_value(moved)

    def _associated(self, autodiff: bool) -> Self:
        """The parameter as `train` (True) or `valid` (False) leaves it, still lazy if it was (M63).

        Raises:
            AutodiffError: it is to train, and `_is_recorded`.
        """
        pending = self._pending()
        if pending is not None:
            place = self.device.autodiff() if autodiff else self.device.inner()
            if place.is_autodiff == self.device.is_autodiff:
                return self
            return self._new()._set(self._id, None, pending, place, self._trainable, self._mappers)
        base = self.base()
        value = base.autodiff().set_require_grad(self._trainable) if autodiff else base.without_autodiff()
        return self if value is base else self._with_value(value)

    def _save_form(self) -> Tensor:
        """The stored value as records hold it: through the save mapper, without autodiff (R2, R3)."""
        value = self.base().without_autodiff()
        save = self._mappers.save
        if save is None:
            return value
        saved = save(value)
        _check_tensor("the save mapper", saved)
        return saved.without_autodiff()

    def _record_shape(self) -> tuple[int, ...]:
        """The shape that a record's entry must have: that of the save form, or the declared one (M33, R13)."""
        if self._mappers.save is None or not self.is_initialized:
            return self.shape
        return self._save_form().shape

    def _record_dtype(self) -> DType:
        """The dtype of the save form, or the declared one; it differs from `dtype` as a permuted scheme does (Q13)."""
        if self._mappers.save is None or not self.is_initialized:
            return self.dtype
        return self._save_form().dtype

    def _loaded(self, id: ParamId | None, tensor: Tensor) -> Self:
        """The parameter with a record's tensor, on its own device, as its value (M34)."""
        load = self._mappers.load
        device = self.device
        value = tensor if load is None else load(tensor)
        _check_tensor("the load mapper", value)
        value = value.autodiff() if device.is_autodiff else value.without_autodiff()
        value = value.set_require_grad(self._trainable)
        return self._new()._set(self._id if id is None else id, value, None, None, self._trainable, self._mappers)

    def __repr__(self) -> str:
        state = "" if self.is_initialized else ", lazy"
        state += f", with {self.reparameterization.NAME}" if self.reparameterization is not None else ""
        return f"Param({self.dtype} {list(self.shape)} on {self.device}, id {self._id}{state})"

    def __reduce__(self) -> Any:
        raise TypeError("a Param is not pickled; put it into a Module and use save_file")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _check_tensor(what: str, value: object) -> None:
    if not isinstance(value, Tensor):
        if what[0].islower():
            raise ModuleError(f"{what} gave a {type(value).__qualname__}, not a Tensor")
        raise TypeError(f"{what} takes a Tensor, not a {type(value).__qualname__}; make one with tensor(…, device=…)")
