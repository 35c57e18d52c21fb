"""Reads what `outlast check` needs of a cluster, with kafka-python's administrator, and changes
nothing: ApiVersions, Metadata (which may not create topics), DescribeConfigs and DescribeQuorum.

What may not be read, or cannot be by so old a broker, is noted, and the rest is read all the same.
Requests are sent one by one and answers looked at here, since `KafkaAdminClient.describe_configs`
passes over error codes: what is forbidden looks to it like a topic without settings.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import DescribeConfigsRequest, DescribeQuorumRequest
from kafka.protocol.metadata import MetadataRequest

from outlast.checks import parse_bootstrap
from outlast.cli.administrator import NO_ANSWER, LastWords, opened
from outlast.cli.check_view import Address, Broker, Cluster, Partition, Topic, Unread

CONNECT_TIMEOUT_S = 3.0
TOPICS_AT_ONCE = 200
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
UNKNOWN_TOPIC = (3, 17)  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC
QUORUM_TOPIC = "__cluster_metadata"

BROKER_CONFIGS = (
    "advertised.listeners",
    "auto.create.topics.enable",
    "auto.leader.rebalance.enable",
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "controlled.shutdown.enable",
    "controller.quorum.election.backoff.max.ms",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.voters",
    "default.replication.factor",
    "leader.imbalance.check.interval.seconds",
    "listeners",
    "min.insync.replicas",
    "process.roles",
    "replica.fetch.backoff.ms",
    "replica.fetch.wait.max.ms",
    "replica.lag.time.max.ms",
    "unclean.leader.election.enable",
    "zookeeper.session.timeout.ms",
)
TOPIC_CONFIGS = (
    "max.message.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)

CONNECTION = (
    "client_dns_lookup",
    "proxy_url",
    "receive_message_max_bytes",
    "security_protocol",
    "socket_options",
    "socks5_proxy",
)


class UnreachableError(Exception):
    """No broker could be asked; the text is one line that says why."""


def read(values: Mapping[str, Any], topics: Sequence[str] | None, timeout_s: float) -> Cluster:
    """What the cluster is like.

    Args:
        values: the producer's settings; how to connect is among them.
        topics: their names; None: all that are not Kafka's own.
        timeout_s: for the first answer, and for each one after it.

    Raises:
        UnreachableError: no broker answers, or none lets us in.
    """
    addresses = _try_each(values, min(timeout_s, CONNECT_TIMEOUT_S))
    ways = [address.name for address in addresses if not address.refused]
    if not addresses:
        ways = [values["bootstrap_servers"]]
    silent: dict[str, str] = {}
    for way in ways:  # one by one: a silent one may not use up the others' time
        told = tuple(
            replace(address, refused=silent.get(address.name, address.refused))
            for address in addresses
        )
        cluster, why = _read_by(values, way, topics, told, timeout_s)
        if cluster is not None:
            return cluster
        silent[str(way)] = why
    silent |= {address.name: address.refused for address in addresses if address.refused}
    raise UnreachableError(f"no broker can be reached ({_together(silent)})")


def _together(silent: Mapping[str, str]) -> str:
    """Addresses with the same reason are told together."""
    ways: dict[str, list[str]] = {}
    for way, why in silent.items():
        ways.setdefault(why, []).append(way)
    return "; ".join(f"{', '.join(named)}: {why}" for why, named in ways.items())


def _read_by(
    values: Mapping[str, Any],
    way: Any,
    topics: Sequence[str] | None,
    addresses: tuple[Address, ...],
    timeout_s: float,
) -> tuple[Cluster | None, str]:
    """The cluster behind a bootstrap address, or None and why there is none."""
    try:
        with _administrator(values, way, timeout_s) as admin:
            return _Reader(admin, timeout_s).read(topics, addresses), ""
    except UnreachableError as error:
        return None, str(error)


def _try_each(values: Mapping[str, Any], timeout_s: float) -> tuple[Address, ...]:
    """Whether each bootstrap address takes a connection. Behind a proxy we cannot know."""
    if values["proxy_url"] or values["socks5_proxy"]:
        return ()
    return tuple(
        _try(host, port, timeout_s)
        for host, port in dict.fromkeys(parse_bootstrap(values["bootstrap_servers"]))
    )


def _try(host: str, port: int, timeout_s: float) -> Address:
    name, refused = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", ""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Address(name, 1, f"the name is not known ({error.strerror or error})")
    hosts = [str(entry[4][0]) for entry in found]
    here = set(hosts) <= {"127.0.0.1", "::1"}  # both are this machine
    for where in hosts:
        refused = _refused(where, port, timeout_s)
        if not refused:
            return Address(name, 1 if here else len(set(hosts)))
    return Address(name, 1, refused)


def _refused(host: str, port: int, timeout_s: float) -> str:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except TimeoutError:
        return f"no answer in {timeout_s:g} s"
    except OSError as error:
        return str(error.strerror or error).lower()
    return ""


@contextlib.contextmanager
def _administrator(
    values: Mapping[str, Any], bootstrap_servers: Any, timeout_s: float
) -> Iterator[KafkaAdminClient]:
    """Raises UnreachableError, also for what is raised inside."""
    wanted = {
        name: value
        for name, value in values.items()
        if name in KafkaAdminClient.DEFAULT_CONFIG
        and (name in CONNECTION or name.startswith(("ssl_", "sasl_")))
    }
    timeout_ms = int(timeout_s * 1000)
    heard = LastWords()
    configs = {
        **wanted,
        "bootstrap_servers": bootstrap_servers,
        "client_id": "outlast-check",
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
    }
    try:
        with opened(heard, configs) as admin:
            yield admin
    except kafka_errors.KafkaError as error:
        raise UnreachableError(heard.reason or _said(error)) from error


class _Reader:
    """Asks one cluster, and keeps a list of what could not be read."""

    def __init__(self, admin: KafkaAdminClient, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._unread: list[Unread] = []
        self._deaf: dict[int, str] = {}  # nodes that did not answer, and why

    def read(self, names: Sequence[str] | None, addresses: tuple[Address, ...]) -> Cluster:
        """Everything."""
        wanted = None if names is None else list(dict.fromkeys(names))
        silent = {address.name: address.refused for address in addresses if address.refused}
        for broker in self._admin._manager.cluster.brokers():
            where = f"{broker.host}:{broker.port}"
            if where in silent:
                self._deaf[broker.node_id] = silent[where]
        metadata = self._metadata(wanted)
        topics = [topic for topic in metadata.topics if not (wanted is None and topic.is_internal)]
        missing = [topic.name for topic in topics if topic.error_code in UNKNOWN_TOPIC]
        readable = [topic for topic in topics if self._readable(topic)]
        configs = self._topic_configs([topic.name for topic in readable])
        brokers = tuple(self._broker(told) for told in metadata.brokers)
        voters, controller = self._quorum(brokers)
        return Cluster(
            cluster_id=metadata.cluster_id,
            brokers=brokers,
            topics=tuple(_topic(topic, configs.get(topic.name, {})) for topic in readable),
            missing_topics=tuple(missing),
            voters=voters,
            controller=controller,
            addresses=addresses,
            unread=tuple(self._unread),
        )

    def _ask(self, make: Callable[[], Any], node_id: int | None = None) -> Any:
        """The answer to a request, of that node or of any."""
        if node_id is not None:
            return self._send(make(), node_id)
        brokers = self._admin._manager.cluster.brokers()
        nodes = sorted({broker.node_id for broker in brokers} - set(self._deaf))
        for any_id in nodes[:-1]:
            answer, error = self._try(make(), any_id)
            if error is None:
                return answer
            self._deaf[any_id] = _said(error)
        return self._send(make(), nodes[-1] if nodes else None)

    def _try(self, request: Any, node_id: int) -> tuple[Any, Exception | None]:
        try:
            return self._send(request, node_id), None
        except (kafka_errors.RetriableError, OSError) as error:
            return None, error

    def _send(self, request: Any, node_id: int | None) -> Any:
        """The administrator has no public way to send a request, nor one that keeps to a time."""
        manager = self._admin._manager

        async def answer() -> Any:
            sent = manager.send(request, node_id)
            return await manager.wait_for(sent, self._timeout_s * 1000)

        return manager.run(answer)

    def _metadata(self, names: list[str] | None) -> Any:
        topic = MetadataRequest.MetadataRequestTopic
        return self._ask(
            lambda: MetadataRequest(
                topics=None if names is None else [topic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
        )

    def _readable(self, topic: Any) -> bool:
        if topic.error_code and topic.error_code not in UNKNOWN_TOPIC:
            self._note(f"topic {topic.name}", kafka_errors.for_code(topic.error_code)())
        return bool(topic.partitions)

    def _topic_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(names), TOPICS_AT_ONCE):
            chunk = names[start : start + TOPICS_AT_ONCE]
            try:
                results = self._describe(TOPIC_RESOURCE, chunk, TOPIC_CONFIGS)
            except kafka_errors.KafkaError as error:
                self._note("settings of topics", error)
                continue
            for result in results:
                if result.error_code:
                    why = kafka_errors.for_code(result.error_code)(result.error_message)
                    self._note(f"settings of topic {result.resource_name}", why)
                else:
                    found[result.resource_name] = _values(result)
        return found

    def _broker(self, told: Any) -> Broker:
        broker = {"node_id": told.node_id, "host": told.host, "port": told.port, "rack": told.rack}
        what = f"settings of broker {told.node_id}"
        if told.node_id in self._deaf:
            self._unread.append(Unread(what, self._deaf[told.node_id]))
            return Broker(**broker, unreachable=self._deaf[told.node_id])
        try:
            (result,) = self._describe(
                BROKER_RESOURCE, [str(told.node_id)], BROKER_CONFIGS, told.node_id
            )
        except (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError) as e:
            self._note(what, e)
            return Broker(**broker)
        except (kafka_errors.KafkaError, OSError) as error:
            self._note(what, error)
            return Broker(**broker, unreachable=_said(error))
        if result.error_code:
            self._note(what, kafka_errors.for_code(result.error_code)(result.error_message))
            return Broker(**broker)
        return Broker(**broker, configs=_values(result))

    def _describe(
        self, kind: int, names: list[str], keys: Sequence[str], node_id: int | None = None
    ) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource(resource_type=kind, resource_name=name, configuration_keys=list(keys))
            for name in names
        ]
        return self._ask(lambda: DescribeConfigsRequest(resources=resources), node_id).results

    def _quorum(self, brokers: tuple[Broker, ...]) -> tuple[tuple[int, ...] | None, int | None]:
        """Voters and the active controller, of a cluster that has a KRaft quorum."""
        configured = _voters(brokers)
        told = [broker.configs for broker in brokers if broker.configs]
        if told and not configured and not any(configs.get("process.roles") for configs in told):
            return None, None  # ZooKeeper
        topic = DescribeQuorumRequest.TopicData
        question = topic(
            topic_name=QUORUM_TOPIC, partitions=[topic.PartitionData(partition_index=0)]
        )
        try:
            answer = self._ask(lambda: DescribeQuorumRequest(topics=[question]))
            _raise(answer.error_code, answer.error_message if answer.API_VERSION >= 2 else None)
            ((partition,),) = [topic.partitions for topic in answer.topics]
            _raise(partition.error_code, None)
        except (kafka_errors.KafkaError, ValueError) as error:
            self._note("the controllers' quorum", error)
            return configured or None, None
        voters = tuple(sorted(voter.replica_id for voter in partition.current_voters))
        return voters, partition.leader_id

    def _note(self, what: str, error: BaseException) -> None:
        self._unread.append(Unread(what, _said(error)))


def _raise(code: int, message: str | None) -> None:
    if code:
        raise kafka_errors.for_code(code)(message)


def _values(result: Any) -> dict[str, str]:
    return {config.name: config.value for config in result.configs if config.value is not None}


def _voters(brokers: tuple[Broker, ...]) -> tuple[int, ...]:
    for broker in brokers:
        text = broker.configs.get("controller.quorum.voters", "")
        nodes = [entry.partition("@")[0] for entry in text.split(",")]
        if all(node.isdecimal() for node in nodes):
            return tuple(sorted(map(int, nodes)))
    return ()


def _topic(told: Any, configs: dict[str, str]) -> Topic:
    partitions = sorted(told.partitions, key=lambda partition: partition.partition_index)
    return Topic(
        name=told.name,
        configs=configs,
        partitions=tuple(
            Partition(
                leader=partition.leader_id,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
            )
            for partition in partitions
        ),
    )


def _said(error: BaseException) -> str:
    """An error in a reader's words."""
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not authorized ({type(error).__name__.removesuffix('Error')})"
    old = (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError)
    if isinstance(error, old):
        return "the broker is too old for the question"
    if isinstance(error, (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)):
        return NO_ANSWER
    text = str(error).rpartition("Error: ")[2]
    number, _, name = text.partition(" ")  # kafka-python's: 111 ECONNREFUSED
    if number.isdecimal() and name in errno.errorcode.values():
        return os.strerror(int(number)).lower()
    return text or type(error).__name__
