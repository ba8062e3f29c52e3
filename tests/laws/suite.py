"""All the laws there are: who puts them to an adapter imports this, so that none is missing. New files join here."""

from typing import Final

from tests.engine import test_mixing
from tests.modules import test_fresh_ids, test_lazy_threads, test_record_reads, test_sharing
from tests.parallel import test_decoder_inside, test_split_inside
from tests.records import test_adapt, test_burnpack, test_damage

from . import (
    test_decoding,
    test_devices,
    test_files,
    test_ids,
    test_lazy,
    test_load_options,
    test_parallel,
    test_record_machine,
    test_records,
    test_split_machine,
    test_stages,
    test_tree,
    test_versions,
    test_wrapper,
)
from .law import LAWS, Law

_OUTSIDE: Final = (
    *(test_devices, test_ids, test_lazy, test_tree, test_versions),
    *(test_decoding, test_parallel, test_split_machine, test_stages, test_wrapper),
    *(test_files, test_load_options, test_record_machine, test_records),
)
_INSIDE: Final = (
    *(test_fresh_ids, test_lazy_threads, test_mixing, test_sharing),
    *(test_decoder_inside, test_split_inside),
    *(test_adapt, test_burnpack, test_damage, test_record_reads),
)

OUTSIDE: Final[list[Law]] = [law for law in LAWS if law.body.__module__ in {module.__name__ for module in _OUTSIDE}]
INSIDE: Final[list[Law]] = [law for law in LAWS if law.body.__module__ in {module.__name__ for module in _INSIDE}]


def named(law: Law) -> str:
    """A name for a test of a law."""
    return f"{'-'.join(law.numbers)}-{law.body.__name__}"
