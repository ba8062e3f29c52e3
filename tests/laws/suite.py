"""All the laws there are: who puts them to an adapter imports this, so that none is missing. New files join here."""

from typing import Final

from tests.engine import (
    test_backward,
    test_gradient_graphs,
    test_gradients,
    test_mixing,
    test_quantization_laws,
    test_quantization_packing,
    test_quantized_tensors,
)
from tests.modules import (
    test_fresh_ids,
    test_lazy_threads,
    test_lora,
    test_optimizer_records,
    test_optimizers,
    test_qlora,
    test_quantized_records,
    test_quantizer,
    test_record_reads,
    test_reparameterization,
    test_reparameterized_modules,
    test_sharing,
)
from tests.nn import test_saved_layers
from tests.parallel import test_decoder_inside, test_split_inside
from tests.records import test_adapt, test_burnpack, test_damage, test_quantized

from . import (
    test_attached,
    test_decoding,
    test_devices,
    test_draws,
    test_files,
    test_group_operations,
    test_groups,
    test_ids,
    test_layers_in_training,
    test_lazy,
    test_load_options,
    test_parallel,
    test_quantization,
    test_record_machine,
    test_records,
    test_split_gradients,
    test_split_machine,
    test_stages,
    test_symmetries,
    test_training,
    test_training_gradients,
    test_training_machine,
    test_training_state,
    test_tree,
    test_versions,
    test_wrapper,
)
from .law import LAWS, Law

_OUTSIDE: Final = (
    *(test_devices, test_ids, test_lazy, test_tree, test_versions),
    *(test_decoding, test_draws, test_parallel, test_split_machine, test_stages, test_wrapper),
    *(test_files, test_load_options, test_record_machine, test_records),
    *(test_group_operations, test_groups, test_layers_in_training),
    *(test_training_gradients, test_training_machine, test_training_state),
    *(test_split_gradients, test_symmetries, test_training),
    *(test_attached, test_quantization),
)
_INSIDE: Final = (
    *(test_fresh_ids, test_lazy_threads, test_mixing, test_sharing),
    *(test_backward, test_gradient_graphs, test_gradients),
    *(test_optimizer_records, test_optimizers, test_saved_layers),
    *(test_decoder_inside, test_split_inside),
    *(test_adapt, test_burnpack, test_damage, test_record_reads),
    *(test_quantized, test_quantized_records),
    *(test_quantization_laws, test_quantization_packing, test_quantized_tensors, test_quantizer),
    *(test_lora, test_qlora, test_reparameterization, test_reparameterized_modules),
)

OUTSIDE: Final[list[Law]] = [law for law in LAWS if law.body.__module__ in {module.__name__ for module in _OUTSIDE}]
INSIDE: Final[list[Law]] = [law for law in LAWS if law.body.__module__ in {module.__name__ for module in _INSIDE}]


def named(law: Law) -> str:
    """A name for a test of a law."""
    return f"{'-'.join(law.numbers)}-{law.body.__name__}"
