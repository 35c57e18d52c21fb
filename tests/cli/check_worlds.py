"""A cluster and a producer that are well, as data, to be spoilt in one place at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlast.cli.check_findings import Finding, Known
from outlast.cli.check_model import worst_gaps
from outlast.cli.check_rules import RULES
from outlast.cli.check_settings import gather
from outlast.cli.check_view import Address, Broker, Cluster, Partition, Producer, Rate, Topic

DEFAULTS = {  # of a real broker, 4.1.1, except where good advice says otherwise
    "process.roles": "broker,controller",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "500",
    "replica.lag.time.max.ms": "30000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "300",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    "default.replication.factor": "3",
}
TOPIC_DEFAULTS = {
    "min.insync.replicas": "2",
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}


def broker(node_id: int, configs: Mapping[str, str] | None = None, **changed: Any) -> Broker:
    """One at an address that others reach; `configs` on top of the defaults."""
    address = {"host": f"broker-{node_id}", "port": 9092, **changed}
    return Broker(node_id=node_id, configs={**DEFAULTS, **(configs or {})}, **address)


def topic(
    name: str = "orders",
    *replicas: tuple[int, ...],
    leaders: tuple[int, ...] | None = None,
    isr: tuple[int, ...] | None = None,
    **configs: str,
) -> Topic:
    """Partitions with these replicas, led by the first; `configs` with _ for each dot."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    replicas = replicas or ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    led = leaders or tuple(nodes[0] for nodes in replicas)
    return Topic(
        name=name,
        partitions=tuple(
            Partition(leader=leader, replicas=nodes, isr=nodes if isr is None else isr)
            for nodes, leader in zip(replicas, led, strict=True)
        ),
        configs={**TOPIC_DEFAULTS, **named},
    )


def cluster(configs: Mapping[str, str] | None = None, *, nodes: int = 3, **changed: Any) -> Cluster:
    """`nodes` brokers that are controllers too; `configs` on each of them."""
    well = Cluster(
        cluster_id="well",
        brokers=tuple(broker(node, configs) for node in range(1, nodes + 1)),
        topics=(topic(),),
        voters=tuple(range(1, nodes + 1)),
        controller=1,
        addresses=(Address("broker-1:9092", 1), Address("broker-2:9092", 1)),
    )
    return replace(well, **changed)


def producer(*keywords: str) -> Producer:
    """One with these settings, NAME=VALUE."""
    return gather(keywords=keywords)


def known(
    seen: Cluster | None = None, *keywords: str, rate: Rate | None = None, **changed: Any
) -> Known:
    """What rules look at."""
    seen, ours = cluster() if seen is None else seen, producer(*keywords)
    worst = worst_gaps(seen, ours.settings)
    return Known(cluster=seen, producer=ours, worst=worst, rate=rate, **changed)


def ask(name: str, about: Known) -> list[Finding]:
    """What the rule of this name finds."""
    (rule,) = [rule for rule in RULES if rule.name == name]
    return list(rule.findings(about))


def severities(name: str, about: Known) -> list[str]:
    """How bad each of these findings is."""
    return [finding.severity.value for finding in ask(name, about)]
