"""A language model in QLoRA training: its weights quantized and frozen, small adapters beside them that learn a text.

What is learned is the adapters alone. So they are what a record holds, with
the settings that the same model needs to take them again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Final, final

from engine import BlockScale, Calibration, Key, QuantScheme, QuantValue, Seed, Tensor, ops, tensor
from examples.errors import UsageError
from examples.kept_numbers import GREATEST, LEAST, MOST, KeptNumbers
from examples.models.llama import Llama
from modules import Adam, Lora, ParamGroup, QLora, Quantizer, clip_norm
from modules.parallel import DistributedLayeredModel
from records import ModuleRecord

VALUES: Final = {4: QuantValue.Q4S, 8: QuantValue.Q8S}
"""The kinds of values that weights are quantized to, by their bits."""

QUANTIZED: Final = ParamGroup.from_regex(r"^blocks\..*\.weight$")
"""The matrices of the blocks; the embedding, which is the head too, and the norms stay as they are."""

ADAPTED: Final = ParamGroup.from_regex(r"\.attention\.(query_key_value|output)\.weight$")
ADAPTERS: Final = ParamGroup.from_regex(r"\.lora\.[ab]$")

_BLOCK: Final = 32  # values that share a scale
_STEPS: Final = "steps"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an adapter is made with.

    Attributes:
        seed: of its initial values, and of the choice of passages.
        rank: of the adapters; their scale is 2.
        bits: of a quantized weight, a key of `VALUES`.
        init_std: of their first factors; the second ones are 0.
        length: tokens of a passage, one of which a step is shown.
        lr: the optimizer's rate.
        limit: of the gradients' norm.
    """

    seed: int = 0
    rank: int = 8
    bits: int = 4
    init_std: float = 0.02
    length: int = 128
    lr: float = 1e-3
    limit: float = 1.0

    def qlora(self) -> QLora:
        """What `Module.apply_qlora` takes; always the same, with the same initial values."""
        scheme = QuantScheme(VALUES[self.bits], block=BlockScale((_BLOCK,)))
        lora = Lora(self.rank, 2.0 * self.rank, init_std=self.init_std, param_group=ADAPTED, seed=self.seed)
        return QLora(lora, Quantizer(Calibration.MIN_MAX, scheme, QUANTIZED))

    @classmethod
    def of(cls, record: ModuleRecord, file: Path) -> tuple["Settings", int]:
        """The settings in an adapter's record, and the steps that it has been trained for.

        Raises:
            UsageError: the record of `file` is no adapter's, or its numbers are none that an adapter has.
        """
        numbers = ADAPTER.read(file, record)
        steps, settings = numbers.pop(_STEPS), cls(**numbers)
        if settings.bits not in VALUES:
            raise ADAPTER.refused(file, f"its 'bits' is {settings.bits}")
        ADAPTER.check_extent(file, record, "rank", settings.rank)
        return settings, steps


ADAPTER: Final = KeptNumbers(
    "an adapter",
    {_STEPS: 0, **asdict(Settings())},
    {
        _STEPS: (0, MOST),
        "seed": (0, 2**63 - 1),
        "rank": (1, MOST),
        "bits": (min(VALUES), max(VALUES)),
        "init_std": (0, 1),
        "length": (1, MOST),
        "lr": (0, GREATEST),
        "limit": (LEAST, GREATEST),
    },
)
"""The numbers in an adapter's record."""


@final
class Tuning:
    """Adapters in training over a model, and how many steps were made.

    Args:
        model: on autodiff devices; its logits are those of all positions. It stays as it is.
        settings: of the adapters.
        ids: the text's tokens; at least two.
        adapters: what to begin with, and the steps that went into it; None for new ones.

    Raises:
        RecordError: the adapters are of another model.
    """

    def __init__(
        self,
        model: DistributedLayeredModel[Llama],
        settings: Settings,
        ids: Sequence[int],
        adapters: tuple[ModuleRecord, int] | None = None,
    ) -> None:
        self.settings: Final = settings
        self.model = model.apply_qlora(settings.qlora())
        self.steps = 0
        if adapters is not None:
            record, self.steps = adapters
            self.model = self.model.load_record(_complete(record, self.model))
        self._ids: Final = list(ids)
        self._length: Final = min(settings.length, model.model.config.max_positions, len(ids) - 1)
        self._passages: Final[Key] = Seed(settings.seed).key()
        self._optimizer: Final = Adam(settings.lr)

    def step(self) -> float:
        """Make one step on a passage that is drawn; gives the loss before it."""
        start = int(self._passages.at(self.steps).generator().integers(len(self._ids) - self._length))
        loss = self._loss_of(self.model, start, self._length)
        gradients = clip_norm(loss.backward(), self.settings.limit)
        self.model = self._optimizer.step(self.model, gradients)
        self.steps += 1
        return float(loss)

    def loss(self) -> float:
        """The mean loss per token over the whole text, passage by passage."""
        model, total = self.model.valid(), 0.0
        for start, length in self._all_passages():
            total += length * float(self._loss_of(model, start, length))
        return total / (len(self._ids) - 1)

    def _all_passages(self) -> Iterator[tuple[int, int]]:
        last = len(self._ids) - 1
        for start in range(0, last, self._length):
            yield start, min(self._length, last - start)

    def _loss_of(self, model: DistributedLayeredModel[Llama], start: int, length: int) -> Tensor:
        """The loss of a passage: each of so many tokens tells the next one."""
        passage = self._ids[start : start + length + 1]
        logits: Tensor = model(tensor([passage[:-1]], device=model.placement.input.inner()))
        return ops.cross_entropy(logits[0], tensor(passage[1:], device=logits.device.inner()))

    # What is learned

    @property
    def num_trained(self) -> int:
        """How many numbers train."""
        return sum(prod(entry.shape) for entry in self.record().values())

    def record(self) -> ModuleRecord:
        """The adapters, and what they were made with."""
        return self.model.into_record_group(ADAPTERS).with_scalars(**{_STEPS: self.steps, **asdict(self.settings)})

    def save(self, file: Path) -> None:
        """Write the record, whole or not at all.

        Raises:
            RecordIoError: the file cannot be written; what was there before still is.
        """
        self.record().save(file)


def _complete(record: ModuleRecord, model: DistributedLayeredModel[Llama]) -> ModuleRecord:
    """An adapter's record, to load over a model's base, which it lacks; it must lack nothing else.

    Raises:
        UsageError: it lacks an adapter of the model.
    """
    lacking = [path for path in ADAPTERS.paths(model) if path not in record]
    if lacking:
        raise UsageError(f"the adapter is of another model: it has no {lacking[0]}")
    return record.with_options(allow_partial=True)
