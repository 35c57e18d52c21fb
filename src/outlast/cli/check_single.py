"""Rules about single points: what is there only once? And some beside, of other surprises."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from outlast.cli.check_findings import (
    Finding,
    Known,
    Section,
    Severity,
    by_topic,
    ok,
    rule,
    some,
    unread,
)
from outlast.cli.check_view import Broker, Topic

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@rule(
    Section.SINGLE,
    "Is there more than one address to begin with?",
    WARNING,
    why="A producer that starts while that one broker is down finds no cluster; nor does one that "
    "runs and has lost all others (the addresses are then looked up again).",
)
def bootstrap(known: Known) -> Iterator[Finding]:
    """bootstrap_servers: how many, and who of them answers."""
    addresses = known.cluster.addresses
    for address in addresses:
        if address.refused:
            said = f"bootstrap address {address.name} does not answer: {address.refused}"
            yield Finding(WARNING, said, "the address of a broker that is there")
    hosts = sum(address.hosts for address in addresses)
    if not addresses:
        return
    others = [f"{broker.host}:{broker.port}" for broker in known.cluster.brokers]
    if hosts == 1 and len(others) > 1:
        said = f"one bootstrap address, {addresses[0].name}, of a cluster of {len(others)} brokers"
        yield Finding(WARNING, said, f"bootstrap_servers={','.join(sorted(others)[:3])}")
    else:
        yield ok(f"{hosts} bootstrap addresses" if hosts > 1 else "the only broker is named")


@rule(
    Section.SINGLE,
    "Is there more than one broker?",
    ERROR,
    WARNING,
    why="With one, its restart is everybody's outage. With two, a partition cannot have three "
    "replicas: either writes stop with one of them, or one copy must do.",
)
def brokers(known: Known) -> Iterator[Finding]:
    """How many brokers are listed."""
    count = len(known.cluster.brokers)
    if count >= 3:
        yield ok(f"{count} brokers")
    elif count == 2:
        yield Finding(WARNING, "two brokers", "three brokers")
    else:
        yield Finding(ERROR, "one broker only", "three brokers")


@rule(
    Section.SINGLE,
    "Can the controllers elect after one of them is gone?",
    ERROR,
    NOTE,
    why="Without a majority of its controllers a KRaft cluster decides nothing: no leader is "
    "elected, no replica leaves the ISR, until one is back.",
)
def controllers(known: Known) -> Iterator[Finding]:
    """Voters of the KRaft quorum."""
    cluster = known.cluster
    if cluster.kraft is False:
        said = "controllers are elected by ZooKeeper, which is not looked at here"
        yield Finding(NOTE, said, reason="Three ZooKeeper nodes or more let one of them be down.")
        return
    if cluster.voters is None:
        yield unread("the controllers' quorum could not be read")
        return
    count = len(cluster.voters)
    if count < 3:
        said = f"{count} {'controllers' if count > 1 else 'controller'}: none may be down"
        yield Finding(ERROR, said, "three controllers")
    elif count % 2 == 0:
        said = f"{count} controllers: no more may be down than of {count - 1}"
        yield Finding(NOTE, said, f"{count - 1} or {count + 1} controllers")
    else:
        where = "apart from the brokers" if cluster.controllers_apart else "on brokers"
        yield ok(f"{count} controllers, {where}: {(count - 1) // 2} may be down")


@rule(
    Section.SINGLE,
    "Are a topic's leaders on more than one broker?",
    WARNING,
    why="Where one broker leads every partition, its failure stops all writes to the topic at "
    "once, and it alone has all the load.",
)
def leaders(known: Known) -> Iterator[Finding]:
    """Who leads, by topic."""
    if len(known.cluster.brokers) < 2:
        return

    def judge(topic: Topic) -> Finding | None:
        led = {partition.leader for partition in topic.partitions if partition.leader >= 0}
        if len(topic.partitions) < 2 or not led:
            return None
        if len(led) > 1:
            return ok("leaders are on several brokers")
        said = f"node {min(led)} leads every partition"
        return Finding(WARNING, said, "a preferred leader election, or other replicas first")

    yield from by_topic(known, judge)


@rule(
    Section.SINGLE,
    "Are a partition's replicas in more than one rack?",
    WARNING,
    why="Brokers tell their racks here; where all replicas of a partition are in one, that rack's "
    "failure takes them all.",
)
def racks(known: Known) -> Iterator[Finding]:
    """broker.rack, where there are several."""
    rack_of = {broker.node_id: broker.rack for broker in known.cluster.brokers}
    if len(set(rack_of.values()) - {None}) < 2:
        return

    def judge(topic: Topic) -> Finding | None:
        if topic.replication < 2:
            return None
        for partition in topic.partitions:
            found = {rack_of.get(node) for node in partition.replicas}
            if len(found) == 1 and None not in found:
                said = "all replicas of a partition are in one rack"
                return Finding(WARNING, said, "replicas spread over racks")
        return ok("replicas are in more than one rack")

    yield from by_topic(known, judge)


@rule(
    Section.SINGLE,
    "Can every broker be reached where it tells clients to go?",
    ERROR,
    WARNING,
    why="Clients connect to a broker's advertised listener, not to where they asked first. One "
    "that cannot be reached from here leads partitions that nobody here can write to.",
)
def listeners(known: Known) -> Iterator[Finding]:
    """Advertised listeners, as metadata names them."""
    cluster = known.cluster
    there = [broker for broker in cluster.brokers if not broker.unreachable]
    remote = [a.name for a in cluster.addresses if not a.refused and not _loops(a.name)]
    for broker in cluster.brokers:
        where = f"node {broker.node_id} at {_address(broker)}"
        if broker.unreachable:
            said = f"{where} does not answer: {broker.unreachable}"
            yield Finding(ERROR, said, "have it up, and at an address that clients can reach")
        elif remote and _loops(broker.host):
            said = f"{where}: that is this machine, and {remote[0]} is another"
            yield Finding(WARNING, said, "advertised.listeners that clients can reach")
    if len(there) == len(cluster.brokers):
        yield ok(f"all brokers answer at {some(tuple(map(_address, there)))}")


@rule(
    Section.BESIDE,
    "Do the topics that were named exist?",
    ERROR,
    why="A topic that is not there, or that we may not see, takes no records.",
)
def topics(known: Known) -> Iterator[Finding]:
    """Those that were asked for."""
    if known.cluster.missing_topics:
        said = f"no such topic, or not for us to see: {some(known.cluster.missing_topics)}"
        yield Finding(ERROR, said, topics=known.cluster.missing_topics)
    elif not known.cluster.topics:
        yield unread("there are no topics that we may see")


@rule(
    Section.BESIDE,
    "Does a typing error in a topic's name create a topic?",
    NOTE,
    why="A topic that is created by being asked for has the brokers' defaults: "
    "num.partitions and default.replication.factor.",
)
def auto_create(known: Known) -> Iterator[Finding]:
    """auto.create.topics.enable and the replicas that such a topic gets."""
    cluster = known.cluster
    wanted = known.producer.values["allow_auto_create_topics"]
    told = cluster.texts("auto.create.topics.enable").values()
    if not wanted or "true" not in told:
        return
    said, advice = "topics are created by being asked for", "auto.create.topics.enable=false"
    replicas = min(cluster.numbers("default.replication.factor").values(), default=None)
    if replicas is not None:
        said += f", with {replicas} replica{'s' if replicas > 1 else ''}"
        advice += ", or default.replication.factor=3" if replicas < 3 else ""
    yield Finding(NOTE, said, advice)


@rule(
    Section.BESIDE,
    "Does the broker take every record that the producer takes?",
    NOTE,
    why="Records above max.message.bytes pass send() and are refused by the broker "
    "(MESSAGE_TOO_LARGE).",
)
def record_size(known: Known) -> Iterator[Finding]:
    """max_request_size against max.message.bytes."""
    ours = known.producer.settings.max_request_bytes

    def judge(topic: Topic) -> Finding | None:
        limit = topic.number("max.message.bytes")
        if limit is None or limit >= ours:
            return None
        said = f"max_request_size={ours} lets records pass that max.message.bytes={limit} refuses"
        return Finding(NOTE, said, f"max_request_size={limit}")

    yield from by_topic(known, judge)


def _address(broker: Broker) -> str:
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"


def _loops(address: str) -> bool:
    """Whether an address, with or without its port, is this machine's own."""
    host = address.rpartition(":")[0] if address.count(":") == 1 else address
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
