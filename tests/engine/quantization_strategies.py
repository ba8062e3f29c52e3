"""The strategies of `tests.laws.quantization_generators` for schemes of the engine."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from engine import QuantScheme, QuantValue
from tests.laws import quantization_generators as generators
from tests.laws.engine_quantization import quant_scheme
from tests.laws.quantization_generators import numbers, shapes

__all__ = ["cases", "numbers", "schemes", "shapes"]


def schemes(values: Sequence[QuantValue] = tuple(QuantValue), **limits: Any) -> st.SearchStrategy[QuantScheme]:
    """Schemes that can be computed, of native stores."""
    return generators.schemes([value.name for value in values], **limits).map(quant_scheme)


@st.composite
def cases(draw: st.DrawFn, zeros: bool = True, **limits: Any) -> Any:
    """A scheme and numbers of a shape that goes with it."""
    scheme = draw(schemes(**limits))
    return scheme, draw(numbers(draw(shapes(scheme)), scheme, zeros))
