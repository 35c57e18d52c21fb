"""Threads that wait in `send()` and the like: what for, for how long, and who gives up."""

from __future__ import annotations

import pytest
from kafka.errors import MessageSizeTooLargeError
from kafka.protocol.producer import ProduceResponse

from outlast.engine.batch import Batch
from outlast.engine.intake import Waiting
from tests.engine.talk import METADATA, Talk, Topics, outcome, through_bytes, told
from tests.engine.test_metadata import answer, topic

FORBIDDEN, UNKNOWN_TOPIC = 29, 3
LARGE = b"v" * 1000


def both(t: object, u: object) -> object:
    """A Produce answer about two topics with one partition each."""
    topics = [Topics(name=n, partition_responses=[p]) for n, p in (("t", t), ("u", u))]
    return through_bytes(ProduceResponse(responses=topics), 9)


def waits(taken: object, reason: str) -> Waiting:
    assert isinstance(taken, Waiting)
    assert taken.reason == reason
    return taken


class TestMetadata:
    def test_all_who_wait_for_a_topic_are_told_once_it_is_known(self) -> None:
        talk = Talk(keep={METADATA})
        first = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        second = waits(talk.sender.append("t", 0, None, b"v", (), 0, talk.now), "metadata")
        talk.pass_time()
        talk.answers(METADATA)
        assert talk.granted == [first.ticket, second.ticket]
        assert talk.sender.partitions_for("t", talk.now, first.ticket) == {0}
        assert talk.sender.available_partitions("t") == (0,)
        assert talk.sender.available_partitions("another") == ()

    def test_who_gives_up_is_not_told(self) -> None:
        talk = Talk(keep={METADATA})
        first = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        second = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        third = waits(talk.sender.partitions_for("u", talk.now), "metadata")
        talk.pass_time()
        assert talk.sender.cancel_wait(first.ticket, talk.now) == 0
        talk.sender.forget(third.ticket)
        talk.answers(METADATA)
        assert talk.granted == [second.ticket]

    def test_tickets_whose_threads_are_gone_are_forgotten(self) -> None:
        talk = Talk(keep={METADATA})
        first = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        second = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        talk.sender.keep_waiting([second.ticket])
        talk.sender.forget(-1)  # where there are no transactions nobody has such a one
        talk.pass_time()
        talk.answers(METADATA)
        assert talk.granted == [second.ticket]
        assert first.ticket != second.ticket

    def test_a_topic_that_is_forbidden_is_told_at_once(self) -> None:
        talk = Talk(keep={METADATA})
        waiting = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        talk.pass_time()
        talk.answer(talk.next_asked(METADATA), answer(topic("t", error=FORBIDDEN)))
        assert talk.granted == [waiting.ticket]
        refused = waits(talk.sender.partitions_for("t", talk.now, waiting.ticket), "metadata")
        assert (refused.final, refused.error) == (True, FORBIDDEN)

    def test_one_that_is_not_there_is_waited_for_and_the_error_told(self) -> None:
        talk = Talk(keep={METADATA})
        waits(talk.sender.partitions_for("t", talk.now), "metadata")
        talk.pass_time()
        talk.answer(talk.next_asked(METADATA), answer(topic("t", error=UNKNOWN_TOPIC)))
        assert talk.granted == []
        again = waits(talk.sender.partitions_for("t", talk.now), "metadata")
        assert (again.final, again.error) == (False, UNKNOWN_TOPIC)

    def test_a_partition_that_is_unknown_after_a_fresh_look_is_refused(self) -> None:
        talk = Talk()
        talk.batch()
        talk.produced(told(offset=0))
        waiting = talk.sender.append("t", 7, None, b"v", (), 0, talk.now)
        ticket = waits(waiting, "metadata").ticket
        talk.pass_time(1.0)
        assert ticket in talk.granted
        with pytest.raises(ValueError, match="Unrecognized partition: 7 of topic 't'"):
            talk.sender.append("t", 7, None, b"v", (), 0, talk.now, ticket)

    def test_a_refusal_that_comes_late_wakes_nobody_who_asked_after_it(self) -> None:
        """They ask for a partition that the answer on its way cannot know."""
        talk = Talk()
        talk.batch()
        talk.produced(told(offset=0))
        talk.keep.add(METADATA)
        first = waits(talk.sender.append("t", 7, None, b"v", (), 0, talk.now), "metadata")
        talk.pass_time(1.0)
        second = waits(talk.sender.append("t", 7, None, b"v", (), 0, talk.now), "metadata")
        talk.answers(METADATA)
        assert first.ticket in talk.granted
        assert second.ticket not in talk.granted


class TestRoom:
    def full(self, **more: object) -> tuple[Talk, Batch]:
        """A buffer of 4000 bytes with a batch of 3 large records."""
        talk = Talk(buffer_bytes=4500, batch_bytes=3200, **more)
        taken = [talk.send(value=LARGE) for _ in range(3)]
        assert isinstance(taken[0], Batch)
        talk.pass_time()
        return talk, taken[0]

    def test_who_waits_gets_what_is_given_back(self) -> None:
        talk, _ = self.full()
        waiting = waits(talk.send(value=LARGE), "memory")
        talk.produced(told(offset=0))
        assert waiting.ticket in talk.granted
        taken = talk.sender.append("t", 0, None, LARGE, (), 0, talk.now, waiting.ticket)
        assert isinstance(taken, Batch)

    def test_what_was_set_aside_for_one_that_gives_up_goes_to_the_next(self) -> None:
        talk, _ = self.full()
        first = waits(talk.send(value=LARGE * 3), "memory")
        second = waits(talk.send(value=LARGE * 3), "memory")
        talk.produced(told(offset=0))
        assert first.ticket in talk.granted
        assert second.ticket not in talk.granted
        talk.sender.cancel_wait(first.ticket, talk.now)
        talk.pass_time()
        assert second.ticket in talk.granted

    def test_threads_that_are_gone_keep_no_room(self) -> None:
        talk, _ = self.full()
        first = waits(talk.send(value=LARGE * 3), "memory")
        second = waits(talk.send(value=LARGE * 3), "memory")
        talk.produced(told(offset=0))
        talk.sender.keep_waiting([second.ticket])
        talk.pass_time()
        assert second.ticket in talk.granted
        assert first.ticket != second.ticket

    def test_a_send_that_is_given_up_in_a_gap_is_counted_by_it(self) -> None:
        talk, _ = self.full()
        talk.produced(told(6))
        waiting = waits(talk.send(value=LARGE), "memory")
        talk.sender.cancel_wait(waiting.ticket, talk.now)
        [gap] = talk.sender.gaps(talk.now)
        assert gap.records_refused == 1

    def test_more_than_the_whole_buffer_is_refused(self) -> None:
        talk, _ = self.full()
        with pytest.raises(MessageSizeTooLargeError, match="buffer_memory is 4500"):
            talk.send(value=LARGE * 5)

    def test_who_may_go_anywhere_does_not_wait_for_a_partition_that_is_held_up(self) -> None:
        talk = Talk(partitions=2, buffer_bytes=12_000, batch_bytes=5000)
        talk.request(0, 1)
        talk.produced(told(offset=0), told(offset=0, index=1))
        dead = talk.send(0, LARGE * 3)
        well = talk.send(1, LARGE * 3)
        assert isinstance(dead, Batch)
        assert isinstance(well, Batch)
        talk.sender.flush(talk.now)
        talk.pass_time()
        waiting = [waits(talk.send(None, LARGE * 5), "memory") for _ in range(6)]
        talk.produced(told(6), told(offset=1, index=1))
        talk.pass_time(0.3)
        granted = [taken for taken in waiting if taken.ticket in talk.granted]
        assert granted
        for taken in granted:
            batch = talk.sender.append("t", None, None, LARGE * 5, (), 0, talk.now, taken.ticket)
            assert isinstance(batch, Batch)
            assert batch.partition == 1

    def test_nor_does_it_move_where_all_partitions_are_held_up(self) -> None:
        """Another topic's are not: it has to leave room for them."""
        talk = Talk(buffer_bytes=12_000, batch_bytes=9000)
        talk.topics = ["t", "u"]
        for name in talk.topics:
            talk.sender.partitions_for(name, talk.now)
        talk.pass_time()
        talk.send(topic="u")
        talk.batch()
        talk.answer(talk.next_asked(), both(told(offset=0), told(offset=0)))
        talk.send(0, LARGE * 7)
        talk.sender.flush(talk.now)
        talk.pass_time()
        waiting = waits(talk.send(None, LARGE * 5), "memory")
        talk.produced(told(6))
        talk.pass_time(0.3)
        assert waiting.ticket not in talk.granted
        again = talk.sender.append("t", None, None, LARGE * 5, (), 0, talk.now, waiting.ticket)
        waits(again, "share")

    def test_whether_a_record_begins_a_batch(self) -> None:
        talk = Talk(linger_s=5.0)
        assert talk.sender.begins_batch("t", 0, 100, talk.now)
        talk.send()
        assert not talk.sender.begins_batch("t", 0, 100, talk.now)
        assert talk.sender.begins_batch("t", 0, 20_000, talk.now)


class _CutOffError(Exception):
    pass


class Trap(bytes):
    """A value in the middle of which a signal handler raises."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise _CutOffError


@pytest.mark.source  # a compiled engine asks bytes for their length
def test_an_append_that_is_cut_off_leaves_no_trace() -> None:
    talk = Talk(partitions=3, linger_s=5.0)
    talk.send(0)
    talk.send(2)
    talk.sender.flush(talk.now)
    talk.pass_time()
    talk.produced(told(offset=0), told(offset=0, index=2))
    kept = talk.send(0)
    before = talk.sender.health(talk.now).buffer_bytes
    for partition in (0, 1):
        with pytest.raises(_CutOffError):
            talk.send(partition, Trap(b"v"))
    assert talk.sender.health(talk.now).buffer_bytes == before
    assert isinstance(kept, Batch)
    assert kept.count == 1
    assert talk.sender.flush(talk.now) == [kept]
    talk.pass_time()
    talk.produced(told(offset=1))
    assert outcome(kept) is None


def test_a_topic_that_was_forgotten_is_seen_again() -> None:
    """Its partitions go on under their numbers."""
    talk = Talk()
    talk.batch()
    talk.produced(told(offset=0))
    talk.pass_time(700.0)
    seen = [type(fact).__name__ for fact in talk.facts].count("PartitionSeen")
    batch = talk.batch()
    talk.produced(told(offset=1))
    assert batch.base_sequence == 1
    assert [type(fact).__name__ for fact in talk.facts].count("PartitionSeen") == seen + 1
