"""The nearest path: by components from both ends, then by letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.nearest import nearest
from tests.records.strategies import paths


@pytest.mark.parametrize(
    ("path", "others", "found"),
    [
        ("head.bias", ["head.weight", "blocks.0.bias", "head.b"], "head.b"),
        ("blocks.1.norm.weight", ["blocks.0.norm.gamma", "blocks.1.norm.gamma", "norm.weight"], "blocks.1.norm.gamma"),
        ("encoder.layers.3.q", ["layers.3.q", "encoder.layers.2.k", "head"], "layers.3.q"),
        ("wieght", ["bias", "weight"], "weight"),
        ("a", ["b", "c"], "b"),
        ("a", [], None),
    ],
)
def test_the_nearest_has_most_components_in_common(path, others, found):
    assert nearest(path, others) == found


@given(path=paths, others=st.lists(paths, max_size=6))
def test_a_path_that_is_there_is_the_nearest_to_itself(path, others):
    assert nearest(path, [*others, path]) == path
    assert nearest(path, others) in (*others, None)


def test_many_paths_are_gone_through_in_bounded_time():
    """100,000 others, as many as a record can have."""
    others = [f"blocks.{at}.attention.query.weight" for at in range(100_000)]
    assert nearest("blocks.99999.attention.query.gamma", others) == "blocks.99999.attention.query.weight"
