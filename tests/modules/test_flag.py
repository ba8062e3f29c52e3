"""Flags (M64 to M68)."""

import copy

import pytest

from modules import Flag, Module, ModuleMapper
from records import ParamId


@pytest.mark.parametrize("value", [False, True])
def test_a_flag_has_a_value_now_and_one_that_is_configured(value: bool):
    """M65: `with_value` sets both, `map` only the one now."""
    flag = Flag(value)

    assert (flag.is_enabled, flag.configured) == (value, value)
    mapped = flag.map(lambda enabled: not enabled)
    assert (mapped.is_enabled, mapped.configured) == (not value, value)
    again = mapped.map(lambda enabled: not value)
    assert (again.is_enabled, again.configured) == (not value, value)
    other = mapped.with_value(not value)
    assert (other.is_enabled, other.configured) == (not value, not value)
    assert (flag.is_enabled, flag.configured) == (value, value)


def test_a_flag_keeps_its_id():
    """M64: a fresh one unless it is given; every derived flag has it."""
    flag = Flag(True)

    assert flag.id != Flag(True).id
    assert flag.map(lambda enabled: False).id == flag.with_value(False).id == flag.id
    assert Flag(True, 7).id == Flag(True, ParamId(7)).id == 7
    renamed = flag.map(lambda enabled: False).with_id(9)
    assert (int(renamed.id), renamed.is_enabled, renamed.configured) == (9, False, True)


def test_a_flag_shows_its_value():
    """M66."""
    assert repr(Flag(True)) == "enabled"
    assert repr(Flag(False)) == "disabled"
    assert repr(Flag(True).map(lambda enabled: False)) == "disabled"


def test_a_flag_is_a_value():
    """Copies are the flag itself, and nothing can be assigned."""
    flag = Flag(True)

    assert copy.copy(flag) is copy.deepcopy(flag) is flag
    with pytest.raises(AttributeError):
        flag.is_enabled = False  # pyright: ignore[reportAttributeAccessIssue]


class Switched(Module):
    """Two flags, one of them in two places."""

    def __init__(self) -> None:
        self.on = Flag(True)
        self.off = Flag(False)
        self.same = self.on


def test_valid_turns_flags_off_and_train_gives_them_what_is_configured():
    """M55, M67: one that is off by configuration stays off; tied ones stay tied (D8)."""
    module = Switched()
    valid = module.valid()
    trained = valid.train()

    assert [flag.is_enabled for flag in (valid.on, valid.off)] == [False, False]
    assert [flag.is_enabled for flag in (trained.on, trained.off)] == [True, False]
    assert valid.on is valid.same
    assert trained.on is trained.same
    assert valid.off is module.off
    assert module.on.is_enabled


def test_a_mapper_changes_flags_only_if_it_says_so():
    """M67, M68: the default hook gives the flag back; a moved module has the same flags (M64)."""

    class Off(ModuleMapper):
        def map_flag(self, path: str, flag: Flag, /) -> Flag:
            return flag.with_value(False)

    module = Switched()

    assert module.map(ModuleMapper()).on is module.on
    assert not module.map(Off()).on.configured
    assert module.fork("cpu:1").on is module.on
    assert "on" not in module.into_record()
