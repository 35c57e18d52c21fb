"""Rules about loss: does an acknowledged record survive?"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.cli.check_findings import Finding, Known, Section, Severity, by_topic, ok, rule, unread
from outlast.cli.check_view import Topic

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@rule(
    Section.LOSS,
    "Is a record on several brokers before it counts as written?",
    ERROR,
    why="With acks=1 a leader acknowledges what only it has: when it dies or is paused past an "
    "election, acknowledged records are gone. With acks=0 not even a refusal is noticed.",
    facts="S17",
)
def acks(known: Known) -> Iterator[Finding]:
    """acks."""
    acks = known.producer.settings.acks
    if acks == -1:
        yield ok("acks=all: every in-sync replica has a record before it counts as written")
    elif acks == 1:
        said = "acks=1: a record counts as written when one broker has it"
        reason = (
            "When that broker dies, or is paused past an election, acknowledged records are gone."
        )
        yield Finding(ERROR, said, "acks=all", reason)
    else:
        said = "acks=0: nobody says whether a record was written"
        yield Finding(ERROR, said, "acks=all", "Not even a refusal is noticed.")


@rule(
    Section.LOSS,
    "Are retries recognised, so that they neither double nor reorder records?",
    WARNING,
    why="Without idempotence a broker cannot tell a retry from a new record; nor may a partition "
    "that is stuck have a connection of its own, so the others wait with it.",
)
def idempotence(known: Known) -> Iterator[Finding]:
    """enable_idempotence, as it came out of all settings."""
    settings = known.producer.settings
    if settings.idempotent:
        yield ok("idempotence is on: retries neither double nor reorder records")
        return
    said = "idempotence is off: a retry may write a record twice"
    if settings.max_in_flight > 1:
        said += ", or behind a later one"
    advice = "enable_idempotence=True, with acks='all', retries > 0 and at most 5 in flight"
    yield Finding(WARNING, said, advice)


@rule(
    Section.LOSS,
    "Does every partition have three replicas?",
    ERROR,
    WARNING,
    why="With one replica a broker's death takes the partition along, and its disk the records. "
    "With two, acks=all is either refused while one of them is down (min.insync.replicas=2) or "
    "comes down to one copy (1).",
)
def replication(known: Known) -> Iterator[Finding]:
    """The replication factor."""

    def judge(topic: Topic) -> Finding:
        count = topic.replication
        if count >= 3:
            return ok(f"replication factor {count}")
        advice = "replication factor 3"
        if count == 2:
            reason = (
                "While one of them is down, acks=all is either refused (min.insync.replicas=2) or "
                "comes down to one copy (1)."
            )
            return Finding(WARNING, "replication factor 2", advice, reason)
        reason = "Its broker's death takes the partition along, and its disk the records."
        return Finding(ERROR, "one replica only", advice, reason)

    yield from by_topic(known, judge)


@rule(
    Section.LOSS,
    "Does acks=all mean at least two copies, at any time?",
    WARNING,
    why="acks=all waits for the in-sync replicas, and these may have shrunk to the leader alone; "
    "min.insync.replicas is the least that it takes. With 1, a follower's fall and then the "
    "leader's lose acknowledged records.",
)
def min_isr(known: Known) -> Iterator[Finding]:
    """min.insync.replicas against loss; one replica is another rule's matter."""
    if known.producer.settings.acks != -1:
        return

    def judge(topic: Topic) -> Finding | None:
        least = topic.number(MIN_ISR)
        if topic.replication < 2:
            return None
        if least is None:
            return unread(f"{MIN_ISR} could not be read")
        if least >= 2:
            return ok(f"{MIN_ISR}={least}")
        return Finding(WARNING, f"{MIN_ISR}=1", f"{MIN_ISR}=2")

    yield from by_topic(known, judge)


@rule(
    Section.LOSS,
    "May a broker be down without acks=all being refused?",
    ERROR,
    why="With as many in-sync replicas demanded as there are, one broker's stop has every record "
    "refused (NOT_ENOUGH_REPLICAS) until it is back. No clock bounds that: no time-out is long "
    "enough.",
    facts="C14",
)
def spare_replica(known: Known) -> Iterator[Finding]:
    """min.insync.replicas against the replication factor."""
    if known.producer.settings.acks != -1:
        return

    def judge(topic: Topic) -> Finding | None:
        least, count = topic.number(MIN_ISR), topic.replication
        if least is None or least == count == 1:
            return None  # told by other rules
        advice = f"replication factor {least + 1}" if least < 3 else f"{MIN_ISR}=2"
        if least > count:
            return Finding(
                ERROR, f"{MIN_ISR}={least} of {count} replicas: acks=all is always refused", advice
            )
        if least == count:
            return Finding(ERROR, f"{MIN_ISR}={least} of {count} replicas: none to spare", advice)
        spare = count - least
        return ok(f"{spare} of {count} replicas may be down ({MIN_ISR}={least})")

    yield from by_topic(known, judge)


@rule(
    Section.LOSS,
    "May only an in-sync replica become leader?",
    WARNING,
    why="A replica that is behind and becomes leader all the same drops what the old leader had "
    "acknowledged.",
)
def unclean_election(known: Known) -> Iterator[Finding]:
    """unclean.leader.election.enable, of topics; a topic's is the broker's if it has none."""
    brokers = set(known.cluster.texts(UNCLEAN).values())

    def judge(topic: Topic) -> Finding:
        value = topic.configs.get(UNCLEAN) or ("true" if "true" in brokers else None)
        if value is None and not brokers:
            return unread(f"{UNCLEAN} could not be read")
        if value == "true":
            return Finding(WARNING, f"{UNCLEAN}=true", f"{UNCLEAN}=false")
        return ok(f"{UNCLEAN}=false")

    yield from by_topic(known, judge)


@rule(
    Section.LOSS,
    "Do all partitions have a leader and all their replicas in sync, right now?",
    ERROR,
    WARNING,
    why="A check tells what a failure would do to a cluster that is well; this one is in the "
    "middle of one, or has not got over it.",
)
def in_sync(known: Known) -> Iterator[Finding]:
    """What metadata shows at this moment."""

    def judge(topic: Topic) -> Finding:
        least = topic.number(MIN_ISR) or 1
        leaderless = [p for p in topic.partitions if p.leader < 0]
        short = [p for p in topic.partitions if len(p.isr) < len(p.replicas)]
        total = len(topic.partitions)
        if leaderless:
            return Finding(ERROR, f"{len(leaderless)} of {total} partitions have no leader now")
        refused = [p for p in short if len(p.isr) < least]
        if refused and known.producer.settings.acks == -1:
            said = f"{len(refused)} of {total} partitions have too few replicas in sync now"
            return Finding(ERROR, said)
        if short:
            said = f"{len(short)} of {total} partitions have replicas that are not in sync now"
            return Finding(WARNING, said)
        return ok("all replicas are in sync")

    yield from by_topic(known, judge)
