"""The surface is kafka-python's: whatever its KafkaProducer has, ours has of its own, and what
comes of a call is the same, but for the differences that docs/compatibility.md lists.
"""

from __future__ import annotations

import gc
import inspect
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.errors
import psutil
import pytest
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata

import outlast
from outlast import config
from outlast.future import DeliveryFuture
from outlast.testing import Error, MockCluster
from tests.facade import surface
from tests.facade.surface import OURS as OUR_KIND, THEIRS as THEIR_KIND, Outcome

THEIRS, OURS = kafka.KafkaProducer, outlast.KafkaProducer
FROM_OBJECT = {"__class__", "__dict__", "__doc__", "__module__", "__weakref__"}


def public_members(cls: type) -> list[str]:
    return sorted(
        name
        for name in vars(cls)
        if not name.startswith("_") or (name.startswith("__") and name not in FROM_OBJECT)
    )


def signature(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


class TestProducer:
    def test_there_is_something_to_compare(self) -> None:
        members = public_members(THEIRS)
        assert {"send", "flush", "close", "__del__", "__enter__", "__str__"} <= set(members)

    @pytest.mark.parametrize("name", public_members(THEIRS))
    def test_member_is_overridden(self, name: str) -> None:
        owner = next(kind for kind in OURS.__mro__ if name in vars(kind))
        assert owner is not THEIRS, f"{name} is inherited: it would use the parent's missing state"

    @pytest.mark.parametrize(
        "name", [name for name in public_members(THEIRS) if callable(getattr(THEIRS, name))]
    )
    def test_same_signature(self, name: str) -> None:
        theirs, ours = signature(getattr(THEIRS, name)), signature(getattr(OURS, name))
        assert [(n, k) for n, k, _ in ours] == [(n, k) for n, k, _ in theirs]
        assert [d for _, _, d in ours] == [d for _, _, d in theirs]

    def test_every_keyword_and_default(self) -> None:
        theirs, ours = THEIRS.DEFAULT_CONFIG, OURS.DEFAULT_CONFIG
        assert set(theirs) <= set(ours)
        different = {
            name
            for name in theirs
            if ours[name] != theirs[name] and type(ours[name]) is not type(theirs[name])
        } | {
            name
            for name in theirs
            if isinstance(theirs[name], (int, float, str, tuple, type(None)))
            and ours[name] != theirs[name]
        }
        assert different == {"reconnect_backoff_max_ms"}
        assert set(OURS.DEPRECATED_CONFIGS) == set(THEIRS.DEPRECATED_CONFIGS)
        assert ours == config.DEFAULTS

    def test_is_one(self) -> None:
        assert issubclass(OURS, THEIRS)
        with OURS(bootstrap_servers="127.0.0.1:1") as producer:
            assert isinstance(producer, THEIRS)

    @pytest.mark.parametrize("version", [(0, 8), (0, 10), (0, 10, 0), (0, 11), (2, 8), (4, 0)])
    def test_max_usable_produce_magic(self, version: tuple[int, ...]) -> None:
        assert OURS.max_usable_produce_magic(version) == THEIRS.max_usable_produce_magic(version)


class TestFuture:
    @pytest.mark.parametrize(
        "name",
        sorted(
            name
            for cls in (Future, FutureRecordMetadata)
            for name, member in vars(cls).items()
            if not name.startswith("_") and inspect.isfunction(member)
        ),
    )
    def test_same_signature(self, name: str) -> None:
        theirs, ours = getattr(FutureRecordMetadata, name), getattr(DeliveryFuture, name)
        assert signature(ours) == signature(theirs)

    @pytest.mark.parametrize("name", ["is_done", "value", "exception", "args"])
    def test_state_is_read_only_and_comes_from_the_delivery(self, name: str) -> None:
        assert isinstance(vars(DeliveryFuture)[name], property)


@pytest.fixture
def producer() -> Iterator[outlast.KafkaProducer]:
    with outlast.KafkaProducer(bootstrap_servers="127.0.0.1:1", client_id="me") as producer:
        yield producer


class TestTransactions:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("init_transactions", ()),
            ("begin_transaction", ()),
            ("send_offsets_to_transaction", ({}, "group")),
            ("commit_transaction", ()),
            ("abort_transaction", ()),
        ],
    )
    def test_need_a_transactional_id(
        self, producer: outlast.KafkaProducer, name: str, arguments: tuple[object, ...]
    ) -> None:
        with pytest.raises(kafka.errors.IllegalStateError, match="Cannot"):
            getattr(producer, name)(*arguments)


class TestLooks:
    def test_str(self, producer: outlast.KafkaProducer) -> None:
        assert str(producer) == "<KafkaProducer client_id=me transactional_id=None>"

    def test_config_is_normalised(self, producer: outlast.KafkaProducer) -> None:
        assert producer.config["acks"] == -1
        assert producer.config["client_id"] == "me"
        assert producer.config["enable_idempotence"] is True
        assert producer.config["api_version"] == config.NEWEST_API_VERSION
        assert set(THEIRS.DEFAULT_CONFIG) <= set(producer.config)

    def test_nothing_has_happened_yet(self, producer: outlast.KafkaProducer) -> None:
        assert producer.gaps() == []
        assert producer.stalls() == []
        assert producer.bootstrap_connected() is False

    def test_metrics(self, producer: outlast.KafkaProducer) -> None:
        metrics = producer.metrics()
        assert metrics is not None
        assert metrics["outlast-metrics"]["record-send-total"] == 0
        assert metrics["kafka-metrics-count"]["count"] >= 5
        raw = producer.metrics(raw=True)
        assert raw is not None
        assert {name.group for name in raw} == set(metrics)

    def test_metrics_can_be_off_and_reporters_hear_of_them(self) -> None:
        with outlast.KafkaProducer(
            bootstrap_servers="127.0.0.1:1", metrics_enabled=False
        ) as producer:
            assert producer.metrics() is None
        heard: list[object] = []

        class Reporter(kafka.metrics.DictReporter):
            def metric_change(self, metric: object) -> None:
                heard.append(metric)

            def close(self) -> None:
                heard.append("closed")

        with outlast.KafkaProducer(
            bootstrap_servers="127.0.0.1:1", metric_reporters=[Reporter]
        ) as producer:
            assert heard
        assert heard[-1] == "closed"
        assert producer.metrics() == {}


class TestNothingHalfBuilt:
    @pytest.mark.parametrize(
        ("keywords", "error"),
        [
            ({"nonsense": 1}, ValueError),
            ({"acks": 7}, ValueError),
            ({"linger_ms": "5"}, TypeError),
            ({"bootstrap_servers": "a:b"}, ValueError),
            (
                {"transactional_id": "t", "enable_idempotence": False},
                kafka.errors.KafkaConfigurationError,
            ),
            ({"delivery_timeout_ms": 1}, kafka.errors.KafkaConfigurationError),
            (
                {"security_protocol": "SSL", "ssl_cafile": "no/such/file.pem"},
                kafka.errors.KafkaConfigurationError,
            ),
        ],
        ids=str,
    )
    def test_no_thread_and_no_socket_stays_behind(
        self, keywords: dict[str, Any], error: type[Exception]
    ) -> None:
        process = psutil.Process()
        gc.collect()
        threads, descriptors = threading.active_count(), process.num_fds()
        with pytest.raises(error):
            OURS(**keywords)
        gc.collect()
        assert threading.active_count() == threads
        assert process.num_fds() == descriptors


# --- the same calls, and the table of those with another outcome ----------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
Differences = dict[str, tuple[str, str]]


def table() -> Differences:
    """Case → what came of it there, and here."""
    rows = {}
    section = PAGE.read_text(encoding="utf-8").partition("## The same calls")[2]
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            calls, theirs, ours, _ = line.strip("| ").split(" | ")
            for case in re.findall(r"`([^`]+)`", calls):
                assert case not in rows, f"{case} has two rows"
                rows[case] = (theirs, ours)
    return rows


def differences(pairs: Iterable[tuple[str, Outcome, Outcome]]) -> Differences:
    return {
        case: (str(theirs), str(ours)) for case, theirs, ours in pairs if not ours.same_as(theirs)
    }


def rows(of: Iterable[str]) -> Differences:
    """The rows of these cases."""
    listed = table()
    return {case: listed[case] for case in of if case in listed}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    topics = {"t": 3, "forbidden": 1, "invalid": 1}
    with MockCluster(3, topics=topics) as mock:
        mock.faults.append(Error(29, api=surface.METADATA, topic="forbidden"))
        mock.faults.append(Error(17, api=surface.METADATA, topic="invalid"))
        yield mock


@pytest.mark.filterwarnings("ignore:.*does not implement kafka:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # theirs, where it raises
class TestTheSameCalls:
    @pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    )  # theirs' __del__
    def test_building_one(self) -> None:
        cases = surface.cases(surface.BUILT)
        named = [f"K({case})" for case in cases]
        both = zip(named, map(THEIR_KIND.built, cases), map(OUR_KIND.built, cases), strict=True)
        assert differences(both) == rows(named)
        gc.collect()  # here, where the warnings are known

    def test_using_one(self, cluster: MockCluster) -> None:
        theirs = dict(THEIR_KIND.called(cluster.bootstrap_servers))
        ours = dict(OUR_KIND.called(cluster.bootstrap_servers))
        both = ((case, theirs[case], ours[case]) for case in theirs)
        assert differences(both) == rows(theirs)

    @pytest.mark.parametrize("code", surface.REFUSED)
    def test_an_error_of_the_broker(self, cluster: MockCluster, code: int) -> None:
        theirs, ours = THEIR_KIND.refused(cluster, code), OUR_KIND.refused(cluster, code)
        assert ours.same_as(theirs), (theirs, ours)
        assert theirs.moment == "its future fails:"

    def test_after_an_error_of_the_broker(self, cluster: MockCluster) -> None:
        theirs, ours = (kind.after_a_refusal(cluster) for kind in (THEIR_KIND, OUR_KIND))
        both = [(surface.AFTER, theirs, ours)]
        assert differences(both) == rows([surface.AFTER])
        assert table()[surface.AFTER]

    @pytest.mark.timed
    def test_brokers_that_are_silent(self) -> None:
        theirs, ours = THEIR_KIND.all_lost(), OUR_KIND.all_lost()
        both = ((case, theirs[case], ours[case]) for case in theirs)
        assert differences(both) == rows(theirs)

    def test_every_row_is_a_case_that_is_tried(self) -> None:
        built = {f"K({case})" for case in surface.cases(surface.BUILT)}
        tried = built | {*surface.cases(surface.CALLED), *surface.cases(surface.LOST)}
        tried.add(surface.AFTER)
        assert table().keys() <= tried
        assert len(table()) > 30

    def test_every_public_name_of_an_object(self, cluster: MockCluster) -> None:
        page = PAGE.read_text(encoding="utf-8")
        servers = cluster.bootstrap_servers
        with THEIRS(bootstrap_servers=servers) as theirs, OURS(bootstrap_servers=servers) as ours:
            futures = theirs.send("t", b"v"), ours.send("t", b"v")
            found = futures[0].get(10), futures[1].get(10)
            for expected, got in ((theirs, ours), futures, found):
                theirs_has, ours_has = surface.members(expected), surface.members(got)
                assert {n: ours_has.get(n) for n in theirs_has} == theirs_has
                for name in set(ours_has) - set(theirs_has) - {"metadata"}:  # for callbacks only
                    assert f".{name}" in page, f"{name} is new: name it in {PAGE.name}"
        assert type(found[0]) is type(found[1])


# What shows a row of the table of behaviour: how the row begins → the test.
SHOWN = {
    "many records": "facade/test_send_many.py::test_it_costs_a_fraction_of_as_many_sends",
    "the constructor waits": "facade/test_end_to_end.py::"
    "test_constructor_returns_at_once_and_send_names_the_addresses",
    "memory is not bounded": "facade/test_memory.py::test_growth_is_bounded_and_send_blocks",
    "`retries` counts everything": "sim/test_recovery.py::"
    "test_a_refusal_after_the_new_leader_is_known_costs_no_back_off",
    "one record that a broker": "facade/test_parity.py::test_after_an_error_of_the_broker",
    "a partition unavailable": "sim/test_room.py::test_the_room_of_what_expired_comes_back",
    "`flush(timeout)` counts": "facade/test_end_to_end.py::test_one_deadline_for_all_of_flush",
    "`close(timeout)` may": "facade/test_parity.py::test_brokers_that_are_silent",
    "`flush()` or `close()` in": "facade/test_end_to_end.py::"
    "test_flush_raises_and_close_goes_on_elsewhere",
    "a forked child": "net/test_fork.py::test_parent_and_child_each_go_on",
    "a call in a signal handler": "lifecycle/test_signals.py::"
    "test_a_handler_may_close_or_flush_at_any_step",
    "at exit each": "lifecycle/test_exit.py::test_several_producers_share_the_second",
    "`await future`": "lifecycle/test_asyncio.py::test_its_metadata_or_its_error",
    "values such as": "facade/test_parity.py::test_building_one",
    "`allow_auto_create": "facade/test_keywords.py::test_allow_auto_create_topics",
    "a failed future": "facade/test_errors.py::test_error_codes_give_kafka_pythons_class",
    "without a key": "engine/test_partitioner.py",
    "one connection to each": "sim/test_lanes.py::"
    "test_open_lanes_are_given_up_once_and_only_where_a_follower_died",
    "`bootstrap_connected()`": "facade/test_parity.py::test_using_one",
    "a broker that says": "sim/test_leader_failures.py::"
    "test_a_new_leader_at_once_costs_the_silence_time_out_and_a_little",
    "of its figures": "facade/test_figures.py::TestTrue",
    "one failed SASL": "real/test_security.py::test_a_wrong_scram_password_is_told_and_mended",
    "token providers": "net/test_logins.py::"
    "test_a_mechanism_that_waits_holds_up_no_other_connection",
    "SCRAM user": "real/test_security.py::"
    "test_a_user_name_with_characters_that_mean_something_to_scram",
    "DEBUG lines": "net/test_logins.py::test_no_debug_line_shows_what_is_sent",
    "an encrypted key": "net/test_tls_files.py::"
    "test_an_encrypted_key_needs_its_password_and_the_terminal_is_not_asked",
    "user and password": "net/test_proxies.py::test_the_proxy_looks_the_name_up",
    "brokers older": "facade/test_keywords.py::test_api_version_bounds_the_version_of_each_request",
}


class TestBehaviourTable:
    def rows(self) -> list[str]:
        section = (
            PAGE.read_text(encoding="utf-8").partition("## Behaviour")[2].partition("\n## ")[0]
        )
        return re.findall(r"^\| (?!kafka-python|---)(.*)", section, re.MULTILINE)

    def test_each_row_is_shown_by_a_test_and_each_test_shows_a_row(self) -> None:
        for row in self.rows():
            assert any(row.startswith(begin) for begin in SHOWN), f"no test in SHOWN for: {row}"
        for begin in SHOWN:
            assert any(row.startswith(begin) for row in self.rows()), f"no row begins: {begin}"

    @pytest.mark.parametrize("begin", SHOWN)
    def test_the_test_is_there(self, begin: str) -> None:
        path, _, name = SHOWN[begin].partition("::")
        text = (PAGE.parents[1] / "tests" / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^ *(class|def) {name}\b", text, re.MULTILINE)


class TestSettingsTable:
    def test_has_every_keyword_that_differs_and_no_other(self) -> None:
        section = PAGE.read_text(encoding="utf-8").partition("## Settings")[2]
        listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        theirs, ours = THEIRS.DEFAULT_CONFIG, OURS.DEFAULT_CONFIG
        new = set(ours) - set(theirs)
        changed = {name for name in theirs if repr(ours[name]) != repr(theirs[name])}
        changed.discard("partitioner")  # an instance of the same class
        in_part = {"retries", "bootstrap_timeout_ms", "kafka_client"}  # see their tests
        assert sorted(listed) == sorted(new | changed | in_part)
        assert changed == {"reconnect_backoff_max_ms"}
