"""The engine's face: what only the whole of it shows, by inputs and outputs."""

from __future__ import annotations

import random

import pytest

from outlast.engine.messages import Connect, Loss
from outlast.engine.sender import Sender, Waiting
from outlast.engine.settings import Settings
from tests.engine.usual import USUAL


def test_a_driver_that_comes_late_is_told_what_fell_due_meanwhile() -> None:
    """A slow callback kept the I/O thread while the back-off of the only address ran out."""
    sender = Sender(Settings(**USUAL), random.Random(1), 0.0, 0.0)
    assert isinstance(sender.append("t", None, None, b"v", (), 0, 0.0), Waiting)
    sender.tick(0.001)
    [connect] = sender.take().commands
    assert isinstance(connect, Connect)
    sender.disconnected(connect.connection, Loss.REFUSED, "refused", 0.002)
    retry_s = sender.next_deadline(0.003)
    assert retry_s is not None
    assert retry_s < 1.0
    late_s = retry_s + 5.0
    due_s = sender.next_deadline(late_s)
    assert due_s == pytest.approx(late_s, abs=0.01)
    sender.tick(late_s)
    assert any(isinstance(command, Connect) for command in sender.take().commands)
