"""One broker asks another: a transaction's marker to be written, a transaction to be looked up.

Theory. An errand takes half of `between_brokers_s` each way; its work is done there, on that
broker's timers, so a paused broker keeps it waiting. One that is down, dies meanwhile, or is silent
for `between_brokers_timeout_s` gives NETWORK_EXCEPTION. What a silent broker does of it when it
wakes is done all the same, and nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.testing.cluster_settings import draw
from outlast.testing.codes import NETWORK_EXCEPTION

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.node import Node

LOOK_S = 0.02  # how soon a connection that broke is noticed

Done = Callable[[int, float], None]  # an error code, and when


class Errand:
    """`work(reply, now)` is done at `target`; `done(code, now)` is told here, once."""

    __slots__ = ("_done", "_given_up_s", "_half_s", "_life", "_source", "_target")

    def __init__(
        self,
        cluster: MockCluster,
        source: Node,
        target_id: int,
        work: Callable[[Done, float], None],
        done: Done,
        now: float,
    ) -> None:
        settings = cluster.settings
        self._source = source
        self._target = cluster.nodes.get(target_id)
        self._done: Done | None = done
        self._half_s = draw(settings.between_brokers_s, cluster.rng) / 2
        self._given_up_s = now + settings.between_brokers_timeout_s
        self._life = -1
        if self._target is source:
            self._half_s = 0.0
            work(self._finish, now)
        elif self._target is None or not self._target.running:
            source.at(now + self._half_s, self._finish, NETWORK_EXCEPTION)
        else:
            self._life = self._target.incarnation
            self._target.at(now + self._half_s, work, self._reply)
            self._look_again(now)

    def _reply(self, code: int, now: float) -> None:
        self._source.at(now + self._half_s, self._finish, code)

    def _finish(self, code: int, now: float) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(code, now)

    def _look_again(self, now: float) -> None:
        self._source.at(now + LOOK_S, self._look)

    def _look(self, now: float) -> None:
        if self._done is None:
            return
        target = self._target
        assert target is not None
        if target.incarnation != self._life or now >= self._given_up_s:
            self._finish(NETWORK_EXCEPTION, now)
        else:
            self._look_again(now)
