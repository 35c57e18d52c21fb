"""Numbers over the last samples of time, as kafka-python's `Rate`, `Avg` and `Max` tell them.

Theirs are three objects for three figures of one quantity, each with a lock and a float made anew;
here one object records the quantity once, and is asked for all of them. Windows are theirs to the
millisecond (a test feeds both the same events): `metrics_num_samples` samples, each of
`metrics_sample_window_ms`; a rate is over the time since the oldest sample began, and never over
less than all but one of the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafka.metrics import AnonMeasurable, MetricConfig


class Samples:
    """One quantity: recorded by one thread, read by any."""

    __slots__ = ("_current", "_samples", "_samples_max", "_window_ms")

    def __init__(self, config: MetricConfig) -> None:
        self._window_ms: float = config.time_window_ms
        self._samples_max: int = config.samples
        self._samples: list[_Sample] = []
        self._current = 0

    def __repr__(self) -> str:
        return f"<Samples {self._samples}>"

    def record(self, value: float, now_ms: float) -> None:
        """It happened, and this much of it."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.begun_ms >= self._window_ms:
            sample = self._next(now_ms)
        sample.count += 1
        sample.total += value
        if value > sample.largest:
            sample.largest = value

    def _next(self, now_ms: float) -> _Sample:
        self._current = (self._current + 1) % self._samples_max
        if self._current >= len(self._samples):
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        sample.reset(now_ms)
        return sample

    def recent(self, now_ms: float) -> list[_Sample]:
        """All samples, those that are too old begun anew."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        for sample in self._samples:
            if now_ms - sample.begun_ms >= self._samples_max * self._window_ms:
                sample.reset(now_ms)
        return self._samples

    def elapsed_s(self, now_ms: float) -> float:
        """The time that a rate is over."""
        elapsed_ms = now_ms - min(sample.begun_ms for sample in self.recent(now_ms))
        missing = self._samples_max - 1 - int(elapsed_ms / self._window_ms)
        return (elapsed_ms + max(0, missing) * self._window_ms) / 1000


class _Sample:
    """What was recorded within one window."""

    __slots__ = ("begun_ms", "count", "largest", "total")

    def __init__(self, now_ms: float) -> None:
        self.reset(now_ms)

    def __repr__(self) -> str:
        return f"{self.count}×, {self.total:g}"

    def reset(self, now_ms: float) -> None:
        self.begun_ms = now_ms
        self.count = 0
        self.total = 0.0
        self.largest = float("-inf")


# What kafka-python's figures are of: one quantity, or the same one of several nodes or topics.
Source = Callable[[], Iterable[Samples]]


def rate(source: Source) -> AnonMeasurable:
    """The quantity per second; over several the sum of their rates."""

    def measure(_config: MetricConfig, now_ms: float) -> float:
        return sum((_per_second(samples, now_ms, "total") for samples in source()), 0.0)

    return AnonMeasurable(measure)


def frequency(source: Source) -> AnonMeasurable:
    """How often per second it happened."""

    def measure(_config: MetricConfig, now_ms: float) -> float:
        return sum((_per_second(samples, now_ms, "count") for samples in source()), 0.0)

    return AnonMeasurable(measure)


def average(source: Source) -> AnonMeasurable:
    """The quantity each time; 0 if it did not happen."""

    def measure(_config: MetricConfig, now_ms: float) -> float:
        recent = [sample for samples in source() for sample in samples.recent(now_ms)]
        count = sum(sample.count for sample in recent)
        return sum(sample.total for sample in recent) / count if count else 0.0

    return AnonMeasurable(measure)


def largest(source: Source) -> AnonMeasurable:
    """The largest of them; -inf if it did not happen."""

    def measure(_config: MetricConfig, now_ms: float) -> float:
        recent = (sample for samples in source() for sample in samples.recent(now_ms))
        return max((sample.largest for sample in recent), default=float("-inf"))

    return AnonMeasurable(measure)


def _per_second(samples: Samples, now_ms: float, what: str) -> float:
    elapsed_s = samples.elapsed_s(now_ms)  # first: it begins old samples anew
    amount: float = sum(getattr(sample, what) for sample in samples.recent(now_ms))
    return amount / elapsed_s if elapsed_s else 0.0
