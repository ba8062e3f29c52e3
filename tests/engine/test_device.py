"""Devices are values: equal by hardware, written and read as text."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Device, DeviceError, tensor, zeros

INDICES = st.integers(0, 999_999_999)
KINDS = st.sampled_from(["cpu", "cuda"])


@given(kind=KINDS, index=INDICES, flag=st.booleans())
def test_a_device_is_its_text(kind, index, flag):
    text = f"{kind}:{index}" + ("+autodiff" if flag else "")
    device = Device(text)
    assert (str(device), device.kind, device.index, device.is_autodiff) == (text, kind, index, flag)
    assert Device(str(device)) == device
    assert Device(str(device)).is_autodiff == flag
    assert eval(repr(device), {"Device": Device}) == device
    for same in (copy.copy(device), copy.deepcopy(device), pickle.loads(pickle.dumps(device)), Device(device)):
        assert same == device
        assert same.is_autodiff == flag


@given(one=st.tuples(KINDS, INDICES), other=st.tuples(KINDS, INDICES), flags=st.tuples(st.booleans(), st.booleans()))
def test_devices_are_equal_by_hardware_whatever_their_flags(one, other, flags):
    """M39."""
    a, b = (
        Device(f"{kind}:{index}" + "+autodiff" * flag) for (kind, index), flag in zip((one, other), flags, strict=True)
    )
    assert (a == b) == (one == other)
    assert (a != b) == (one != other)
    assert a != b or hash(a) == hash(b)


def test_the_flag_is_switched_without_changing_the_hardware():
    device = Device.cpu(3)
    assert device == Device("cpu:3")
    assert (device.autodiff().is_autodiff, device.autodiff().inner().is_autodiff) == (True, False)
    assert device.autodiff() == device == device.inner()
    assert Device.cuda(1) == Device("cuda:1") != Device.cpu(1)
    assert device != "cpu:3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "cpu:",
        "cpu:-1",
        "cpu:01",
        "cpu: 1",
        "CPU:0",
        "gpu:0",
        "cpu:0 ",
        "cpu:0+grad",
        "cpu:+1",
        "cpu:١",
        "cpu:0\n",
        0,
        None,
        "cpu:1000000000",
    ],
)
def test_other_text_is_refused_and_the_message_shows_the_form(text):
    with pytest.raises(DeviceError, match="'cpu:0', 'cuda:1'"):
        Device(text)


def test_a_device_does_not_change():
    device = Device("cpu:0")
    for name in ("kind", "index", "is_autodiff", "other"):
        with pytest.raises(AttributeError):
            setattr(device, name, 1)
        with pytest.raises(AttributeError):
            delattr(device, name)


def test_available_lists_what_this_machine_has_and_never_fails():
    assert Device.available("cpu") == [Device("cpu:0")]
    assert all(device.kind == "cuda" for device in Device.available("cuda"))
    with pytest.raises(DeviceError, match="no kind of device"):
        Device.available("tpu")  # pyright: ignore[reportArgumentType]


def test_any_cpu_device_exists_and_has_a_context_and_memory():
    device = Device("cpu:12345")
    with device as entered:
        assert entered is device
    free, total = device.memory()
    assert 0 < free <= total
    device.synchronize()
    assert zeros((2,), device=device).device == device


def test_what_is_made_on_an_autodiff_device_is_associated_with_autodiff():
    """M39, M44: the flag decides what a tensor made there is; it is untracked."""
    for make in (lambda at: tensor([1.0], device=at), lambda at: zeros((2,), device=at)):
        made = make("cpu:0+autodiff")
        assert (made.device.is_autodiff, made.is_tracked) == (True, False)
        assert not make("cpu:0").device.is_autodiff
