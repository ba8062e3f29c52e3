"""Rotary positions as a layer: the tables of its angles, made once."""

from typing import Any, final

from engine import Device, Tensor, ops, rotary_tables
from engine.dtype import FLOAT32, HALVES
from modules.errors import ModuleError
from modules.module import Module

from .settings import divisible, float_dtype, positive, size


@final
class RotaryPositions(Module):
    """Turns pair i of the features at position p by the angle p · theta^(−2i / d_model).

    It has no parameters. Blocks on one device may share one object, and with
    it the tables, which are constants: they move with the module and are not
    recorded.

    Args:
        max_sequence_length: positions that there are angles for.
        d_model: features to turn, which for attention are those of a head; even.
        theta: base of the angles; above 0.
        interleaved: whether pair i is (2i, 2i + 1), as in GGUF files of the Llama family, rather than
            (i, i + d_model / 2), as in checkpoints of transformers.
        device: where the tables are.
        dtype: of the input; the tables of float16 and bfloat16 are float32.

    Attributes:
        cos, sin: [max_sequence_length, d_model / 2].

    Raises:
        ModuleError: a setting is out of its range, or the dtype no float dtype.

    Source: J. Su et al., "RoFormer" (2021), equation 34; Burn 0.23, ``nn::RotaryEncoding``.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        max_sequence_length: int,
        d_model: int,
        *,
        theta: float = 10000.0,
        interleaved: bool = False,
        device: Device | str,
        dtype: Any = "float32",
    ) -> None:
        self.max_sequence_length = size("RotaryPositions", "max_sequence_length", max_sequence_length)
        self.d_model = size("RotaryPositions", "d_model", d_model)
        divisible("RotaryPositions", "d_model", self.d_model, "the two features of a pair", 2)
        self.theta = positive("RotaryPositions", "theta", theta)
        self.interleaved = bool(interleaved)
        of = float_dtype("RotaryPositions", dtype)
        tables = FLOAT32 if of in HALVES else of
        shape = self.max_sequence_length, self.d_model
        self.cos, self.sin = rotary_tables(*shape, base=self.theta, device=device, dtype=tables)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """[..., positions, d_model] to the same shape, the first position being `start`.

        Raises:
            ModuleError: there are no angles for the last position.
        """
        self.check_positions(start + x.shape[-2])
        return ops.rope(x, self.cos, self.sin, offset=start, interleaved=self.interleaved)

    def check_positions(self, count: int) -> None:
        """Refuse more positions than there are angles for.

        Raises:
            ModuleError: there are none for the last position.
        """
        if count > self.max_sequence_length:
            raise ModuleError(
                f"RotaryPositions: position {count - 1} is beyond max_sequence_length, {self.max_sequence_length}"
            )
