"""Adapters that test the suite: one that offers nothing, one that lacks a capability, two that lie."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .layered_model import ModelAdapter
from .layered_operations import Question
from .observations import Bits, Meta, TransferLog
from .operations import Op
from .protocol import Done, Grammar, Handle, Level, Refused
from .spec_tree import TreeSpec


class EmptyAdapter:
    """An implementation that offers nothing."""

    name: str = "empty"
    version: str = "0"
    grammar: Grammar = Grammar()
    capabilities: Mapping[str, Level] = {}

    def build(self, spec: TreeSpec) -> Handle | Refused:
        return Refused("other", "nothing is offered")

    def apply(self, target: Handle, operation: Op) -> Done | Refused:
        raise NotImplementedError

    def meta(self, target: Handle) -> Meta:
        raise NotImplementedError

    def bits(self, target: Handle, path: str) -> Bits | Refused:
        raise NotImplementedError

    def runs(self, target: Handle, path: str) -> int:
        raise NotImplementedError

    def log(self) -> TransferLog:
        raise NotImplementedError

    def answer(self, question: Question) -> Any:
        raise NotImplementedError

    def format_id(self, number: int) -> str:
        raise NotImplementedError

    def parse_id(self, text: str) -> int | Refused:
        raise NotImplementedError


class NoRecords(ModelAdapter):
    """The model, but for records."""

    name = "model without records"
    capabilities = {name: level for name, level in ModelAdapter.capabilities.items() if "record" not in name}  # noqa: RUF012


class Reversing(ModelAdapter):
    """Lies about the order of what a module holds."""

    def meta(self, target: Any) -> Meta:
        told = super().meta(target)
        return replace(told, values=told.values[::-1])


class Rounding(ModelAdapter):
    """Lies about bits: a negative zero, or the sign of a NaN, is lost."""

    def bits(self, target: Any, path: str) -> Bits | Refused:
        told = super().bits(target, path)
        return told if isinstance(told, Refused) else replace(told, data=told.data.replace(b"\x80", b"\x00"))
