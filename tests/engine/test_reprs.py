"""How the engine's parts show themselves: where a log or a failed assertion names one, its state
must be seen, and nothing of what is in records.
"""

from __future__ import annotations

import random
from typing import Any

from outlast.engine.aftermath import Aftermath
from outlast.engine.answers import Answers
from outlast.engine.batch import Attempt, Batch
from outlast.engine.gap_state import OpenGap, Phases
from outlast.engine.hub import Hub
from outlast.engine.inflow import Inflow
from outlast.engine.inquest import Inquest
from outlast.engine.intake import Intake, Waiting
from outlast.engine.leadership import Answer, Insistence, Leadership
from outlast.engine.messages import AttemptState, Cause, Connection, GapEnd, Role
from outlast.engine.outgoing import Outgoing
from outlast.engine.pressure import Pressure
from outlast.engine.record_batch import RecordBatchBuilder
from outlast.engine.run import Run
from outlast.engine.settings import Settings
from outlast.engine.silence import Silence
from outlast.engine.tidings import Tidings
from outlast.engine.transaction import Transaction
from outlast.engine.transactions import Transactions
from outlast.engine.txn_waiters import Waiters
from tests.engine.talk import Talk
from tests.engine.test_metadata import answer, part, topic
from tests.engine.usual import USUAL

T0 = ("t", 0)
LINE = Connection(1, Role.OPEN, 3)


def world() -> Hub:
    """A hub that knows topic t; its first partition has a record."""
    hub = Hub(Settings(**USUAL), random.Random(1), 0.0)
    hub.metadata.interest("t", 0.0)
    hub.metadata.merge(answer(topic("t", part(0, 1, 1))), 1, 0.0)
    intake = Intake(hub)
    assert isinstance(intake.append("t", 0, b"secret", b"secret", (), 0, 1.0), Batch)
    return hub


def test_records_and_batches() -> None:
    builder = RecordBatchBuilder()
    builder.append(0, None, b"secret", ())
    assert repr(builder) == "<RecordBatchBuilder open records=1 bytes=74>"
    builder.seal(0)
    assert repr(builder) == "<RecordBatchBuilder sealed records=1 bytes=74>"
    run = Run("t", 1, None, [b"secret"] * 3, (), 0)
    assert repr(run) == "<Run t partition=1 records=3>"
    batch = Batch(T0, 0.0)
    assert repr(batch) == "<Batch t-0 unnumbered records=0>"
    batch.append(0, None, b"secret", ())
    batch.closed = True
    batch.seal(batch.compressed(0))
    batch.base_sequence = 4
    attempt = Attempt(LINE, 2, None, 0.0)
    batch.begin_attempt(attempt)
    assert repr(batch) == "<Batch t-0 seq=4 records=1 in-flight>"
    assert repr(attempt) == "<Attempt 1/open#3 epoch=2 open >"
    batch.end_attempt(AttemptState.LEFT, "CONNECTION_CLOSED")
    assert repr(batch) == "<Batch t-0 seq=4 records=1 unsure>"
    assert repr(attempt) == "<Attempt 1/open#3 epoch=2 left CONNECTION_CLOSED>"
    assert repr(Inquest(LINE, 2, [batch])) == "<Inquest on 1/open#3 remaining=1>"


def test_partitions() -> None:
    place = world().partitions[T0]
    window = "<Window batches=0 producer=-1/-1 next=0>"
    assert repr(place.queue) == "<Queue t-0 batches=1>"
    assert repr(place) == f"<Partition open {window} <Queue t-0 batches=1> in_flight=0>"
    place.draining = True
    assert repr(place).startswith("<Partition draining <Window")


def test_connections() -> None:
    hub = world()
    link = hub.brokers.link(1, Role.OPEN)
    assert repr(link) == "<Link 1/open down pending=0>"
    hub.brokers.connect(link, "h1", 9001, 1.0)
    assert repr(hub.brokers) == "<Brokers [<Link 1/open connecting pending=0>]>"
    hub.brokers.connected(link, {}, 2.0)
    assert repr(link) == "<Link 1/open ready pending=0>"


def test_gaps_and_stalls() -> None:
    phases = Phases(1.0, 2.0)
    assert repr(phases) == "<Phases unavailable since=2.000>"
    phases.evidence((2, 2), 3.0)
    phases.sent(4.0)
    phases.unreachable(5.0)
    assert repr(phases) == "<Phases resuming since=2.000>", "an attempt is still under way"
    hub = world()
    assert repr(hub.recorder) == "<GapRecorder open=0 unsettled=0>"
    assert repr(hub.stalls) == "<StallRecorder open=0>"
    gap = OpenGap(
        tp=T0,
        number=7,
        cause=Cause.OTHER,
        trigger="",
        begin_s=1.0,
        begin_unix_s=1.0,
        first_signal_s=2.0,
        last_ack_age_s=None,
        old_leader=1,
        old_leader_epoch=1,
    )
    assert repr(gap) == "<gap 7 t-0 unavailable waiting=0>"
    gap.ended_by = GapEnd.ACK
    assert repr(gap) == "<gap 7 t-0 ack waiting=0>"


def test_leaders() -> None:
    insistence = Insistence()
    insistence.convinces("another", 10.0, Answer(3, (1, 2), True, 0.0))
    assert repr(insistence) == "<Insistence another x1 from [3]>"
    assert repr(Leadership()) == "<Leadership None seen=-1 stale=None>"


def test_room_and_lanes() -> None:
    hub = world()
    assert repr(hub.accumulator).endswith("/33554432 bytes, waiting=0 granted=0>")
    assert repr(hub.shares) == "<Shares held_up=0 bounded=0 bytes=0>"
    assert repr(Inflow(0.0)) == "<Inflow samples=1>"
    pressure = Pressure(hub.accumulator, 0.0)
    assert repr(pressure) == f"<Pressure waiting={{}} {hub.accumulator!r}>"
    assert repr(hub.lanes.lateness) == "<Lateness of 0>"
    assert repr(hub.lanes) == "<Lanes slow={} blamed={}>"
    hub.lanes.stuck(T0, 1, 0.0, 1.0)
    assert repr(hub.lanes).startswith("<Lanes slow={'stuck': 1} blamed=")
    assert repr(hub.agenda) == "<Agenda changed=1 timed=0>"


def test_the_hub_and_its_files() -> None:
    hub = world()
    inquiries = "<Inquiries producer=(-1, -1) links=[]>"
    assert repr(hub.inquiries) == inquiries
    assert repr(hub) == f"<Hub busy=1 troubled=0 {hub.accumulator!r} {inquiries}>"
    intake = Intake(hub)
    assert isinstance(intake.partitions_for("u", 1.0), Waiting)
    answers = Answers(hub)
    shown: dict[Any, str] = {
        intake: "<Intake waiting for metadata: {'u': 1}>",
        answers: "<Answers>",
        answers.steering: f"<Steering {hub.lanes!r}>",
        Aftermath(hub): "<Aftermath of []>",
        Outgoing(hub): "<Outgoing {}>",
        Silence(hub, answers): "<Silence suspects=[]>",
        Tidings(hub, intake): "<Tidings <Metadata nodes=[1, 2, 3] partitions={'t': 1, 'u': 0}>>",
    }
    assert {part: repr(part) for part in shown} == shown
    talk = Talk()
    assert repr(talk.sender).startswith("<Sender <Hub busy=0 troubled=0 <Accumulator 0/")


def test_transactions() -> None:
    hub = world()
    engine = Transactions(hub, "shop", 1000)
    producer = "Producer(producer_id=-1, epoch=-1)"
    errands = "<Errands None coordinators={}>"
    assert repr(engine) == f"<Transactions 'shop' UNINITIALIZED {producer} {errands}>"
    waiters = Waiters()
    waiters.wait(Transaction(), 0)
    assert repr(waiters) == "<Waiters [-1]>"
