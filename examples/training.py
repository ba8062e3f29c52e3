"""A training run that can stop after any step and go on from one file, bit for bit as if it had not stopped.

All that decides the next step is in the run's record: the model with the
counts of its draws, the optimizer, the number of steps, and the settings,
among them the seed, from which the order of the examples follows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nextafter
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from engine import Device, Key, Seed, Tensor, ops, tensor
from examples.digits import Digits
from examples.kept_numbers import GREATEST, LEAST, MOST, KeptNumbers
from examples.models.classifier import Classifier, ClassifierConfig
from modules import AdamW, clip_norm
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ModuleRecord, open_record

_MODEL: Final = "model"
_OPTIMIZER: Final = "optimizer"
_STEP: Final = "step"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is, besides its data and devices.

    Attributes:
        seed: of everything that is drawn.
        batch: examples in a step.
        channels: of the hidden layers.
        n_layers: hidden layers.
        dropout: how often a feature is left out.
        lr: the optimizer's rate.
        weight_decay: the optimizer's.
        limit: of the gradients' norm.
    """

    seed: int = 0
    batch: int = 64
    channels: int = 16
    n_layers: int = 4
    dropout: float = 0.1
    lr: float = 2e-3
    weight_decay: float = 0.01
    limit: float = 1.0


_NUMBERS: Final = KeptNumbers(
    "a training run",
    {_STEP: 0, **asdict(Settings())},
    {
        _STEP: (0, MOST),
        "seed": (0, 2**63 - 1),
        "batch": (1, MOST),
        "channels": (1, MOST),
        "n_layers": (0, MOST),
        "dropout": (0, nextafter(1, 0)),
        "lr": (0, GREATEST),
        "weight_decay": (0, GREATEST),
        "limit": (LEAST, GREATEST),
    },
)


@final
class Run:
    """A model in training, its optimizer, and how many steps were made.

    Args:
        settings: of the run.
        data: what to train with.
        devices: the layers go over them in even shares; no bit depends on that.
    """

    def __init__(self, settings: Settings, data: Digits, devices: Sequence[Device]) -> None:
        self.settings: Final = settings
        self._data: Final = data
        stream = Seed(settings.seed)
        self._order: Final[Key] = stream.key()
        placement = LayerPlacement.even([device.autodiff() for device in devices], settings.n_layers)
        config = ClassifierConfig(
            height=data.images.shape[1],
            width=data.images.shape[2],
            n_classes=10,
            channels=settings.channels,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )
        self.model = DistributedLayeredModel(Classifier(config, placement, stream), placement)
        self.optimizer: Final = AdamW(settings.lr, weight_decay=settings.weight_decay)
        self.steps = 0

    @property
    def steps_per_epoch(self) -> int:
        """How many steps show every example once; the last one may be of fewer."""
        return -(-len(self._data.labels) // self.settings.batch)

    def batch(self) -> NDArray[Any]:
        """Which examples the next step is shown; each epoch has an order of its own."""
        epoch, at = divmod(self.steps, self.steps_per_epoch)
        order = self._order.at(epoch).generator().permutation(len(self._data.labels))
        return order[at * self.settings.batch : (at + 1) * self.settings.batch]

    def step(self) -> float:
        """Make one step; gives the loss before it."""
        chosen = self.batch()
        logits = self.model(inputs_of(self._data.images[chosen], self.model.placement.input))
        loss = ops.cross_entropy(logits, tensor(self._data.labels[chosen], device=logits.device.inner()))
        gradients = clip_norm(loss.backward(), self.settings.limit)
        self.model = self.optimizer.step(self.model, gradients)
        self.steps += 1
        return float(loss)

    def accuracy(self, data: Digits) -> float:
        """The share of images that the model knows, from 0 to 1."""
        model = self.model.valid()
        found = ops.argmax(model(inputs_of(data.images, model.placement.input)), axis=-1).to_device("cpu:0")
        return float(np.mean(found.numpy() == data.labels))

    # Records

    def record(self) -> ModuleRecord:
        """All that decides how the run goes on."""
        parts = self.model.into_record().under(_MODEL) | self.optimizer.into_record().under(_OPTIMIZER)
        return parts.with_scalars(**{_STEP: self.steps, **asdict(self.settings)})

    def save(self, file: Path) -> None:
        """Write the record, whole or not at all.

        Raises:
            RecordIoError: the file cannot be written; what was there before still is.
        """
        self.record().save(file)

    @classmethod
    def resumed(cls, file: Path, data: Digits, devices: Sequence[Device]) -> Self:
        """The run that a file holds, on any devices.

        Raises:
            UsageError: it is no record of a run, or its tensors are others than its settings say.
            RecordError: it cannot be read, or its data is damaged.
        """
        with open_record(file, check_data=True) as record:
            numbers = _NUMBERS.read(file, record)
            steps, settings = numbers.pop(_STEP), Settings(**numbers)
            _NUMBERS.check_most(file, "n_layers", settings.n_layers, len(record))
            _NUMBERS.check_extent(file, record, "channels", settings.channels)
            made = cls(settings, data, devices)
            with _NUMBERS.loaded_from(file):
                made.model = made.model.load_record(record.part(_MODEL))
                made.optimizer.load_record(record.part(_OPTIMIZER), made.model)
        made.steps = steps
        return made


def inputs_of(images: Any, device: Device) -> Tensor:
    """Images [images, height, width] as the model takes them: [images, 1, height, width]."""
    return tensor(images[:, None], device=device.inner())
