"""What a Tensor is to Python: immutable, on one device, and never mixed with arrays."""

import copy
import operator
import pickle
import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import AutodiffError, Device, DeviceError, DTypeError, ShapeError, Tensor, ops, tensor, transfer, zeros
from tests.engine.comparison import exact, is_dense, same_bits
from tests.engine.strategies import BFLOAT16, BOOL, DTYPES, FLOATS, INTS, arrays, shapes, tensors

CPU = "cpu:0"

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.and_, operator.or_,
]  # fmt: skip


class TestMaking:
    @given(array=arrays(special=True), data=st.data())
    def test_from_numpy_copies_values_dtype_and_memory_order(self, array, data):
        order = data.draw(st.permutations(range(array.ndim)))
        source = np.ascontiguousarray(array.transpose(order)).reshape([array.shape[a] for a in order])
        source = source.transpose(np.argsort(order)) if order else source
        x = Tensor.from_numpy(source, CPU)
        assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes) == (
            source.shape, source.dtype, source.ndim, source.size, source.nbytes,
        )  # fmt: skip
        assert x.tobytes() == source.tobytes()
        assert not np.shares_memory(x._data, source)
        assert is_dense(x._data)
        assert x._data.strides == source.strides or x.size <= 1 or 1 in x.shape

    @given(array=arrays(shape=shapes(min_rank=1)), step=st.sampled_from([2, -1, -2]))
    def test_arrays_with_gaps_and_negative_strides_become_dense(self, array, step):
        source = array[::step]
        for x in (Tensor.from_numpy(source, CPU), Tensor.adopt(source, CPU), tensor(source, device=CPU)):
            assert x.tobytes() == source.tobytes()
            assert is_dense(x._data)

    def test_from_numpy_takes_scalars_other_byte_orders_and_the_second_int64_of_numpy(self):
        assert Tensor.from_numpy(np.float32(2), CPU).shape == ()
        swapped = Tensor.from_numpy(np.array([1, 2], ">i4"), CPU)
        assert (swapped.dtype, swapped.numpy().tolist()) == (np.dtype("int32"), [1, 2])
        other = Tensor.from_numpy(np.array([1, 2], np.longlong), CPU)
        assert other.dtype is zeros((), device=CPU, dtype="int64").dtype
        assert (other + tensor([1, 2], device=CPU)).numpy().tolist() == [2, 4]

    @pytest.mark.parametrize("array", [[1.0], 1.0, None, "x"])
    def test_from_numpy_takes_arrays_only(self, array):
        with pytest.raises(TypeError, match="from_numpy"):
            Tensor.from_numpy(array, CPU)

    @pytest.mark.parametrize("dtype", ["complex64", "U1", "datetime64[s]", object, "V2"])
    def test_other_dtypes_are_refused(self, dtype):
        with pytest.raises(DTypeError, match="a tensor cannot have dtype"):
            Tensor.from_numpy(np.zeros(2, dtype), CPU)

    def test_adopt_shares_memory_and_refuses_a_foreign_byte_order(self):
        array = np.zeros((2, 3), "float32")
        assert np.shares_memory(Tensor.adopt(array, CPU)._data, array)
        with pytest.raises(DTypeError, match="byte order"):
            Tensor.adopt(np.zeros(2, ">f4"), CPU)

    def test_it_is_not_constructed(self):
        with pytest.raises(TypeError, match=r"tensor\(data, device=…\)"):
            Tensor()

    @pytest.mark.parametrize(
        ("data", "dtype"),
        [
            (1.5, "float32"), ([1, 2.5], "float32"), (3, "int64"), ([[1], [2]], "int64"), (True, "bool"),
            ((True, False), "bool"), ([], "float32"), ([[], []], "float32"), (np.zeros(2, "int8"), "int8"),
            (np.float16(2), "float16"), (np.zeros(2, BFLOAT16), BFLOAT16), (np.zeros(2), "float64"),
        ],
        ids=repr,
    )  # fmt: skip
    def test_numbers_get_the_default_dtype_of_their_kind_and_arrays_keep_theirs(self, data, dtype):
        x = tensor(data, device=CPU)
        assert x.dtype == dtype
        assert x.shape == np.shape(data)
        assert exact(x).tolist() == np.asarray(data, "float64").tolist()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_a_given_dtype_is_taken_where_the_kind_of_the_numbers_stays(self, dtype):
        assert tensor([True], device=CPU, dtype=dtype).dtype == dtype
        if dtype == BOOL:
            for data in ([1], [1.0]):
                with pytest.raises(DTypeError, match="silently"):
                    tensor(data, device=CPU, dtype=dtype)
            return
        assert tensor([1, 0], device=CPU, dtype=dtype).numpy().tolist() == [1, 0]
        if dtype in INTS:
            with pytest.raises(DTypeError, match="silently"):
                tensor([1.0], device=CPU, dtype=dtype)
            with pytest.raises(DTypeError, match="do not fit"):
                tensor([2**63], device=CPU, dtype=dtype if dtype != np.uint64 else "int64")

    @pytest.mark.parametrize(
        "data", ["text", [None], [1j], ["1"], object(), [2**64], {1: 2}], ids=lambda data: type(data).__name__
    )
    def test_what_is_no_numbers_is_refused(self, data):
        with pytest.raises(DTypeError):
            tensor(data, device=CPU)

    def test_nested_lists_of_different_lengths_are_a_shape_error(self):
        with pytest.raises(ShapeError, match="no common shape"):
            tensor([[1], [1, 2]], device=CPU)

    def test_tensors_are_not_numbers(self):
        x = tensor([1.0], device=CPU)
        for data in (x, [x, x], (x,)):
            with pytest.raises(TypeError, match="tensor: data"):
                tensor(data, device=CPU)

    def test_the_device_is_always_given(self):
        with pytest.raises(TypeError, match="device"):
            tensor([1.0])  # pyright: ignore[reportCallIssue]
        with pytest.raises(DeviceError, match="no device"):
            tensor([1.0], device="gpu")


class TestImmutability:
    @given(x=tensors())
    def test_numpy_gives_a_view_that_cannot_be_made_writable(self, x):
        view = x.numpy()
        assert (view.dtype, view.shape, view.tobytes()) == (x.dtype, x.shape, x.tobytes())
        assert x.size == 0 or np.shares_memory(view, x._data)
        for array in (view, view.view(), view[...], np.asarray(x)):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)

    def test_results_of_every_kind_cannot_be_made_writable(self):
        x = tensor(np.arange(6.0).reshape(2, 3), device=CPU)
        for result in (
            x,
            x + 1,
            x.T,
            x.reshape(3, 2),
            x[0],
            x[0, 0],
            ops.sum(x),
            ops.linear(x[None], x.T),
            ops.split(x, (1, 2), 1)[1],
            Tensor.adopt(np.zeros(3), CPU),
        ):
            with pytest.raises(ValueError, match="WRITEABLE"):
                result.numpy().setflags(write=True)

    def test_there_is_no_assignment(self):
        x = tensor([1.0, 2.0], device=CPU)
        with pytest.raises(TypeError):
            x[0] = 2.0  # pyright: ignore[reportIndexIssue]
        for name in ("shape", "dtype", "device", "T", "anything"):
            with pytest.raises(AttributeError):
                setattr(x, name, None)
        y = x
        y += 1
        assert x.numpy().tolist() == [1, 2]

    def test_the_source_may_change_afterwards(self):
        source = np.zeros(3, "float32")
        x, y = Tensor.from_numpy(source, CPU), tensor(source, device=CPU)
        source[:] = 7
        assert x.numpy().tolist() == y.numpy().tolist() == [0, 0, 0]


class TestHost:
    @given(x=tensors(special=True))
    def test_array_is_numpy_and_its_copies_are_the_callers(self, x):
        assert np.asarray(x).tobytes() == x.tobytes()
        copied = np.array(x)
        assert copied.flags.writeable
        assert not np.shares_memory(copied, x._data)
        with np.errstate(all="ignore"):
            assert np.asarray(x, dtype="float64").dtype == np.float64

    @given(x=tensors(shape=shapes(min_rank=1)))
    def test_iterating_gives_the_rows(self, x):
        rows = list(x)
        assert len(rows) == len(x) == x.shape[0]
        assert all(same_bits(row, x[at]) for at, row in enumerate(rows))

    def test_a_number_has_no_length(self):
        for call in (len, iter, list):
            with pytest.raises(TypeError, match="rank 0"):
                call(tensor(1.0, device=CPU))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_one_element_is_a_python_number(self, dtype):
        for shape in ((), (1,), (1, 1, 1)):
            x = tensor(1, device=CPU).cast(dtype).reshape(shape)
            assert float(x) == 1.0
            assert type(float(x)) is float
            assert int(x) == 1
            assert type(int(x)) is int
            assert bool(x) is True
            if dtype in INTS:
                assert [10, 20][x] == 20
            else:
                with pytest.raises(TypeError, match="no index"):
                    operator.index(x)

    @pytest.mark.parametrize("shape", [(0,), (2,), (1, 2)])
    def test_more_or_fewer_elements_are_no_number(self, shape):
        for kind in (float, int, bool):
            with pytest.raises(ShapeError, match=rf"{kind.__name__}\(\) takes a Tensor of one element"):
                kind(zeros(shape, device=CPU))

    def test_repr_shows_values_shape_dtype_and_device(self):
        assert repr(tensor([1.0, 2.5], device="cpu:3")) == "Tensor([1. , 2.5], shape=(2,), dtype=float32, device=cpu:3)"
        assert (
            repr(tensor(True, device="cpu:0+autodiff")) == "Tensor(True, shape=(), dtype=bool, device=cpu:0+autodiff)"
        )
        assert "dtype=bfloat16" in repr(tensor([1.0], device=CPU, dtype=BFLOAT16))
        assert len(repr(zeros((1000, 1000), device=CPU))) < 500

    def test_bytes_are_row_major_and_little_endian(self):
        x = tensor(np.arange(6, dtype="int16").reshape(2, 3), device=CPU)
        assert x.T.tobytes() == b"".join(n.to_bytes(2, "little") for n in (0, 3, 1, 4, 2, 5))
        assert tensor([1.0], device=CPU, dtype=BFLOAT16).tobytes() == b"\x80\x3f"


class TestIdentity:
    def test_equality_is_elementwise_and_the_hash_is_that_of_the_object(self):
        x, y = tensor([1.0, 2.0], device=CPU), tensor([1.0, 2.0], device=CPU)
        assert (x == y).numpy().tolist() == [True, True]
        assert (x != y).numpy().tolist() == [False, False]
        assert len({x, y, x}) == 2
        assert {x: 1}[x] == 1

    def test_copies_are_the_tensor_itself(self):
        x = tensor([1.0], device=CPU)
        assert copy.copy(x) is x
        assert copy.deepcopy([x])[0] is x

    def test_it_is_not_pickled(self):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="save_file"):
                pickle.dumps(tensor([1.0], device=CPU), protocol)


class TestArraysAsOperands:
    @pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
    @pytest.mark.parametrize("array", [np.ones(2, "float32"), np.ones((), "float32"), np.ones(2, BFLOAT16)], ids=repr)
    def test_an_array_on_either_side_is_refused(self, op, array):
        """DESIGN, principle 5: an array has no device."""
        x = tensor([True, False], device=CPU) if op in (operator.and_, operator.or_) else tensor([1.0, 2.0], device=CPU)
        for call in (lambda: op(x, array), lambda: op(array, x)):
            with pytest.raises(TypeError, match=r"tensor\(…, device=…\)"):
                call()

    def test_an_arrays_own_assignment_operators_are_refused_too(self):
        array, x = np.ones(2, "float32"), tensor([1.0, 2.0], device=CPU)
        with pytest.raises(TypeError):
            array += x
        with pytest.raises(TypeError):
            np.add(array, x)

    def test_numpy_scalars_on_the_left_become_scalars(self):
        x = tensor([1.0, 2.0], device=CPU)
        for scalar in (np.float32(2), np.float64(2), np.int8(2), np.bool_(True), BFLOAT16.type(2)):
            for op in (operator.add, operator.mul, operator.sub, operator.lt):
                result = op(scalar, x)
                assert isinstance(result, Tensor)
                assert exact(result).tolist() == [op(float(scalar), 1.0), op(float(scalar), 2.0)]


class TestDtypesAndDevices:
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_two_dtypes_are_never_combined(self, dtype):
        x = zeros((2,), device=CPU, dtype=dtype)
        for other in DTYPES:
            if other != dtype:
                with pytest.raises(DTypeError, match="add: operands have dtypes"):
                    x + zeros((2,), device=CPU, dtype=other)

    def test_a_tensor_on_another_kind_of_device_gives_no_array(self):
        x = zeros((2,), device=CPU)
        there = Tensor._make(x._data, x._device)
        there._device = Device.cuda(0)
        for call in (there.numpy, lambda: np.asarray(there)):
            with pytest.raises(DeviceError, match="to_device"):
                call()


class TestAutodiff:
    """M70, M71, as far as nothing is recorded yet."""

    def test_require_grad_makes_a_leaf_where_the_device_has_autodiff(self):
        x = tensor([1.0], device="cpu:0+autodiff")
        leaf = x.require_grad()
        assert (leaf.is_require_grad, leaf.is_tracked, x.is_tracked) == (True, True, False)
        assert leaf.set_require_grad(True) is leaf
        off = leaf.set_require_grad(False)
        assert (off.is_require_grad, off.is_tracked, off.device.is_autodiff) == (False, False, True)
        assert x.set_require_grad(False) is x
        assert leaf.detach().is_require_grad
        assert leaf.detach() is not leaf

    def test_a_plain_device_and_other_kinds_have_no_gradient(self):
        plain = tensor([1.0], device=CPU)
        assert plain.set_require_grad(True) is plain
        with pytest.raises(AutodiffError, match=r"autodiff\(\)"):
            plain.require_grad()
        for data in ([1], [True]):
            with pytest.raises(AutodiffError, match="has no gradient"):
                tensor(data, device="cpu:0+autodiff").require_grad()

    def test_association_is_taken_and_dropped(self):
        x = tensor([1.0], device=CPU)
        on = x.autodiff()
        assert (on.device.is_autodiff, on.is_tracked) == (True, False)
        assert on.autodiff() is on
        assert x.without_autodiff() is x
        off = on.require_grad().without_autodiff()
        assert (off.device.is_autodiff, off.is_tracked) == (False, False)
        assert same_bits(off, x)
        assert np.shares_memory(off._data, x._data)


def test_nothing_in_ordinary_use_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tensor([[1.0, -2.0], [0.5, 3.0]], device=CPU)
        for result in (x @ x, x.T, x + 1, ops.softmax(x), ops.gelu(x), ops.max(x), x.cast("int8"), -x, x[0], repr(x)):
            assert result is not None


@pytest.mark.parametrize(
    "numbers",
    [[-1, 2**63], [[-1], [2**64]], [2**63], [-(2**63) - 1], 2**64, [np.int64(-1), np.uint64(2**63)], [True, 2**70]],
    ids=repr,
)
def test_integers_never_become_floats_silently(numbers):
    """NumPy makes float64 or objects of those that no dtype of its own holds."""
    for dtype in (None, "int64", "int8"):
        with pytest.raises(DTypeError, match=f"from .* to .* do not fit {dtype or 'int64'}"):
            tensor(numbers, device="cpu:0", dtype=dtype)


def test_integers_of_two_dtypes_that_fit_stay_integers_and_floats_among_them_make_floats():
    x = tensor([np.int64(-1), np.uint64(2**53 + 1)], device="cpu:0")
    assert (x.dtype, x.numpy().tolist()) == (np.dtype("int64"), [-1, 2**53 + 1])
    assert tensor([np.array([-1]), np.array([3], "uint64")], device="cpu:0").dtype == "int64"
    assert tensor([-1, 2**63, 0.5], device="cpu:0").dtype == "float32"
    y = tensor([-1, 2**64], device="cpu:0", dtype="float64")
    assert y.numpy().tolist() == [-1.0, 2.0**64]


def test_tensors_at_any_depth_of_nested_sequences_are_refused():
    x, y = tensor([1.0], device="cpu:0"), tensor([2.0], device="cpu:1")
    for data in ([x, y], [[x], [y]], ([[x[0]], [2.0]],), [[[1.0]], [[y]]], deque([x]), [deque([[x]])], x):
        with transfer.log() as log, pytest.raises(TypeError, match="to_device"):
            tensor(data, device="cpu:0")
        assert log.copies == 0
    with pytest.raises(TypeError, match=r"ops\.stack"):
        tensor([[x], [y]], device="cpu:0")


def test_a_list_that_holds_itself_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ShapeError, match="tensor: "):
        tensor(endless, device="cpu:0")
