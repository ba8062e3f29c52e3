"""Parameters: constructors, what makes a value, mappers, and the values that their methods give (M21 to M35)."""

import copy
from typing import Any

import numpy as np
import pytest

from engine import Device, DeviceMismatchError, DTypeError, ShapeError, Tensor, tensor, zeros
from modules import Module, ModuleError, Param, ParamMappers
from records import ParamId

from .small_modules import AUTODIFF, numbers

SHAPE = (2, 3)


class Making:
    """An initialiser that notes its calls and gives the numbers from 1 on."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> None:
        self.calls: list[tuple[str, bool]] = []
        self.shape = shape
        self.dtype = dtype

    def __call__(self, device: Device, require_grad: bool) -> Tensor:
        self.calls.append((str(device), require_grad))
        array = np.arange(1, 1 + int(np.prod(self.shape)), dtype=self.dtype).reshape(self.shape)
        return Tensor.from_numpy(array, device)

    def param(self, device: str = "cpu:0", require_grad: bool = True, id: int | None = None) -> Param:
        return Param.lazy(self, self.shape, self.dtype, device, require_grad, id)


class Holder(Module):
    """Tied parameters, to move them together."""

    def __init__(self, *params: Param) -> None:
        self.params = list(params)


def state(param: Param) -> tuple[bool, bool]:
    """Configured and effective trainability: a, e."""
    return param.trainable, param.val().is_require_grad


# Constructors


@pytest.mark.parametrize(("device", "effective"), [("cpu:0", False), (AUTODIFF, True)])
def test_a_parameter_of_a_tensor_has_a_fresh_id_and_is_to_train(device: str, effective: bool):
    """M23: a is True even on a plain device, e only where the tensor is an autodiff one."""
    value = numbers(2, device=device)
    param = Param(value)

    assert state(param) == (True, effective)
    assert param.id != Param(value).id
    assert param.is_initialized
    assert np.array_equal(param.val().numpy(), value.numpy())
    assert (param.shape, str(param.dtype), param.kind, str(param.device)) == ((2,), "float32", "float", device)


@pytest.mark.parametrize("require_grad", [False, True])
def test_a_parameter_of_an_id_and_a_tensor_trains_as_the_tensor_does(require_grad: bool):
    """M23: a and e are the tensor's own require-grad."""
    param = Param.initialized(7, numbers(2, device=AUTODIFF).set_require_grad(require_grad))

    assert state(param) == (require_grad, require_grad)
    assert int(param.id) == 7
    assert state(Param.initialized(ParamId(7), numbers(2))) == (False, False)


@pytest.mark.parametrize("require_grad", [False, True])
@pytest.mark.parametrize("device", ["cpu:0", AUTODIFF])
def test_a_lazy_parameter_is_made_at_its_first_use(device: str, require_grad: bool):
    """M23, M24: the initialiser gets the device and the wish that counts there; a is the wish, e only on autodiff."""
    making = Making()
    param = making.param(device, require_grad, id=9)
    effective = require_grad and device == AUTODIFF

    assert (param.shape, str(param.dtype), param.kind) == (SHAPE, "float32", "float")
    assert (str(param.device), param.trainable, int(param.id)) == (device, require_grad, 9)
    assert param.num_elements == 6
    assert not param.is_initialized
    assert "lazy" in repr(param)
    assert not making.calls
    assert state(param) == (require_grad, effective)
    assert param.val() is param.base()
    assert making.calls == [(device, effective)]
    assert param.is_initialized
    assert "lazy" not in repr(param)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_and_booleans_never_train(dtype: str):
    """M35: whatever is asked."""
    for device in ("cpu:0", AUTODIFF):
        made = Param(zeros((2,), device=device, dtype=dtype))
        lazy = Making((2,), dtype).param(device, require_grad=True)
        for param in (made, lazy, made.set_require_grad(True), lazy.set_require_grad(True)):
            assert state(param) == (False, False)
        mappers = ParamMappers(trainable=True)
        assert state(Param.initialized(1, made.val(), mappers)) == (False, False)
    assert made.set_require_grad(True) is made


def test_what_is_no_tensor_is_refused():
    """The message says how to make one."""
    for make in (Param, lambda value: Param.initialized(1, value)):
        with pytest.raises(TypeError, match=r"takes a Tensor, not a list; make one with tensor\(…, device=…\)"):
            make([1.0, 2.0])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (lambda device: numbers(3, 2), ShapeError, r"shape \(3, 2\); the parameter is declared with \(2, 3\)"),
        (lambda device: numbers(*SHAPE).cast("float64"), DTypeError, "float64; the parameter is declared with float32"),
        (lambda device: numbers(*SHAPE, device="cpu:5"), DeviceMismatchError, "on cpu:5; it was told to use cpu:0"),
        (lambda device: np.zeros(SHAPE), ModuleError, "gave a ndarray, not a Tensor"),
    ],
)
def test_an_initialiser_that_does_not_keep_its_word_is_refused(result: Any, error: type[Exception], words: str):
    """M24: the parameter stays lazy, and the next reader may succeed (D6)."""
    results = [result, lambda device: numbers(*SHAPE)]
    param = Param.lazy(lambda device, require_grad: results.pop(0)(device), SHAPE, "float32", "cpu:0")
    with pytest.raises(error, match=words):
        param.val()

    assert not param.is_initialized
    assert np.array_equal(param.val().numpy(), numbers(*SHAPE).numpy())


def test_an_initialiser_that_reads_its_own_parameter_is_refused():
    """DESIGN: an error, not a hang."""
    params: list[Param] = []
    params.append(Param.lazy(lambda device, require_grad: params[0].val(), (1,), "float32", "cpu:0"))
    with pytest.raises(ModuleError, match="reads the parameter that it is initialising"):
        params[0].val()


def test_a_malformed_declaration_is_refused_at_once():
    """Not at the first use."""
    with pytest.raises(ShapeError, match=r"Param\.lazy"):
        Param.lazy(Making(), (-1,), "float32", "cpu:0")
    with pytest.raises(DTypeError):
        Param.lazy(Making(), (1,), "complex64", "cpu:0")


# Versions of one parameter


def test_versions_of_a_lazy_parameter_share_one_value():
    """M26, M47: whoever is read first makes it, on its own device; each is a leaf of its own there (D3)."""
    making = Making()
    first = making.param(AUTODIFF)
    holder = Holder(first)
    moved = holder.to_device("cpu:1").params[0]
    frozen = first.set_require_grad(False)
    values = [moved.val(), first.val(), frozen.val()]

    assert making.calls == [("cpu:1+autodiff", True)]
    assert [str(value.device) for value in values] == ["cpu:1+autodiff", AUTODIFF, AUTODIFF]
    assert [value.is_require_grad for value in values] == [True, True, False]
    assert all(np.array_equal(value.numpy(), values[0].numpy()) for value in values)
    assert frozen.is_initialized


def test_a_version_knows_that_another_made_the_value():
    """DESIGN: is_initialized and shape ask the shared cell."""
    making = Making()
    first = making.param().with_mappers(init=lambda value: value.T)
    other = first.set_require_grad(False)

    assert first.shape == SHAPE
    other.val()
    assert first.is_initialized
    assert first.shape == (3, 2)


def test_a_parameter_is_a_value():
    """M26: what is done to one is invisible in the others; copies are the parameter itself."""
    param = Param(numbers(2))
    with_other_id, frozen = param.with_id(3), param.set_require_grad(False)

    assert param.trainable
    assert not frozen.trainable
    assert int(with_other_id.id) == 3
    assert param.id == frozen.id != with_other_id.id
    assert copy.copy(param) is copy.deepcopy(param) is param
    assert param != param.with_id(param.id)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_wish_is_recorded_without_making_the_value(lazy: bool):
    """M59, M63: on a plain device a follows and e stays False; on an autodiff one e follows too."""
    making = Making()
    for device in ("cpu:0", AUTODIFF):
        param = making.param(device) if lazy else Param(numbers(*SHAPE, device=device))
        calls = len(making.calls)
        off = param.set_require_grad(False)
        on = off.set_require_grad(True)

        assert len(making.calls) == calls
        assert state(off) == (False, False)
        assert state(on) == (True, device == AUTODIFF)
        assert param.set_require_grad(True) is param


# map, consume, initialized


def test_map_applies_a_function_to_the_stored_value():
    """M29: id, mappers and a are kept, and e is what the function gave."""
    param = Param(numbers(2)).with_mappers(save=lambda value: value.cast("float16"))
    mapped = param.map(lambda value: value * 2)

    assert np.array_equal(mapped.val().numpy(), [2, 4])
    assert mapped.id == param.id
    assert mapped.trainable
    assert mapped.mappers == param.mappers
    on_autodiff = Param(numbers(2, device=AUTODIFF)).map(lambda value: numbers(2, device=AUTODIFF))
    assert state(on_autodiff) == (True, False)
    with pytest.raises(TypeError, match=r"Param\.map takes a Tensor, not a int"):
        param.map(lambda value: 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("trainable", [False, True])
def test_what_consume_gives_rebuilds_the_parameter(trainable: bool):
    """M30: with another value too; a is what the mappers carry, whichever parameter they come from."""
    param = Making().param(require_grad=trainable).with_mappers(load=lambda value: value + 1)
    id_, base, mappers = param.consume()
    rebuilt = Param.initialized(id_, base * 3, mappers)

    assert mappers.trainable is trainable
    assert (rebuilt.id, rebuilt.trainable) == (param.id, trainable)
    assert rebuilt.mappers == param.mappers
    assert rebuilt.mappers.trainable is None
    assert np.array_equal(rebuilt.val().numpy(), base.numpy() * 3)
    other = Param.initialized(1, numbers(1, device=AUTODIFF).require_grad(), mappers)
    assert state(other) == (trainable, True)


def test_mappers_that_were_never_consumed_leave_a_to_the_value():
    """M30: a becomes the value's own e."""
    mappers = ParamMappers(save=lambda value: value)
    leaf = numbers(1, device=AUTODIFF).require_grad()

    assert Param.initialized(1, leaf, mappers).trainable
    assert not Param.initialized(1, leaf.set_require_grad(False), mappers).trainable


# Mappers


def transposed(value: Tensor) -> Tensor:
    return value.T


def test_an_init_mapper_of_a_lazy_parameter_runs_when_the_value_is_made():
    """M32, M33: once, on an untracked value; until then the shape is the one before. The result is the leaf."""
    making = Making()
    seen: list[tuple[bool, str]] = []

    def mapper(value: Tensor) -> Tensor:
        seen.append((value.is_tracked, str(value.device)))
        return value.T

    param = making.param(AUTODIFF).with_mappers(init=mapper)

    assert not making.calls
    assert param.shape == SHAPE
    assert np.array_equal(param.val().numpy(), numbers(*SHAPE).numpy().T)
    assert param.shape == (3, 2)
    assert state(param) == (True, True)
    assert param.val() is param.val()
    assert seen == [(False, AUTODIFF)]


def test_an_init_mapper_of_an_initialised_parameter_runs_at_once():
    """M32: on the value made untracked, and the result is a leaf again."""
    seen: list[bool] = []

    def mapper(value: Tensor) -> Tensor:
        seen.append(value.is_tracked)
        return value.T

    param = Param(numbers(*SHAPE, device=AUTODIFF))
    mapped = param.with_mappers(init=mapper)

    assert seen == [False]
    assert mapped.shape == (3, 2)
    assert state(mapped) == (True, True)
    assert param.shape == SHAPE


def test_init_mappers_compose_and_leave_versions_made_before_alone():
    """DESIGN: the initialiser still runs once for all of them."""
    making = Making()
    plain = making.param()
    once = plain.with_mappers(init=lambda value: value + 1)
    twice = once.with_mappers(init=lambda value: value * 2)

    assert np.array_equal(twice.val().numpy(), (numbers(*SHAPE).numpy() + 1) * 2)
    assert np.array_equal(once.val().numpy(), numbers(*SHAPE).numpy() + 1)
    assert np.array_equal(plain.val().numpy(), numbers(*SHAPE).numpy())
    assert len(making.calls) == 1


def test_an_init_mapper_that_gives_no_tensor_or_another_device_is_refused():
    """Lazy or not."""
    for param in (Making().param(), Param(numbers(*SHAPE))):
        with pytest.raises(ModuleError, match="the init mapper gave a int, not a Tensor"):
            param.with_mappers(init=lambda value: 3).val()  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeviceMismatchError, match="the init mapper gave a value on cpu:1"):
        Making().param().with_mappers(init=lambda value: value.to_device("cpu:1")).val()


def test_load_and_save_mappers_replace_the_ones_before_and_none_leaves_them():
    """DESIGN."""

    def other(value: Tensor) -> Tensor:
        return value

    param = Param(numbers(*SHAPE)).with_mappers(load=transposed, save=transposed)

    assert param.with_mappers().mappers == param.mappers
    assert param.with_mappers(load=other).mappers == ParamMappers(other, transposed)
    assert param.with_mappers(save=other).mappers == ParamMappers(transposed, other)


def test_a_number_alone_has_one_element():
    """M99: rank 0; a zero extent has none."""
    assert Param(tensor(3.0, device="cpu:0")).num_elements == 1
    assert Param(zeros((2, 0), device="cpu:0")).num_elements == 0
