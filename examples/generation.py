"""Token after token from a split language model: the loop, and the ways to choose a token from its logits."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from engine import Seed, Tensor, ops, tensor, uniform
from examples.command_line import counted
from examples.errors import UsageError
from modules.parallel import DistributedLayeredModel

_LEAST: Final = 1e-30  # in place of a draw of 0, which has no logarithm

Choice: TypeAlias = Callable[[Tensor], int]
"""Logits [n_tokens] to a token id."""


def checked_prompt(ids: list[int], max_positions: int) -> list[int]:
    """The ids of a prompt.

    Raises:
        UsageError: there are none, or more than the model has positions for.
    """
    if not ids:
        raise UsageError("the prompt has no tokens; give some text")
    if len(ids) > max_positions:
        positions = counted(max_positions, "position")
        raise UsageError(f"the prompt has {counted(len(ids), 'token')}, and the model {positions}")
    return ids


def generated_ids(model: DistributedLayeredModel[Any], prompt_ids: Sequence[int], choose: Choice) -> Iterator[int]:
    """The ids that follow a prompt, one by one and without end; each is worked out when it is asked for.

    The prompt runs through the model once, then each new token alone, with the
    caches of what came before it.

    Args:
        model: gives logits of the last position or of all.
        prompt_ids: at least one.
        choose: picks the next id.
    """
    cache = model.new_autoregressive_cache()
    new_ids = list(prompt_ids)
    while True:
        ids = tensor([new_ids], device=model.placement.input.inner())
        logits = model.forward_autoregressive_inference(ids, cache)
        new_ids = [choose(logits[0, -1])]
        yield new_ids[0]


def likeliest(logits: Tensor) -> int:
    """The id of the largest logit; of equal ones the first."""
    return int(ops.argmax(logits))


def drawn(temperature: float, seed: int | None) -> Choice:
    """A choice that draws ids with probabilities softmax(logits / temperature).

    The largest of logits − temperature · log(−log(u)), with u uniform from 0
    to 1 for each id, is such a draw; so nothing but its position leaves the device.

    Args:
        temperature: above 0.
        seed: of the draws; None for the system's entropy.

    Source: C. Maddison et al., "A* sampling" (2014), section 2.
    """
    stream = Seed.of(seed)

    def choose(logits: Tensor) -> int:
        u = uniform(logits.shape, seed=stream, device=logits.device)
        noise = ops.log(-ops.log(ops.maximum(u, _LEAST)))
        scores = logits.cast(noise.dtype)
        # The same order both ways; so no temperature takes a score beyond what its dtype holds.
        return likeliest(scores * (1 / temperature) - noise if temperature > 1 else scores - temperature * noise)

    return choose
