"""Fixtures of the CUDA tests. All but those marked `gpu` run over a fake CuPy, never on a GPU."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_cupy import Machine, installed


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fake: the whole law suite over a fake CuPy, left out unless -m names it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The whole suite, which takes minutes, only if -m names it."""
    left_out = [item for item in items if item.get_closest_marker("fake") and "fake" not in config.option.markexpr]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Four GPUs that can all reach each other, in the place of CuPy."""
    with installed(Machine()) as made:
        yield made


@pytest.fixture
def cp(machine: Machine) -> Any:
    """The machine as CuPy."""
    import cupy

    return cupy


@pytest.fixture
def streams(cp: Any) -> tuple[Any, Any, Any]:
    """P on device 0, C on device 1, and K, a stream for copies on device 0."""
    with cp.cuda.Device(0):
        p, k = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with cp.cuda.Device(1):
        c = cp.cuda.Stream(non_blocking=True)
    return p, c, k
