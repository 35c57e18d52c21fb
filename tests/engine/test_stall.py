"""Which stalls are shown, however many there were."""

from __future__ import annotations

from outlast.engine.messages import StallEnd
from outlast.engine.stall import StallRecorder


def begin(recorder: StallRecorder, partition: int, at_s: float) -> None:
    tp = ("t", partition)
    recorder.alive(tp, node_id=1, lane="open", reason="leader", sent_s=at_s, now=at_s + 1.0)


def test_the_longest_open_stall_is_shown_after_many_others_have_ended() -> None:
    recorder = StallRecorder(0.0, limit=10)
    begin(recorder, 0, 1.0)
    for number in range(20):
        begin(recorder, 1, 2.0 + number)
        recorder.end(("t", 1), StallEnd.ACK, 3.5 + number)
    shown = recorder.stalls(30.0)
    assert len(shown) == 10
    assert shown[0].partition == 0
    assert shown[0].ended_by is None


def test_all_open_stalls_are_told_to_health() -> None:
    recorder = StallRecorder(0.0, limit=10)
    for partition in range(25):
        begin(recorder, partition, 1.0)
    assert [stall.partition for stall in recorder.open_stalls(9.0)] == list(range(25))
