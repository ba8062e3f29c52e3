"""Laws of ids (L14 to L17). Ids are random and do not shrink: builds are compared with ids numbered as they appear.

L14 across threads and processes is in `tests/modules/test_fresh_ids.py`.
"""

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from .calls import applied, built, output
from .generators import trees
from .law import law
from .operations import Clone, LoadRecord, Map, ToRecord
from .programs import IDS, MOVES, REMAKING, SWITCHES, Program, programs
from .protocol import Adapter, Refused
from .spec_tree import LORA, ParamSpec, TreeSpec, leaves, tied_with

ALPHABET: Final = "0123456789abcdefghijklmnopqrstuv"
SHORT: Final = {0: 0, 1: 2, 2: 4, 3: 5, 4: 7, 5: 8, 6: 10, 7: 12, 8: 13}  # characters for so many bytes


def base32(data: bytes) -> str:
    """Bytes as base32 without padding, bit by bit: the oracle."""
    bits = "".join(f"{byte:08b}" for byte in data)
    return "".join(ALPHABET[int(bits[at : at + 5].ljust(5, "0"), 2)] for at in range(0, len(bits), 5))


@law("L14", needs=("ids",), spec=lambda a: trees(a.grammar))
def test_every_leaf_of_every_build_has_an_id_of_its_own(adapter: Adapter, spec: TreeSpec) -> None:
    """But tied places, which hold one object (M11, M22)."""
    builds = [adapter.meta(built(adapter, spec)).ids() for _ in range(2)]

    objects = len({tied_with(spec, path) for path in leaves(spec)})
    assert len({number for ids in builds for number in ids.values()}) == 2 * objects


@law("L15", needs=("ids",), number=lambda a: st.sampled_from((0, 1, 2**63, 2**64 - 1)) | IDS)
def test_an_id_is_thirteen_characters_that_mean_it(adapter: Adapter, number: int) -> None:
    """Its eight little-endian bytes in base32; capitals mean the same (M22)."""
    text = adapter.format_id(number)

    assert text == base32(number.to_bytes(8, "little"))
    assert adapter.parse_id(text) == number
    assert adapter.parse_id(text.upper()) == number


@law("L15", needs=("ids",), text=lambda a: st.text(ALPHABET, min_size=13, max_size=13))
def test_thirteen_characters_are_an_id_exactly_if_the_last_bit_is_filling(adapter: Adapter, text: str) -> None:
    """Then the id's text is these characters; else they are refused (M22, N7)."""
    answer = adapter.parse_id(text)

    if ALPHABET.index(text[-1]) % 2:
        assert isinstance(answer, Refused)
        assert answer.kind == "record_format"
    else:
        assert isinstance(answer, int)
        assert adapter.format_id(answer) == text


@law("L15", needs=("ids",), text=lambda a: st.text(st.characters(codec="utf-8"), min_size=13, max_size=13))
def test_other_characters_are_refused(adapter: Adapter, text: str) -> None:
    """Rule M22."""
    answer = adapter.parse_id(text)

    assert isinstance(answer, Refused) or adapter.format_id(answer) == text.lower()


@law("L15", needs=("ids",), data=lambda a: st.binary(max_size=8))
def test_fewer_bytes_are_filled_up_with_zeros(adapter: Adapter, data: bytes) -> None:
    """The 6-byte form is the one before Burn 0.15 (M22, N7)."""
    text = base32(data)

    assert len(text) == SHORT[len(data)]
    assert adapter.parse_id(text) == int.from_bytes(data, "little")


@law("L15", needs=("ids",), value=lambda a: st.uuids())
def test_a_uuid_is_refused(adapter: Adapter, value: object) -> None:
    """It has no 64-bit value (M22 *project*, N7)."""
    answer = adapter.parse_id(str(value))

    assert isinstance(answer, Refused)
    assert answer.kind == "record_format"


@law("L16", needs=("ids", "map", "devices"), program=lambda a: programs(a, (Clone, *MOVES, *SWITCHES, *REMAKING)))
def test_ids_are_kept(adapter: Adapter, program: Program) -> None:
    """By clones, identity maps, moves, train, valid and switches, quantization, LoRA, materialize (M19, M26, M40, Q51).

    Of factors as long as they are there; those of bases always (A32).
    """
    module = built(adapter, program.spec)
    ids = adapter.meta(module).ids()
    for _, operation in program.steps:
        answer = adapter.apply(module, operation)
        module = module if isinstance(answer, Refused) else answer.handle
        before, ids = ids, adapter.meta(module).ids()
        assert {path: before.get(path, number) for path, number in ids.items()} == ids
        assert set(before) - set(ids) <= {path for path in before if f".{LORA}." in path}
        assert adapter.meta(applied(adapter, module, Map())).ids() == ids


@law("L17", needs=("ids", "records"), spec=lambda a: trees(a.grammar))
def test_a_parameter_takes_the_id_of_the_record(adapter: Adapter, spec: TreeSpec) -> None:
    """Flags and running states keep theirs (M34, R18 to R20)."""
    source, target = built(adapter, spec), built(adapter, spec)
    record = output(adapter, source, ToRecord())

    loaded = adapter.meta(applied(adapter, target, LoadRecord(record))).ids()

    from_record, own = adapter.meta(source).ids(), adapter.meta(target).ids()
    assert loaded == {
        path: (from_record if isinstance(node, ParamSpec) else own)[path] for path, node in leaves(spec).items()
    }


@law("L17", needs=("ids", "records"), spec=lambda a: trees(a.grammar))
def test_an_entry_without_id_leaves_the_parameter_its_own(adapter: Adapter, spec: TreeSpec) -> None:
    """As files of other makers have them (D9)."""
    source, target = built(adapter, spec), built(adapter, spec)
    record = output(adapter, source, ToRecord())
    nameless = replace(record, entries=tuple(replace(entry, id=None) for entry in record.entries))

    loaded = applied(adapter, target, LoadRecord(nameless))

    assert adapter.meta(loaded).ids() == adapter.meta(target).ids()
