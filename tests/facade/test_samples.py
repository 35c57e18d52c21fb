"""Windowed numbers: the same as kafka-python's own, of the same events."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from kafka.metrics import MetricConfig
from kafka.metrics.stats import Avg, Count, Max, Rate

from outlast.samples import Samples, average, frequency, largest, rate

EVENTS = st.lists(
    st.tuples(st.integers(0, 4_000), st.integers(0, 1_000), st.booleans()), max_size=60
)


class TestTheSameAsKafkaPythons:
    @given(events=EVENTS, samples=st.integers(2, 4), window_ms=st.sampled_from([500, 1_000, 3_000]))
    def test_of_any_events(
        self, events: list[tuple[int, int, bool]], samples: int, window_ms: int
    ) -> None:
        config = MetricConfig(samples=samples, time_window_ms=window_ms)
        ours = Samples(config)
        theirs = [Rate(), Rate(sampled_stat=Count()), Avg(), Max()]
        made = [make(lambda: [ours]) for make in (rate, frequency, average, largest)]
        now_ms = 1_000_000.0
        events = [(0, 7, False), *events]  # read before that, theirs are no longer in step
        for pause_ms, value, is_read in events:
            now_ms += pause_ms
            if is_read:
                expected = [stat.measure(config, now_ms) for stat in theirs]
                assert [m.measure(config, now_ms) for m in made] == pytest.approx(expected)
                continue
            ours.record(value, now_ms)
            for stat in theirs:
                stat.record(config, value, now_ms)

    def test_one_window_alone_tells_no_rate_rather_than_divide_by_nothing(self) -> None:
        config = MetricConfig(samples=1, time_window_ms=1_000)
        ours = Samples(config)
        ours.record(5, 1_000.0)
        assert rate(lambda: [ours]).measure(config, 1_000.0) == 0.0
        assert rate(lambda: [ours]).measure(config, 1_500.0) == 10.0


class TestSeveral:
    def test_rates_add_up_and_averages_are_weighed(self) -> None:
        config = MetricConfig(samples=2, time_window_ms=1_000)
        one, other = Samples(config), Samples(config)
        for value in (1, 2, 3):
            one.record(value, 5_000.0)
        other.record(10, 5_500.0)
        both = lambda: [one, other]  # noqa: E731
        assert rate(both).measure(config, 6_000.0) == 6 / 1 + 10 / 1.5
        assert frequency(both).measure(config, 6_000.0) == 3 / 1 + 1 / 1.5
        assert average(both).measure(config, 6_000.0) == 4.0
        assert largest(both).measure(config, 6_000.0) == 10.0

    def test_none_are_nothing(self) -> None:
        config = MetricConfig()
        none = list
        measured = [m(none).measure(config, 1.0) for m in (rate, frequency, average, largest)]
        assert measured == [0.0, 0.0, 0.0, float("-inf")]
