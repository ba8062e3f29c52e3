"""The tests of real models run only when asked for with -m: they take a minute, and packages that carry the models."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "models" in config.option.markexpr:
        return
    real = [item for item in items if item.get_closest_marker("models")]
    if real:
        config.hook.pytest_deselected(items=real)
        items[:] = [item for item in items if not item.get_closest_marker("models")]
