"""One sending thread for each partition, and the account of what every one of them was told.

A thread sends at its own even pace whatever the others do: a record has a time at which it is due,
and how long its ack took is counted from then. A thread that is far behind, for whatever reason,
does not make up for it, so that a partition's rate tells how well its thread was served.

On a busy machine every thread is late now and then. How late is measured, by a thread that does
nothing else, and what must happen within a time may take so much longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from statistics import quantiles

from kafka.errors import KafkaTimeoutError

from outlast import KafkaProducer
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.stories import TOPIC

LONGEST_ACK_S = 0.5  # of an unharmed partition
_MADE_UP_FOR_S = 1.0  # a thread that is no more behind than this still sends what was due
_PULSE_S = 0.01


@dataclass(slots=True)
class Account:
    """What one thread, and so one partition, saw. Times are monotonic seconds."""

    taken: list[int] = field(default_factory=list)  # numbers of the records that send() took
    acks: list[tuple[float, float]] = field(default_factory=list)  # (due, acknowledged)
    failures: list[BaseException] = field(default_factory=list)  # told by futures
    blocked_s: list[float] = field(default_factory=list)  # how long each send that raised took
    longest_send_s: float = 0.0

    def acked_in(self, begin_s: float, end_s: float) -> int:
        return sum(begin_s <= acked_s < end_s for _, acked_s in self.acks)

    def took_s(self, begin_s: float, end_s: float) -> list[float]:
        """How long the acks took of the records that were due in this time."""
        return [acked_s - due_s for due_s, acked_s in self.acks if begin_s <= due_s < end_s]

    def flows_since(self, at_s: float) -> bool:
        """Whether a record that was due after that has been acknowledged."""
        return bool(self.acks) and self.acks[-1][0] > at_s


class Senders:
    """A thread for each partition that sends `rate` records a second of `value_bytes` each."""

    def __init__(
        self, producer: KafkaProducer, partitions: int, *, rate: float, value_bytes: int
    ) -> None:
        self.accounts = [Account() for _ in range(partitions)]
        self.peak_bytes = 0  # of the buffer, as far as `until` saw
        self.lag_s = 0.0  # by which a thread that had nothing to do was late, at most
        self._producer = producer
        self._interval_s = 1.0 / rate
        self._filler = b" " * (value_bytes - 8)
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(p,), name=f"sender-{p}", daemon=True)
            for p in range(partitions)
        ]
        self._threads.append(threading.Thread(target=self._pulse, name="pulse", daemon=True))

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "send() still blocks"

    def stop(self, flush_s: float = 30.0) -> None:
        """Send no more and wait until all is settled. Raises what a thread did not expect."""
        self.__exit__()
        for error in self._errors:
            raise error
        self._producer.flush(timeout=flush_s)
        until(lambda: self._producer.health().buffer_bytes == 0, "the buffer is empty", 5.0)

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> float:
        """Wait for a condition, with an eye on the buffer; returns when it was met."""

        def looked() -> object:
            health = self._producer.health()
            assert health.buffer_bytes <= health.buffer_limit_bytes
            self.peak_bytes = max(self.peak_bytes, health.buffer_bytes)
            return condition()

        until(looked, what, timeout_s=timeout_s)
        return time.monotonic()

    def until_past(self, at_s: float) -> float:
        """Let the story go on until this time."""
        return self.until(lambda: time.monotonic() >= at_s, "time passes", timeout_s=60.0)

    def until_flowing(self, partitions: Iterable[int], timeout_s: float = 10.0) -> float:
        """Wait until each of these partitions acknowledges what was sent after now."""
        since_s, accounts = time.monotonic(), [self.accounts[p] for p in partitions]
        return self.until(
            lambda: all(account.flows_since(since_s) for account in accounts),
            "records flow",
            timeout_s=timeout_s,
        )

    def _run(self, partition: int) -> None:
        account = self.accounts[partition]
        # their turns are spread evenly, as those of independent threads would be
        due_s = time.monotonic() + self._interval_s * partition / len(self.accounts)
        number = 0
        try:
            while not self._over.wait(max(0.0, due_s - time.monotonic())):
                self._send(account, partition, number, due_s)
                number += 1
                due_s = max(due_s + self._interval_s, time.monotonic() - _MADE_UP_FOR_S)
        except BaseException as error:
            self._errors.append(error)

    def _pulse(self) -> None:
        while not self._over.is_set():
            begin_s = time.monotonic()
            self._over.wait(_PULSE_S)
            self.lag_s = max(self.lag_s, time.monotonic() - begin_s - _PULSE_S)

    def _send(self, account: Account, partition: int, number: int, due_s: float) -> None:
        value = b"%8d" % number + self._filler
        begin_s = time.monotonic()
        try:
            future = self._producer.send(TOPIC, value, partition=partition)
        except KafkaTimeoutError:
            account.blocked_s.append(time.monotonic() - begin_s)
            return
        finally:
            account.longest_send_s = max(account.longest_send_s, time.monotonic() - begin_s)
        account.taken.append(number)
        future.add_callback(lambda _: account.acks.append((due_s, time.monotonic())))
        future.add_errback(account.failures.append)


def numbers_in_log(server: ClusterServer, partition: int) -> list[int]:
    """The records that a partition holds, in its order, without the one that warmed it up."""
    return [int((r.value or b"")[:8]) for r in server.records(TOPIC, partition)][1:]


def assert_all_delivered(server: ClusterServer, senders: Senders) -> None:
    """Every record that `send()` took is in its log, once and in order, and was acknowledged."""
    for partition, account in enumerate(senders.accounts):
        assert account.failures == []
        assert len(account.acks) == len(account.taken)
        assert numbers_in_log(server, partition) == account.taken


def assert_unharmed(
    senders: Senders, partitions: Collection[int], rate: float, begin_s: float, end_s: float
) -> None:
    """Of these partitions, what was due between two times was acknowledged, and soon, and nobody
    waited for room.
    """
    accounts = [senders.accounts[p] for p in partitions]
    rates = [len(account.took_s(begin_s, end_s)) / (end_s - begin_s) for account in accounts]
    took_s = sorted(s for account in accounts for s in account.took_s(begin_s, end_s))
    print(
        f"\nhealthy: {min(rates):.1f} to {max(rates):.1f} of {rate:g} records/s each; acks took "
        f"{quantiles(took_s, n=100)[-1] * 1000:.1f} ms (p99), {took_s[-1] * 1000:.1f} ms "
        f"(longest); the machine was {senders.lag_s * 1000:.1f} ms late"
    )
    assert min(rates) >= 0.95 * rate
    assert took_s[-1] <= LONGEST_ACK_S + 2 * senders.lag_s  # several threads, one after another
    assert [account.blocked_s for account in accounts] == [[]] * len(accounts)
