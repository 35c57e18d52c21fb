"""What becomes of nodes: controlled stop, crash, return, pause; and how the cluster notices.

Theory. A dead or silent node is given up `detect_s` after its last sign of life (its session
timeout) and the consequences are decided `promote_s` later, all in one step (A18 to A21). Until
then nothing changes anywhere. A node that comes back registers: its former life is given up if
nobody had noticed the end, and then it is listed again (A12, A35). Where the nodes are the
controllers too (`combined_quorum`), nothing is decided without a majority of them (A36).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.testing.cluster_settings import draw
from outlast.testing.controller import Controller
from outlast.testing.node import Node
from outlast.testing.serving import Serving

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster


class Lifecycle:
    """The verbs that end nodes and bring them back."""

    __slots__ = ("_cluster", "_controller", "_controller_node", "_serving", "_undecided")

    def __init__(self, cluster: MockCluster, controller: Controller, serving: Serving) -> None:
        self._cluster = cluster
        self._controller = controller
        self._serving = serving
        self._controller_node = min(cluster.nodes)  # where the active controller runs (A19)
        self._undecided: list[Node] = []  # gone, but there is no majority to decide it

    # --- verbs ---

    def stop(self, node: Node, now: float) -> None:
        """Controlled shutdown."""
        if not node.running or node.stopping or node.paused:
            return
        settings, rng = self._cluster.settings, self._cluster.rng
        node.stopping = True
        self._controller.begin_stop(node.node_id, now)
        end_s = now + draw(settings.stopping_s, rng)
        unlisted_s = max(now, end_s - draw(settings.unlisted_s, rng))
        node.at(unlisted_s, self._controller.give_up, node.node_id)
        node.at(end_s, self._end, node)

    def kill(self, node: Node, now: float) -> None:
        """A crash; also of a node that is about to start."""
        if node.starting:
            node.starting = False
            node.incarnation += 1  # it does not get to boot
        if node.running:
            if self._cluster.settings.crash_resets:
                self._serving.hang_up_all(node, crashed=True)
            else:
                self._serving.fall_silent(node)
            node.crash()
            self._expect_detection(node, now)

    def start(self, node: Node, now: float) -> None:
        """A node that is down begins to boot."""
        if not node.running and not node.starting:
            node.starting = True
            startup_s = draw(self._cluster.settings.startup_s, self._cluster.rng)
            node.at(now + startup_s, self._boot, node)

    def pause(self, node: Node, now: float) -> None:
        """Nothing of the node runs any more; its sockets stay."""
        if node.running and not node.paused:
            node.paused = True
            node.silences += 1
            self._expect_detection(node, now)

    def resume(self, node: Node, now: float) -> None:
        """The node runs on, and registers again if it was given up."""
        if not node.running or not node.paused:
            return
        node.wake(now)
        self._serving.wake_node(node)
        if node.node_id not in self._controller.brokers:
            register_s = draw(self._cluster.settings.resume_register_s, self._cluster.rng)
            node.at(now + register_s, self._register, node)
        self._decide_what_waits(now)

    def controller_node(self) -> int:
        """The node of the active controller (−1: there is none without a majority)."""
        return self._controller_node if self.has_quorum() else -1

    def has_quorum(self) -> bool:
        """Can the controller decide anything?"""
        if not self._cluster.settings.combined_quorum:
            return True
        nodes = self._cluster.nodes.values()
        return 2 * sum(node.running and not node.paused for node in nodes) > len(nodes)

    # --- noticing ---

    def _expect_detection(self, node: Node, now: float) -> None:
        settings, rng = self._cluster.settings, self._cluster.rng
        span = settings.detect_s
        if node.node_id == self._controller_node:
            nodes = self._cluster.nodes.values()
            others = [n.node_id for n in nodes if n.running and not n.paused]
            self._controller_node = others[0] if others else node.node_id
            if settings.controller_detect_s is not None:
                span = settings.controller_detect_s
        delay_s = draw(span, rng) + draw(settings.promote_s, rng)
        self._cluster.timeline.at(now + delay_s, self._detect, node, node.silences)

    def _detect(self, node: Node, silences: int, now: float) -> None:
        if node.silences != silences or (node.running and not node.paused):
            return  # it came back in time
        if self.has_quorum():
            self._controller.give_up(node.node_id, now)
        else:
            self._undecided.append(node)

    def _decide_what_waits(self, now: float) -> None:
        if self.has_quorum():
            undecided, self._undecided = self._undecided, []
            for node in undecided:
                self._detect(node, node.silences, now)
            if self._cluster.settings.combined_quorum:
                for node in self._cluster.nodes.values():
                    if node.running:
                        node.follow_again(now)  # nobody could join an in-sync set meanwhile
            if self._cluster.settings.acks_all != "isr":
                self._controller.elect_leaders(now)  # there may be a majority again

    # --- ending and returning ---

    def _end(self, node: Node, _now: float) -> None:
        self._serving.hang_up_all(node, crashed=False)
        node.crash()

    def _boot(self, node: Node, now: float) -> None:
        self._serving.end_silence(node)
        self._controller.give_up(node.node_id, now)
        self._controller.take_back(node.node_id, now)
        node.boot(self._controller.present(), now)
        self._decide_what_waits(now)

    def _register(self, node: Node, now: float) -> None:
        self._controller.take_back(node.node_id, now)
        node.follow_again(now)
