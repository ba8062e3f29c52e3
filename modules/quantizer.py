"""The quantizer: what quantizes the parameters of a module, those of its group, each on its own device."""

from dataclasses import dataclass, replace
from typing import TypeVar, final

from engine import Calibration, QuantizationError, QuantScheme, ShapeError, quantize
from engine.quantization.calibration import check_settings

from .errors import QuantizerError, standing_at
from .group import ParamGroup, check_group
from .param import Param
from .quantization_report import Outcome, QuantizationReport
from .running_state import RunningState
from .tree import Each, Leaf, Node, leaves, rebuild

M = TypeVar("M", bound=Node)


@final
@dataclass(frozen=True, eq=False)
class Quantizer:
    """How parameters of floats are quantized, and which (Q48): all ranks, biases too, unless the group excludes them.

    Args:
        calibration: how scales are found.
        scheme: what is made of them.
        param_group: which parameters, by path and id; None for all. It decides about the factors of a
            reparameterization as about any other (Q50).
        allow_nonfinite: whether NaN and infinities are quantized, not refused. As `engine.quantize` says, NaN becomes 0
            in the integer kinds, NaN in E4M3 and E5M2, 6 · scale in E2M1 (Q27, Q30); a magnitude above 1.7e38 counts as
            infinite in either case (Q28).

    Raises:
        DTypeError: `scheme` is no QuantScheme, or cannot be computed, or not with this calibration (Q6, Q7, Q15).
        TypeError: another argument is of another type.

    Source: Burn 0.23, ``Quantizer``.
    """

    calibration: Calibration
    scheme: QuantScheme
    param_group: ParamGroup | None = None
    allow_nonfinite: bool = False

    def __post_init__(self) -> None:
        check_settings("Quantizer", self.calibration, self.scheme, self.allow_nonfinite)
        if self.param_group is not None:
            check_group("Quantizer", self.param_group)

    def set_param_group(self, group: ParamGroup) -> "Quantizer":
        """A quantizer like this one with another group; this one keeps its own (Q52).

        Raises:
            TypeError: `group` is no ParamGroup.
        """
        check_group("set_param_group", group)
        return replace(self, param_group=group)

    def concerns(self, path: str, param: Param) -> bool:
        """Whether it quantizes this parameter: of floats, of its group, not quantized already. Makes nothing."""
        return self._reason(path, param) is None

    def quantized(self, param: Param) -> Param:
        """The parameter with a quantized value; id, mappers and configured trainability stay (Q51). Made first if lazy.

        Raises:
            ShapeError: blocks do not divide it, or have more axes (Q11, Q12).
            QuantizationError: it has NaN or infinities.
        """
        value = quantize(param.base(), self.scheme, self.calibration, allow_nonfinite=self.allow_nonfinite)
        return param._with_value(value)

    def report(self, module: Node) -> QuantizationReport:
        """What quantizing a module by this quantizer does to each of its parameters; the module stays as it is.

        Print it to see, per parameter, the bytes before and after and how far
        the numbers are from those that were; and what is left as it is, and
        why. What cannot be quantized is among it. Lazy parameters of the group
        are made.

        Args:
            module: before it is quantized.

        Raises:
            TypeError: it is none.
        """
        if not isinstance(module, Node):
            raise TypeError(f"report takes a module, not {module!r:.80}")
        known: dict[int, Outcome] = {}
        rows: list[tuple[str, Outcome]] = []
        for path, leaf in leaves(module):
            if isinstance(leaf, RunningState):
                rows.append((path, Outcome("a running state")))
            elif isinstance(leaf, Param) and (reason := self._reason(path, leaf)) is not None:
                rows.append((path, Outcome(reason)))
            elif isinstance(leaf, Param):
                if id(leaf) not in known:
                    with standing_at(path):
                        known[id(leaf)] = self._outcome(leaf)
                rows.append((path, known[id(leaf)]))
        return QuantizationReport(self.scheme, dict(rows))

    def _outcome(self, param: Param) -> Outcome:
        base = param.base()
        try:
            return Outcome.of(base, self.quantized(param).base())
        except (ShapeError, QuantizationError) as error:
            return Outcome(f"cannot be: {error}")

    def _reason(self, path: str, param: Param) -> str | None:
        """Why a parameter is left as it is; None if it is quantized."""
        if param.kind != "float":
            return f"{param.dtype}, no floats"
        if isinstance(param.dtype, QuantScheme):
            return f"quantized already, {param.dtype}"
        is_of_group = self.param_group is None or self.param_group.matches(param.id, path)
        return None if is_of_group else "not of the group"


def quantized_weights(module: M, quantizer: Quantizer) -> M:
    """The module with the parameters that `quantizer` concerns quantized, each once, in all its places (Q49, D8).

    Integers, booleans, running states and what is quantized already stay as they are (Q31, Q50).

    Raises:
        QuantizerError: some cannot be quantized; `.findings` has a line for each, and nothing was done (Q58).
        TypeError: `quantizer` is no Quantizer.
    """
    if not isinstance(quantizer, Quantizer):
        raise TypeError(f"quantize_weights takes a Quantizer, not {quantizer!r:.80}")

    def concerns(path: str, leaf: Leaf) -> bool:
        return not isinstance(leaf, Param) or quantizer.concerns(path, leaf)

    concerned: dict[int, tuple[str, Param]] = {}
    for path, leaf in leaves(module):
        if isinstance(leaf, Param) and concerns(path, leaf):
            concerned.setdefault(id(leaf), (path, leaf))
    made: dict[int, Param] = {}
    findings: list[str] = []
    for path, param in concerned.values():
        with standing_at(path):
            param.base()
        try:
            made[id(param)] = quantizer.quantized(param)
        except (ShapeError, QuantizationError) as error:
            findings.append(f"{path}: {error}")
    if findings:
        raise QuantizerError(findings)

    def change(path: str, leaf: Leaf) -> Leaf:
        if isinstance(leaf, RunningState):
            return leaf._derived(leaf.value())
        return made[id(leaf)] if isinstance(leaf, Param) else leaf

    return rebuild(module, Each(change, concerns=concerns))
