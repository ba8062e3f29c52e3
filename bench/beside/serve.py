"""The loop of a script that works for `client`: a line of JSON in, a line of JSON out.

The first line out says ``version``, or ``error``. Then ``{"do": …}`` asks; a language model:

``continue`` of ``ids``, ``tokens``: the ``ids`` that follow greedily, and the ``logits`` of the last position given.
``decode`` of ``ids``, ``tokens``: the ``seconds`` that so many tokens after ``ids`` take, one by one, greedily.
``prefill`` of ``ids``: the ``seconds`` that the logits after ``ids`` take.
"""

import json
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol


class LanguageModel(Protocol):
    """A model with a cache of one sequence."""

    version: str

    def start(self, ids: Sequence[int]) -> int:
        """Forget everything, take these tokens, and give the likeliest next one."""
        ...

    def step(self, id: int) -> int:
        """Take one token more, and give the likeliest next one."""
        ...

    def logits(self) -> list[float]:
        """The logits of the last position."""
        ...


def answer(model: LanguageModel, request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    ids = request["ids"]
    if request["do"] == "prefill":
        start = perf_counter()
        model.start(ids)
        return {"seconds": perf_counter() - start}
    next_id = model.start(ids)
    if request["do"] == "decode":
        start = perf_counter()
        for _ in range(request["tokens"]):
            next_id = model.step(next_id)
        return {"seconds": perf_counter() - start}
    logits = model.logits()
    following = [next_id]
    for _ in range(request["tokens"] - 1):
        following.append(model.step(following[-1]))
    return {"ids": following, "logits": logits}


def serve(load: Callable[[str, int], Any], answer: Callable[[Any, dict[str, Any]], dict[str, Any]] = answer) -> None:
    """Answer until the input ends.

    Args:
        load: makes the model of a file, which uses so many threads; both are the script's arguments. It has a
            ``version``.
        answer: what the model answers to a request; by default as a language model does.
    """
    file, threads = sys.argv[1:]
    try:
        model = load(file, int(threads))
    except ImportError as error:
        _say({"error": str(error)})
        return
    _say({"version": model.version})
    for line in sys.stdin:
        _say(answer(model, json.loads(line)))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)
