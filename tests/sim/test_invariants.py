"""Bytes and seconds that must add up, whatever happens: what random runs found to be amiss."""

from __future__ import annotations

from outlast.engine.gap import GapRecorder
from outlast.engine.intake import Intake
from outlast.testing.swarm import run_seed


def test_room_that_a_waiter_never_gives_back_is_found_by_the_fixed_range_of_seeds(monkeypatch):
    monkeypatch.setattr(Intake, "_forget", lambda *_: None)
    findings = [f for seed in range(1, 41) for f in run_seed(seed).findings]
    assert any("bytes of the buffer are taken" in finding for finding in findings)


def test_a_stall_that_begins_inside_a_gap_is_found_by_the_fixed_range_of_seeds(monkeypatch):
    monkeypatch.setattr(GapRecorder, "ended_s", lambda *_: 0.0)
    findings = [f for seed in range(201, 251) for f in run_seed(seed).findings]
    assert any("share" in finding for finding in findings)
