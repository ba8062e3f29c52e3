"""The arithmetic of times, with readings that are made up."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.timing import Reading, Spread, Timing, fastest, interleaved, repeats, statement, timed
from engine import Device

seconds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20)


def reading_of(values: list[float]) -> Reading:
    """A reading that gives these, one after the other."""
    rest = iter(values)
    return lambda: next(rest)


@given(values=st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_quartiles_lie_between_the_values_a_quarter_a_half_and_three_quarters_through(values: list[int]) -> None:
    """Counted by hand: position (n − 1) q between sorted neighbours."""
    ordered = sorted(values)
    for quantile, found in zip((0.25, 0.5, 0.75), Spread.of(values), strict=True):
        position = (len(ordered) - 1) * quantile
        left = ordered[int(position)]
        right = ordered[min(int(position) + 1, len(ordered) - 1)]
        assert found == pytest.approx(left + (position - int(position)) * (right - left), abs=1e-9)


def test_quartiles_of_known_numbers() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == (7.0, 7.0, 7.0)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_ratios_are_formed_round_by_round_before_the_median_is_taken() -> None:
    """The median of ratios is not the ratio of medians: here 2 against 1."""
    mine, other = Timing((2.0, 8.0, 3.0)), Timing((1.0, 4.0, 3.0))
    assert mine.over(other).median == 2.0
    assert mine.spread().median / other.spread().median == 1.0
    with pytest.raises(ValueError):
        mine.over(Timing((1.0,)))


def test_the_fastest_has_the_lowest_median_whatever_its_slowest_round() -> None:
    assert fastest({"slow": Timing((2.0, 2.0, 2.0)), "fast": Timing((1.0, 1.0, 9.0))}) == "fast"


@given(values=seconds, amount=st.floats(1, 1e9))
def test_a_rate_times_its_time_is_the_amount(values: list[float], amount: float) -> None:
    for value in values:
        assert Timing((value,)).rate(amount).median * value == pytest.approx(amount)
    rate, spread = Timing(tuple(values)).rate(amount), Timing(tuple(values)).spread()
    assert rate.low <= rate.median <= rate.high
    assert amount / max(values) <= rate.low * (1 + 1e-9)
    assert spread.low >= min(values) * (1 - 1e-9)


@given(values=seconds)
def test_times_scale_with_the_unit(values: list[float]) -> None:
    timing = Timing(tuple(values))
    assert timing.spread(1e-3) == pytest.approx(timing.spread().scaled(1000))
    assert timing.scaled(3.0).over(timing) == pytest.approx((3.0, 3.0, 3.0))


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 0), (3, 0), (4, 2)])
def test_each_reading_is_taken_once_a_round_and_warmth_is_forgotten(rounds: int, warmup: int) -> None:
    values = [[float(10 * which + number) for number in range(warmup + rounds)] for which in range(3)]
    found = interleaved(*map(reading_of, values), rounds=rounds, warmup=warmup)
    assert [list(timing.seconds) for timing in found] == [of[warmup:] for of in values]


def test_the_order_turns_by_one_place_a_round() -> None:
    order: list[str] = []

    def named(name: str) -> Reading:
        def reading() -> float:
            order.append(name)
            return 1.0

        return reading

    interleaved(named("a"), named("b"), named("c"), rounds=3, warmup=0)
    assert "".join(order) == "abcbcacab"


def test_a_timed_call_runs_what_comes_before_once_and_itself_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that steps by hand: 4 calls of 3 s each are read as 3 s, and the second of `before` is not."""
    events: list[str] = []
    clock = [0.0]
    monkeypatch.setattr("bench.timing.perf_counter", lambda: clock[0])

    def step(name: str, by: float) -> Callable[[], None]:
        def act() -> None:
            events.append(name)
            clock[0] += by

        return act

    assert timed(step("call", 3.0), before=step("before", 1.0), repeat=4)() == 3.0
    assert events == ["before", "call", "call", "call", "call"]


def test_devices_are_synchronised_before_each_reading_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(Device, "synchronize", lambda self: events.append(str(self)))
    monkeypatch.setattr("bench.timing.perf_counter", lambda: events.append("clock") or 0.0)
    timed(lambda: events.append("call"), devices=[Device("cpu:0"), Device("cpu:1")])()
    assert events == ["cpu:0", "cpu:1", "clock", "call", "cpu:0", "cpu:1", "clock"]


def test_a_statement_runs_as_often_as_asked_and_knows_its_names() -> None:
    found: list[int] = []
    reading = statement("found.append(number)", repeat=5, found=found, number=3)
    assert reading() >= 0
    assert found == [3] * 5


def test_repeats_fill_the_time_asked_for() -> None:
    assert repeats(lambda: 0.003, 0.01) == 4
    assert repeats(lambda: 2.0, 0.01) == 1
    assert repeats(reading_of([100.0, 0.005]), 0.01) == 2  # the first one is for warmth


def test_a_slow_call_reads_longer_than_a_fast_one() -> None:
    """The one look at the real clock: 20 ms of sleep are no shorter than that."""
    assert timed(lambda: time.sleep(0.02))() >= 0.02
