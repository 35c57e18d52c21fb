"""How a mock cluster behaves: its clocks, its chances, and which of Kafka's ages it plays.

Rules: every clock is in seconds and is either a number or a (shortest, longest) range that the
cluster draws from with its own random source. Defaults are quick and otherwise those of a real
cluster; `KRAFT` has the clocks that were measured on Apache Kafka 4.1.1. Numbers such as S3 or A13
name a measured fact about real brokers: docs/kafka-facts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

Span = float | tuple[float, float]


class Random(Protocol):
    """What the cluster asks of its random source; `random.Random` has it."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def getrandbits(self, k: int, /) -> int:
        """`k` random bits."""


def draw(span: Span, rng: Random) -> float:
    """A number of seconds from a span; a plain number is taken as it is."""
    if isinstance(span, tuple):
        low, high = span
        return low + (high - low) * rng.random()
    return span


def longest(span: Span) -> float:
    """The most that `draw` gives."""
    return max(span) if isinstance(span, tuple) else span


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Everything about a mock cluster that can be chosen. Times in seconds."""

    # Leader changes
    detect_s: Span = 0.3  # a dead or silent node → the controller gives it up (session timeout)
    controller_detect_s: Span | None = None  # the same for the active controller's node (A19)
    promote_s: Span = 0.0  # given up → new leaders are decided
    metadata_lag_s: Span = (0.001, 0.031)  # decided → a broker knows it, each on its own (A13)
    role_lag_s: Span = (0.0002, 0.001)  # it knows it → its replicas lead and follow accordingly
    deny_p: float = 0.13  # chance that a new leader learns of it after the old one (S6)
    deny_s: Span = (0.007, 0.023)  # … and by how much later
    creation_deny_p: float = 0.25  # a new topic's leader first answers 6, without a hint (A39)
    creation_deny_s: Span = (0.020, 0.030)
    unclean_election: bool = False  # may a replica outside the ISR lead?
    eligible_leader_replicas: bool = True  # KIP-966: A43, A44
    combined_quorum: bool = False  # nodes are the controllers too: nothing without a majority (A36)

    # Replication
    acks_all: Literal["isr", "majority", "store"] = "isr"  # who must have what acks=all answers
    replication_s: Span = (0.001, 0.004)  # append → a follower, or the store, has it (and tells)
    fetch_backoff_s: Span = 0.05  # replica.fetch.backoff.ms (Kafka's default is 1 s)
    fetch_backoff_p: float = 0.5  # chance of it after a move, a stop, a topic's creation (S3)
    not_enough_replicas_after_append: bool = False  # brokers before 4.0: 20 in place of 7 (S4)
    timeout_slack_s: Span = (0.002, 0.013)  # timeout_ms → the 7 (C15)

    # A node's life
    crash_resets: bool = True  # False: connections to a killed node fall silent, as behind a proxy
    stopping_s: Span = (2.085, 2.248)  # controlled stop → its connections are closed (A6)
    unlisted_s: Span = (0.0, 0.060)  # it leaves the broker list that long before (A9)
    startup_s: Span = 0.05  # start → it listens, knows the metadata and is listed (A12)
    isr_join_s: Span = (0.0, 0.02)  # listed → its followers begin to fetch
    resume_lag_s: Span = (0.024, 0.154)  # resumed → it knows what happened meanwhile (A33)
    resume_register_s: Span = (0.045, 0.131)  # resumed → it is listed again (A35)
    producer_id_load_s: Span = (0.038, 0.051)  # its first InitProducerId gets 14 so long (S10)
    late_s: float | None = 10.0  # requests left in a closed connection are taken within; None: lost

    # Producers and records
    first_seq_rule: Literal["any", "zero"] = "any"  # 2.5 to 4.4, or 4.5 (KAFKA-15591)
    producer_expiry_s: float = 86_400.0  # producer.id.expiration.ms (S12)
    duplicate_error: bool = False  # a known repeat gets 46 and not 0
    max_message_bytes: int = 1_048_588
    socket_request_max_bytes: int | None = None  # a longer request ends its connection, unread
    check_crc: bool = True
    check_records: bool = False  # decode every record of every batch (S16, C5)
    unix_offset_s: float | None = None  # wall clock minus `now`; None: timestamps are not checked

    # Transactions and groups
    coordinator_partitions: int = 3  # of each internal topic
    coordinator_load_s: Span = (0.001, 0.005)  # it leads one → it has read its log; 14 meanwhile
    between_brokers_s: Span = (0.0004, 0.002)  # one broker asks another → it has the answer (T10)
    between_brokers_timeout_s: float = 2.0  # … or thinks it never will
    transaction_expiry_s: Span = (0.0, 0.05)  # its time is up → the coordinator looks
    transaction_timeout_max_ms: int = 900_000  # transaction.max.timeout.ms
    transaction_version: Literal[1, 2] = 2  # 2: the end of a transaction may raise the epoch

    # Topics and protocol
    auto_create_topics: bool = False
    auto_create_partitions: int = 1
    api_versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # narrower ranges
    request_log_limit: int = 100_000

    def __post_init__(self) -> None:
        if self.first_seq_rule not in ("any", "zero"):
            raise ValueError(
                f"first_seq_rule is {self.first_seq_rule!r}; allowed are 'any' (Kafka 2.5 to 4.4)"
                " and 'zero' (4.5)"
            )
        if self.acks_all not in ("isr", "majority", "store"):
            raise ValueError(
                f"acks_all is {self.acks_all!r}; allowed are 'isr' (Kafka: all in-sync replicas),"
                " 'majority' (most replicas) and 'store' (one that all brokers share)"
            )
        if self.unclean_election and self.acks_all != "isr":
            raise ValueError("unclean_election needs acks_all='isr': others elect no such leader")


FAST = ClusterSettings()
"""Quick clocks: a dead leader is replaced after 0.3 s."""

KRAFT = replace(
    FAST,
    detect_s=(8.0, 9.0),
    controller_detect_s=(10.7, 12.4),
    fetch_backoff_s=1.0,
    startup_s=(2.1, 2.6),
    isr_join_s=(0.1, 0.6),
    between_brokers_s=(0.005, 0.04),
    between_brokers_timeout_s=30.0,
    transaction_expiry_s=(0.0, 10.0),
)
"""The clocks of a real cluster with default settings (Apache Kafka 4.1.1, KRaft)."""
