"""Enum modules (M7)."""

import pytest

from modules import EnumModule, Flag, ModuleError, PathError

from .small_modules import Linear, paths


class Act(EnumModule):
    """One of several activations."""

    def forward(self, x: int) -> int:
        return self.value(x)


def test_an_enum_module_holds_its_active_variant():
    """M7: the variant is a component of the path."""
    inner = Linear(1, 1)
    act = Act("Scaled", inner)

    assert act.variant == "Scaled"
    assert act.value is inner
    assert paths(act) == ["Scaled.weight", "Scaled.bias"]
    assert act.at("Scaled") is inner
    assert act.fields() == {"Scaled": inner}
    assert act.to_device("cpu:1").variant == "Scaled"


@pytest.mark.parametrize("variant", ["value", "variant"])
def test_a_variant_may_be_called_like_a_property(variant: str):
    """Both properties still tell the truth."""
    act = Act(variant, Flag(True))

    assert act.variant == variant
    assert act.value.is_enabled
    assert paths(act.clone()) == [variant]


def test_an_enum_module_with_more_than_its_variant_is_refused():
    """M7."""

    class Two(EnumModule):
        def __init__(self) -> None:
            super().__init__("On", Flag(True))
            self.other = 1

    with pytest.raises(ModuleError, match="one variant and nothing else"):
        Two()
    with pytest.raises(PathError):
        Act("a.b", None)
    with pytest.raises(PathError):
        Act("map", None)
