"""The longest gap by a cluster's clocks, held to what was measured on a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.cli.check_model import DEFAULT_MS, Kind, Worst, worst_gaps
from outlast.config import settings
from outlast.testing import KRAFT
from tests.cli.check_worlds import DEFAULTS, cluster, topic

# Seconds measured on Apache Kafka 4.1.1 with default settings, by row of docs/kafka-facts.md.
# To the first ack of acks=all, or to the new leader's showing plus the 0.34 s at most until it took
# records (A23).
TAKES_S = 0.34
MEASURED_S = {
    Kind.PLANNED: [
        *(0.042, 1.059, 1.074, 1.076, 1.100, 2.078),  # A5
        *(0.016, 0.190, 0.982, 1.009, 1.017, 2.027),  # A16
        1.034,  # S3
    ],
    Kind.CRASH: [shown + TAKES_S for shown in (7.95, 8.25, 8.43)],  # A18
    Kind.CONTROLLER: [shown + TAKES_S for shown in (10.78, 10.90, 12.41, 10.70, 10.78)],  # A19
    Kind.SILENT: [shown + TAKES_S for shown in (8.09, 8.19, 9.02)],  # A18
}
REAL = {**DEFAULTS, "replica.fetch.backoff.ms": "1000"}


def worst(configs: dict[str, str] | None = None, **keywords: object) -> dict[Kind, Worst]:
    seen = cluster(REAL if configs is None else configs)
    return {gap.kind: gap for gap in worst_gaps(seen, settings(**keywords))}


@pytest.mark.parametrize("kind", MEASURED_S, ids=lambda kind: kind.value)
def test_no_measured_gap_was_longer_and_the_bound_is_not_far_off(kind: Kind) -> None:
    longest = max(MEASURED_S[kind])
    assert longest <= worst()[kind].seconds <= longest * 1.4


def test_what_kafkas_defaults_come_to() -> None:
    """The figures of docs/check.md, by hand: 9 s of session, 4 s of quorum, 0.35 s to a leader …"""
    assert {kind: gap.seconds for kind, gap in worst().items()} == pytest.approx(
        {
            Kind.PLANNED: 0.25 + 0.5 + 2.0 + 0.12,
            Kind.CRASH: 9.0 + 0.35 + 1.0 + 0.12,
            Kind.CONTROLLER: 4.0 + 9.0 + 0.35 + 1.0 + 0.12,
            Kind.SILENT: 9.0 + 0.35 + 1.0 + 0.3,
            Kind.FOLLOWER: 45.0,
        }
    )


def test_a_short_fetch_back_off_shows_in_planned_moves() -> None:
    """S3: with 100 ms the longest of 20 moves took 145 ms, and the long poll was not met."""
    gap = worst({**REAL, "replica.fetch.backoff.ms": "100"})[Kind.PLANNED]
    assert 0.145 <= gap.seconds <= 1.2


def test_each_clock_of_the_cluster_moves_the_gaps_that_wait_for_it() -> None:
    base = worst()
    moved = {
        "broker.session.timeout.ms": {Kind.CRASH, Kind.CONTROLLER, Kind.SILENT},
        "controller.quorum.fetch.timeout.ms": {Kind.CONTROLLER},
        "controller.quorum.election.timeout.ms": {Kind.CONTROLLER},
        "controller.quorum.election.backoff.max.ms": {Kind.CONTROLLER},
        "replica.fetch.backoff.ms": set(Kind) - {Kind.FOLLOWER},
        "replica.fetch.wait.max.ms": {Kind.PLANNED},
        "replica.lag.time.max.ms": {Kind.FOLLOWER},
    }
    for name, kinds in moved.items():
        later = worst({**REAL, name: str(int(REAL[name]) + 1_000)})
        longer = {kind for kind in Kind if later[kind].seconds > base[kind].seconds + 0.9}
        assert longer == kinds, name
    assert set(moved) == set(DEFAULT_MS) - {"zookeeper.session.timeout.ms"}


def test_parts_add_up_and_every_clock_is_named() -> None:
    for gap in worst().values():
        assert gap.seconds == pytest.approx(sum(p.each_s * p.times for p in gap.parts))
        assert gap.assumed == ()
        assert all(part.what for part in gap.parts)


def test_what_could_not_be_read_is_kafkas_default_and_is_named() -> None:
    seen = cluster()
    bare = replace(seen, brokers=tuple(replace(b, configs={}) for b in seen.brokers))
    gaps = {gap.kind: gap for gap in worst_gaps(bare, settings())}
    real = worst()
    assert {kind: gap.seconds for kind, gap in gaps.items()} == pytest.approx(
        {kind: gap.seconds for kind, gap in real.items()}
    )
    assert set(gaps[Kind.CRASH].assumed) == {
        "broker.session.timeout.ms",
        "replica.fetch.backoff.ms",
    }


def test_the_slowest_brokers_clock_counts() -> None:
    seen = cluster()
    slow = replace(seen.brokers[2], configs={**DEFAULTS, "broker.session.timeout.ms": "20000"})
    seen = replace(seen, brokers=(*seen.brokers[:2], slow))
    crash = {gap.kind: gap.seconds for gap in worst_gaps(seen, settings())}[Kind.CRASH]
    assert 20.0 < crash < 22.0


def test_controllers_apart_from_brokers_do_not_die_with_them() -> None:
    apart = replace(cluster({"process.roles": "broker"}), voters=(7, 8, 9))
    gaps = {gap.kind: gap for gap in worst_gaps(apart, settings())}
    assert gaps[Kind.CONTROLLER].seconds == gaps[Kind.CRASH].seconds
    assert "apart" in gaps[Kind.CONTROLLER].note


def test_zookeepers_session_counts_where_there_is_no_quorum() -> None:
    old = cluster({"process.roles": "", "zookeeper.session.timeout.ms": "6000"}, voters=None)
    gaps = {gap.kind: gap for gap in worst_gaps(old, settings())}
    assert 6.0 < gaps[Kind.CRASH].seconds < 7.0
    assert "not measured" in gaps[Kind.CRASH].note


def test_without_acks_all_no_follower_is_waited_for() -> None:
    gaps = worst(acks=1)
    assert Kind.FOLLOWER not in gaps
    assert gaps[Kind.PLANNED].seconds < 0.5


def test_one_replica_has_no_follower_that_could_lag() -> None:
    alone = cluster(topics=(topic("t", (1,)),))
    assert Kind.FOLLOWER not in {gap.kind for gap in worst_gaps(alone, settings())}


def test_the_producers_own_share() -> None:
    quick, slow = worst(retry_backoff_ms=10), worst(retry_backoff_ms=1_000)
    assert quick[Kind.CRASH].client_s == pytest.approx(0.012)
    assert slow[Kind.CRASH].client_s == pytest.approx(1.2)
    assert worst()[Kind.SILENT].client_s == pytest.approx(0.3)  # suspected long before the election
    sleepy = worst(silence_timeout_ms=15_000)[Kind.SILENT]
    assert sleepy.seconds == pytest.approx(15.0 + 0.3, abs=0.01)
    late = worst({**REAL, "broker.session.timeout.ms": "20000"})
    assert late[Kind.CRASH].client_s == pytest.approx(1.2)  # the refresh clock has slowed down


def test_the_mock_cluster_is_within_the_bound_that_its_clocks_give() -> None:
    """What `KRAFT` draws from is what was measured: the model holds for it without a look at it."""
    spans = {Kind.CRASH: KRAFT.detect_s, Kind.CONTROLLER: KRAFT.controller_detect_s}
    for kind, span in spans.items():
        assert isinstance(span, tuple)
        assert max(span) < worst()[kind].seconds < max(span) + 3.0
