"""Calls of an adapter with layered models, and what messages must name."""

import re
from dataclasses import replace

from .calls import applied, built, output
from .layered import LayeredSpec, Placement, Signal
from .layered_generators import Case
from .layered_operations import Forward, Wrap
from .protocol import Adapter, Handle


def wrapped(adapter: Adapter, spec: LayeredSpec) -> Handle:
    """A build of a model, wrapped with the placement that it was built by."""
    return wrapped_by(adapter, built(adapter, spec), spec.placement)


def wrapped_by(adapter: Adapter, model: Handle, placement: Placement) -> Handle:
    """A model, wrapped with a placement."""
    return applied(adapter, model, Wrap(placement))


def ran(adapter: Adapter, target: Handle, signal: Signal) -> Signal:
    """What comes out of a model."""
    return output(adapter, target, Forward(signal))


def names(message: str, *words: str) -> bool:
    """Whether a message names all of these; a number in a device's name or a path is no layer's."""
    return all(re.search(rf"(?<![\w:.]){re.escape(word)}(?![\w:])", message) for word in words)


def with_extra(case: Case, adapter: Adapter) -> Case:
    """With a parameter outside the layers, so that there is one at all."""
    return case if case.spec.extra else replace(case, spec=replace(case.spec, extra=adapter.grammar.devices[0]))
