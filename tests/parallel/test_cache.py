"""Caches of a split model: guarded before anything runs, thrown away after a failure, left where they are by moves."""

import copy

import pytest

from engine import Device, ShapeError, Tensor, arange, ops, zeros
from modules import ModuleError
from modules.parallel import DistributedLayeredModel, LayerPlacement, PlacementError
from tests.parallel.small_models import Apply, Chain, RunningSum, chain

A, B = Device("cpu:0"), Device("cpu:1")
PLACEMENT = LayerPlacement(A, [A, B], A)


def model() -> DistributedLayeredModel[Chain]:
    hidden = [RunningSum(2, device) for device in PLACEMENT.hidden]
    return DistributedLayeredModel(Chain(Apply(lambda s: s), hidden, Apply(lambda s: s)), PLACEMENT)


def positions(count: int) -> Tensor:
    return arange(2 * count, device=A, dtype="float32").reshape(count, 2)


def test_pieces_with_one_cache_give_the_whole_sequence() -> None:
    """P70: upstream's 5 positions as 3, 1, 1; the sums are of small integers, so exact. An empty piece is one too."""
    split, whole = model(), positions(5)
    cache = split.new_autoregressive_cache()
    pieces = [split.forward_autoregressive_inference(whole[a:b], cache) for a, b in ((0, 3), (3, 4), (4, 4), (4, 5))]
    assert ops.concatenate(pieces, 0).tobytes() == split(whole).tobytes()
    assert [one.length for one in cache] == [5, 5]
    assert [one.device for one in cache] == [A, B]


def test_caches_are_checked_before_anything_runs() -> None:
    """P68, P74: the number, one twice, something else, another device."""
    split = model()
    good = split.new_autoregressive_cache()
    for wrong in ((), good[:1], (*good, *good), (good[0], good[0]), (good[0], None)):
        with pytest.raises(ModuleError):
            split.forward_autoregressive_inference(positions(1), wrong)
    assert [one.length for one in good] == [0, 0]
    split.forward_autoregressive_inference(positions(1), good)
    with pytest.raises(PlacementError, match="cache of hidden layer 1 is on cpu:1, the layer on cpu:0") as refused:
        split.fork(A).forward_autoregressive_inference(positions(1), good)
    assert (refused.value.layer, refused.value.expected, refused.value.found) == (1, A, B)


def test_caches_of_other_layers_and_of_other_sequences_are_refused() -> None:
    """P66, P72: swapped or mixed caches would give wrong results in silence; copies are caches of their own."""
    split = model()
    one, other = split.new_autoregressive_cache(), split.new_autoregressive_cache()
    with pytest.raises(ModuleError, match="hidden layer 0 was made for hidden layer 1"):
        split.forward_autoregressive_inference(positions(1), (one[1], one[0]))
    with pytest.raises(ModuleError, match="different sequences"):
        split.forward_autoregressive_inference(positions(1), (one[0], other[1]))
    split.forward_autoregressive_inference(positions(2), one)
    branch = tuple(copy.copy(cache) for cache in one)
    expected = split.forward_autoregressive_inference(positions(3)[2:], one).tobytes()
    split.forward_autoregressive_inference(positions(9)[8:], branch)
    again = tuple(copy.deepcopy(cache) for cache in branch)
    assert [cache.length for cache in again] == [3, 3]
    assert one[0].seen.view().tobytes() == positions(3).tobytes()
    assert split(positions(3))[2:].tobytes() == expected


def test_a_failure_midway_makes_the_caches_unusable() -> None:
    """P73, DESIGN: any exception, KeyboardInterrupt too; those of another sequence stay good."""
    split = model()
    cache, other = split.new_autoregressive_cache(), split.new_autoregressive_cache()
    with pytest.raises(ShapeError):
        split.forward_autoregressive_inference(zeros((1, 5), device=A), cache)
    assert not any(one.valid for one in cache)
    with pytest.raises(ModuleError, match="unusable"):
        split.forward_autoregressive_inference(positions(1), cache)

    def interrupt(signal: Tensor) -> Tensor:
        raise KeyboardInterrupt

    stopped = DistributedLayeredModel(split.model.replace(head=Apply(interrupt)), PLACEMENT)
    cache = stopped.new_autoregressive_cache()
    with pytest.raises(KeyboardInterrupt):
        stopped.forward_autoregressive_inference(positions(1), cache)
    assert not any(one.valid for one in cache)
    split.forward_autoregressive_inference(positions(1), other)


def test_a_layer_without_a_cache_is_named() -> None:
    """P65."""
    split = DistributedLayeredModel(chain(PLACEMENT), PLACEMENT)
    with pytest.raises(ModuleError, match="hidden layer 0, a Scale, is not autoregressive"):
        split.new_autoregressive_cache()
