"""The embedding layer."""

from typing import Any, final

from engine import Device, Seed, Tensor, ops
from modules.module import Module
from modules.param import Param

from .initial import normal
from .settings import float_dtype, size


@final
class Embedding(Module):
    """A vector for each id: y = weight[ids].

    Args:
        n_embedding: number of vectors.
        d_model: their width.
        device: where it is.
        dtype: of the vectors.
        seed: of the initial values, standard normal.

    Attributes:
        weight: [n_embedding, d_model].

    Raises:
        ModuleError: a size is below 1, or the dtype no float dtype.

    Source: Burn 0.23, ``nn::Embedding``.
    """

    weight: Param

    def __init__(
        self,
        n_embedding: int,
        d_model: int,
        *,
        device: Device | str,
        dtype: Any = "float32",
        seed: int | Seed | None = None,
    ) -> None:
        self.n_embedding = size("Embedding", "n_embedding", n_embedding)
        self.d_model = size("Embedding", "d_model", d_model)
        of = float_dtype("Embedding", dtype)
        self.weight = normal((self.n_embedding, self.d_model), of, Device(device), Seed.of(seed))

    def forward(self, ids: Tensor) -> Tensor:
        """Integers [...] to [..., d_model].

        Raises:
            IndexError: an id is negative, or not below `n_embedding`.
        """
        return ops.embedding(self.weight.val(), ids)
