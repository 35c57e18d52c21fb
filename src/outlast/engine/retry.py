"""How long to wait before trying again: tenacity's schedules, asked as pure functions.

Every schedule is a tenacity `wait_*` or `stop_*` object; users may pass their own. The engine
never lets tenacity sleep or read a clock: it asks the object with a small state (which attempt,
how long since the first, what went wrong) and adds its own jitter of ± 20 % from the injected
random source, so that many clients do not come back in step.

Rules of this file:

* A user's schedule is foreign code: where it raises, or answers what is not a time (negative, NaN,
  infinite), the default answers in its place, and one complaint per schedule goes to the log.
* No delay is shorter than a millisecond: a schedule of zeros must not turn into a busy loop.
* Attempts count from 1: after the first failure the state says `attempt_number=1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tenacity
from kafka.errors import KafkaConnectionError, for_code
from tenacity.wait import wait_base

from outlast.engine.rng import Rng, jittered
from outlast.engine.settings import Settings
from outlast.engine.verdict import code_name

DELAY_S_MIN = 0.001
METADATA_STEADY_S = 15.0  # KRaft elects within 12.4 s (A19); till then a late look costs a gap
DENIED_DELAY_S = 0.005  # a new leader denies for 7–23 ms in a seventh of all moves (S6)
PRODUCER_ID_DELAY_S = 0.010  # a freshly started broker says 14 for 38–51 ms (S10)

_CODES = {code_name(code): code for code in range(-1, 134)}

Schedule = Callable[[Any], Any]


class _Outcome:
    """The failed last attempt, as schedules read it from `retry_state.outcome`."""

    __slots__ = ("_error_name", "attempt_number")

    failed = True

    def __init__(self, attempt_number: int, error_name: str) -> None:
        self.attempt_number = attempt_number
        self._error_name = error_name

    def exception(self, timeout: float | None = None) -> BaseException:  # noqa: ARG002
        """The kafka-python exception of the answer, or KafkaConnectionError of a loss."""
        code = _CODES.get(self._error_name)
        kind = KafkaConnectionError if code is None else for_code(code)
        error: BaseException = kind(self._error_name)
        return error

    def result(self, timeout: float | None = None) -> Any:
        """Raises, as the result of a failed attempt does."""
        raise self.exception(timeout)


class RetryState:
    """What a schedule may read: tenacity's `RetryCallState` without its clock."""

    __slots__ = ("attempt_number", "outcome", "seconds_since_start", "upcoming_sleep")

    # what only a running `tenacity.Retrying` has
    retry_object = None
    fn = None
    args = ()
    next_action = None
    start_time = 0.0
    idle_for = 0.0

    def __init__(self, attempt_number: int, seconds_since_start: float, error_name: str) -> None:
        self.attempt_number = attempt_number
        self.seconds_since_start = seconds_since_start
        self.upcoming_sleep = 0.0
        self.outcome = _Outcome(attempt_number, error_name)

    @property
    def kwargs(self) -> dict[str, Any]:
        """No keyword arguments."""
        return {}

    @property
    def outcome_timestamp(self) -> float:
        """On a clock that stood at 0 when the first attempt began."""
        return self.seconds_since_start

    def __repr__(self) -> str:
        return f"<RetryState attempt={self.attempt_number} since={self.seconds_since_start:.3f} s>"


class wait_steady_then_exponential(wait_base):  # noqa: N801 - named as tenacity names its own
    """The same wait while an election is likely under way, then doubling up to a maximum.

    Doubling waits add up to themselves (0.1 + 0.2 + 0.4 ≈ 0.8), so that the wait after `t` seconds
    of doubling is `wait_s + t`: no count is needed.
    """

    def __init__(self, wait_s: float, wait_s_max: float, steady_s: float) -> None:
        self.wait_s = wait_s
        self.wait_s_max = wait_s_max
        self.steady_s = steady_s

    def __call__(self, retry_state: Any) -> float:
        """The wait after `retry_state.seconds_since_start`."""
        over_s = max(0.0, float(retry_state.seconds_since_start) - self.steady_s)
        return max(self.wait_s, min(self.wait_s + over_s, self.wait_s_max))


class Schedules:
    """Every schedule of one producer.

    Attributes:
        complaints: texts for the log, to be taken away by the caller.
    """

    __slots__ = (
        "_backoff_s",
        "_backoff_s_max",
        "_complained",
        "_defaults",
        "_rng",
        "_users",
        "complaints",
    )

    def __init__(self, settings: Settings, rng: Rng) -> None:
        self._rng = rng
        self._backoff_s = settings.retry_backoff_s
        self._backoff_s_max = settings.retry_backoff_max_s
        self._users: dict[str, Schedule | None] = {
            "retry_wait": settings.retry_wait,
            "retry_stop": settings.retry_stop,
            "reconnect_wait": settings.reconnect_wait,
            "metadata_wait": settings.metadata_wait,
        }
        retries = settings.retries
        self._defaults: dict[str, Schedule] = {
            "retry_wait": tenacity.wait_exponential(
                multiplier=settings.retry_backoff_s, max=settings.retry_backoff_max_s
            ),
            "retry_stop": tenacity.stop_never
            if math.isinf(retries)
            else tenacity.stop_after_attempt(int(retries) + 1),
            "reconnect_wait": tenacity.wait_exponential(
                multiplier=settings.reconnect_backoff_s, max=settings.reconnect_backoff_max_s
            ),
            "metadata_wait": wait_steady_then_exponential(
                settings.retry_backoff_s, settings.retry_backoff_max_s, METADATA_STEADY_S
            ),
        }
        self._complained: set[str] = set()
        self.complaints: list[str] = []

    def __repr__(self) -> str:
        own = [name for name, schedule in self._users.items() if schedule is not None]
        return f"<Schedules own={own} complained={sorted(self._complained)}>"

    def retry_delay_s(self, attempt: int, since_s: float, error_name: str) -> float:
        """The wait before a batch is tried again at the same leader.

        Args:
            attempt: failed attempts so far, this one included.
            since_s: since the batch's first attempt was sent.
            error_name: protocol name of the last answer, or of the loss.
        """
        return self._delay_s("retry_wait", RetryState(attempt, since_s, error_name))

    def retry_stops(self, attempt: int, since_s: float, error_name: str = "") -> bool:
        """Whether a batch has been tried often enough; `retries` is the default schedule.

        Args:
            attempt: failed attempts that count, this one included. Those which met a stale leader
                or a lost connection do not: an election must be outlasted with `retries=5` too.
            since_s: since the batch's first attempt was sent.
            error_name: protocol name of the last answer.
        """
        state = RetryState(attempt, since_s, error_name)
        user = self._users["retry_stop"]
        if user is not None:
            state.upcoming_sleep = self._ask_wait("retry_wait", state)
            try:
                return bool(user(state))
            except Exception as error:  # foreign code
                self._complain("retry_stop", state, f"raised {error!r}")
        return bool(self._defaults["retry_stop"](state))

    def reconnect_delay_s(self, attempt: int, since_s: float) -> float:
        """The wait before a node is connected again: failed connects so far, first one's age."""
        return self._delay_s("reconnect_wait", RetryState(attempt, since_s, "CONNECTION_REFUSED"))

    def metadata_delay_s(self, attempt: int, since_s: float) -> float:
        """The least time from one metadata request to the next.

        Args:
            attempt: requests so far in the present want of a leader.
            since_s: age of the oldest partition's want of a leader, 0 if there is none.
        """
        return self._delay_s("metadata_wait", RetryState(attempt, since_s, "LEADER_NOT_AVAILABLE"))

    def denied_delay_s(self, attempt: int) -> float:
        """The wait after the newest leader we know denied it: 5 ms, doubling to the back-off."""
        return self._doubling_s(DENIED_DELAY_S, attempt, self._backoff_s)

    def producer_id_delay_s(self, attempt: int) -> float:
        """The wait after a failed InitProducerId: 10 ms, doubling to the longest back-off."""
        return self._doubling_s(PRODUCER_ID_DELAY_S, attempt, self._backoff_s_max)

    def _doubling_s(self, first_s: float, attempt: int, longest_s: float) -> float:
        plain_s = first_s * 2.0 ** min(attempt - 1, 30)
        return max(DELAY_S_MIN, jittered(min(plain_s, max(longest_s, first_s)), self._rng))

    def _delay_s(self, name: str, state: RetryState) -> float:
        return max(DELAY_S_MIN, jittered(self._ask_wait(name, state), self._rng))

    def _ask_wait(self, name: str, state: RetryState) -> float:
        user = self._users[name]
        if user is not None:
            try:
                answer = user(state)
                delay_s = float(answer)
            except Exception as error:  # foreign code
                self._complain(name, state, f"raised {error!r}")
            else:
                if 0 <= delay_s < math.inf:  # not NaN either
                    return delay_s
                self._complain(name, state, f"gave {answer!r}, which is no time to wait")
        return float(self._defaults[name](state))

    def _complain(self, name: str, state: RetryState, what: str) -> None:
        if name in self._complained:
            return
        self._complained.add(name)
        allowed = "True or False" if name == "retry_stop" else "seconds, 0 or more"
        self.complaints.append(
            f"{name}={self._users[name]!r} {what} (attempt {state.attempt_number},"
            f" {state.seconds_since_start:.3f} s since the first): it must give {allowed}."
            " The default schedule answers in its place; this is said once."
        )
