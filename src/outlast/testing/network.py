"""The simulator's network: ordered pipes between this host and the brokers, and their accidents.

Theory. A connection is two pipes. What is put into a pipe arrives after a seeded one-way latency,
never before what was put in earlier (TCP keeps order within a connection and a direction, and
promises nothing across connections). A parcel is in one of three places, and they decide what
becomes of it when the connection ends:

* *on this host* (the node is cut off, so the kernel cannot get rid of it): an abort drops it;
* *on the wire*: it arrives, also after the client has closed: TCP delivers what was sent before
  the FIN or RST. Only a reset by the network itself loses a seeded part of it;
* *at the broker*: the cluster holds it, and takes it late if the connection has gone (B16).

Rules:
* Requests and answers are real bytes, written and read by `kafka.protocol`, so a wrong encoding
  shows; an answer that cannot be read ends its connection as BAD_BYTES.
* The connection is given to the engine only once ApiVersions has been answered: a connect that
  succeeds proves nothing (A25).
* The cluster knows connections by plain integers, never by the engine's names.
* Every request and connect is in the wire log with its times. It is written by the network alone
  and judges the engine's gap records, so nothing in it comes from the engine's decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from struct import pack
from typing import Any

from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol

from outlast.engine.messages import Connection, Loss
from outlast.testing.cluster import Answer, MockCluster
from outlast.testing.links import Link, Parcel, Pipe
from outlast.testing.wire import WireConnect, WireRequest

PRODUCE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """How long things take on the wire, in seconds."""

    latency_s: tuple[float, float] = (0.0004, 0.0006)  # one way, drawn evenly
    spike_probability: float = 0.0  # of one parcel being late by `spike_s`
    spike_s: tuple[float, float] = (0.05, 0.5)
    notice_s: float = 0.0  # at most so long until the host learns that a connection is dead


# --- what the driver is told --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """The node has answered ApiVersions on this connection."""

    connection: Connection
    api_versions: dict[int, tuple[int, int]]
    features: dict[str, int]  # finalized ones, and their level


@dataclass(frozen=True, slots=True)
class Lost:
    """Connecting failed or the connection ended; `unsent` were never handed to it."""

    connection: Connection
    loss: Loss
    detail: str
    unsent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Responded:
    """The answer to the request `token`, decoded."""

    connection: Connection
    token: int
    response: Any


Event = Connected | Lost | Responded


class SimNetwork:
    """Carries the engine's connections to a MockCluster, in virtual time."""

    __slots__ = (
        "_cluster",
        "_conns",
        "_cut_since",
        "_heap",
        "_links",
        "_order",
        "_refusing",
        "_rng",
        "_setup_timeout_s",
        "client_id",
        "connects",
        "events",
        "requests",
        "settings",
        "watch",
    )

    def __init__(
        self,
        cluster: MockCluster,
        settings: NetworkSettings,
        rng: Random,
        *,
        setup_timeout_s: float = 10.0,
        client_id: str = "outlast",
    ) -> None:
        self.settings = settings
        self.client_id = client_id
        self.events: deque[Event] = deque()
        self.watch: Callable[[int, int], None] | None = None  # (node, Produce requests it owes)
        self.requests: list[WireRequest] = []
        self.connects: list[WireConnect] = []
        self._cluster = cluster
        self._rng = rng
        self._setup_timeout_s = setup_timeout_s
        self._links: dict[Connection, Link] = {}  # what this host still knows
        self._conns: dict[int, Link] = {}  # all that either end still knows
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._cut_since: dict[int, float] = {}
        self._refusing: dict[int, None] = {}

    def __repr__(self) -> str:
        cut = sorted(self._cut_since)
        return f"<SimNetwork links={len(self._links)} heap={len(self._heap)} cut={cut}>"

    # --- commands of the engine -----------------------------------------------------------------

    def connect(self, connection: Connection, host: str, port: int, now: float) -> None:
        """Begin to connect. `Connected` or `Lost` follows."""
        conn = len(self.connects) + 1
        log = WireConnect(conn, -1, connection.role.value, now)
        link = Link(conn, connection, (host, port), KafkaProtocol(client_id=self.client_id), log)
        for node_id, address in self._cluster.addresses.items():
            if tuple(address) == (host, port):
                link.node_id = log.node_id = node_id
        self.connects.append(log)
        self._links[connection] = self._conns[conn] = link
        self._put(link, link.to_broker, partial(self._syn, link), now)
        self._at(now + self._setup_timeout_s, partial(self._setup_timeout, link))

    def send(
        self, connection: Connection, token: int, request: Any, expects_answer: bool, now: float
    ) -> None:
        """Hand one request to a connection that `Connected` has named."""
        link = self._links.get(connection)
        if link is None:
            return  # its end was told, and the driver has not heard it yet
        assert link.state in ("open", "dead"), f"{link} cannot send"
        if link.state == "dead" and self._rng.random() < 0.5:
            link.unsent.append(token)  # the write failed; else it vanished in the socket
            return
        assert link.versions is not None
        try:
            request.API_VERSION = link.versions.api_version(request)
        except IncompatibleBrokerVersion as error:
            link.unsent.append(token)
            self._die(link, Loss.UNSUPPORTED, str(error), now)
            return
        assert request.expect_response() == expects_answer, f"{request} and its Send disagree"
        self._transmit(link, token, request, now)

    def disconnect(self, connection: Connection, abort: bool, now: float) -> None:
        """This host closes: no event follows. What is on the wire still arrives."""
        link = self._links.pop(connection, None)
        if link is None:
            return  # its end was told, and the driver has not heard it yet
        if abort:
            link.to_broker.held.clear()
        self._forget(link, now, given_up=True)
        self._put(link, link.to_broker, partial(self._closed_at_broker, link), now)

    def retransmits(self, connection: Connection, now: float) -> int | None:
        """How often this host's kernel has sent a connection's oldest bytes again in vain; None if
        the connection is gone.
        """
        link = self._links.get(connection)
        return None if link is None else link.to_broker.retransmits(now)

    # --- accidents ------------------------------------------------------------------------------

    def reset(self, node_id: int, now: float) -> int:
        """Break all standing connections to a node. A seeded part of what is on the wire arrives:
        a request may be taken and its answer lost, or never arrive. Returns how many broke.
        """
        links = [k for k in self._links.values() if k.node_id == node_id and k.broker_open]
        for link in links:
            self.reset_link(link.connection, now)
        return len(links)

    def reset_link(self, connection: Connection, now: float) -> None:
        """Break one connection, at whatever moment it is."""
        link = self._links[connection]
        for pipe in (link.to_broker, link.to_client):
            pipe.lose_tail(self._rng.randint(0, len(pipe.under_way)))
        self._put(link, link.to_broker, partial(self._closed_at_broker, link), now)
        detail = "connection reset by peer"
        self._put(link, link.to_client, partial(self._die, link, Loss.CLOSED, detail), now)

    def deafen(self, connection: Connection) -> None:
        """From now on nothing passes on this one connection, for ever, and nobody is told."""
        self._links[connection].deaf = True

    def refuse(self, node_id: int, now: float) -> None:
        """Break what stands to this node and refuse what comes; the node itself lives on."""
        self._refusing[node_id] = None
        self.reset(node_id, now)

    def accept(self, node_id: int) -> None:
        """The node can be connected to again."""
        self._refusing.pop(node_id, None)

    def standing(self) -> list[Connection]:
        """The connections that are open now, in the order of their making."""
        return [c for c, link in self._links.items() if link.state == "open"]

    def still(self) -> bool:
        """Whether nothing at all is under way or held anywhere."""
        return not any(
            pipe.held or pipe.under_way
            for link in self._conns.values()
            for pipe in (link.to_broker, link.to_client)
        )

    def cut(self, node_id: int, now: float) -> None:
        """From now on nothing passes to or from this node, and nobody is told."""
        self._cut_since.setdefault(node_id, now)

    def heal(self, node_id: int, now: float) -> None:
        """The node can be reached again. What was held is sent again by TCP, a while later."""
        since = self._cut_since.pop(node_id, None)
        if since is None:
            return
        for link in list(self._conns.values()):
            if link.node_id != node_id:
                continue
            for pipe in (link.to_broker, link.to_client):
                if link.deaf:
                    continue
                held, pipe.held = pipe.held, deque()
                pause_s = self._rng.uniform(0.0, min(now - since, 2.0))  # until the retransmission
                for parcel in held:
                    self._launch(pipe, parcel, now + pause_s)

    # --- time -----------------------------------------------------------------------------------

    def next_deadline(self, now: float) -> float | None:
        """When `step` has something to do; may be `now`."""
        at = self._heap[0][0] if self._heap else None
        cluster_at = self._cluster.next_deadline(now)
        if cluster_at is not None and (at is None or cluster_at < at):
            return cluster_at
        return at

    def step(self, now: float) -> None:
        """Do the one thing that is due first. What the driver must know is in `events` then."""
        if self._heap and self._heap[0][0] <= now:
            _, _, action = heappop(self._heap)
            action(now)
        else:
            self._cluster.tick(now)
        self.collect(now)

    def collect(self, now: float) -> None:
        """Put what the brokers have to say on the wire."""
        for item in self._cluster.take():
            link = self._conns.get(item.connection)
            if link is None or not link.broker_open:
                continue
            if isinstance(item, Answer):
                step = partial(self._answered, link, item.frame)
            else:
                link.broker_open = False
                detail = "connection reset by peer" if item.reset else "closed by peer"
                step = partial(self._die, link, Loss.CLOSED, detail)
            self._put(link, link.to_client, step, now)

    # --- arrivals at the broker -----------------------------------------------------------------

    def _syn(self, link: Link, now: float) -> None:
        if link.state == "gone":
            return
        known = link.node_id in self._cluster.addresses and link.node_id not in self._refusing
        accepted = known and self._cluster.opened(link.node_id, link.conn, now)
        if accepted:
            link.broker_open = True
            self._put(link, link.to_client, partial(self._accepted, link), now)
        else:
            detail = "connection refused"
            self._put(link, link.to_client, partial(self._die, link, Loss.REFUSED, detail), now)

    def _arrived(self, link: Link, record: WireRequest, now: float) -> None:
        if link.broker_open:
            record.arrived_at = now
            self._cluster.received(link.conn, record.frame, now)

    def _closed_at_broker(self, link: Link, now: float) -> None:
        if link.broker_open:
            link.broker_open = False
            self._cluster.closed(link.conn, now)
        self._tidy(link)

    # --- arrivals at this host ------------------------------------------------------------------

    def _accepted(self, link: Link, now: float) -> None:
        if link.state == "connecting":
            link.state = "setup"
            self._ask_versions(link, ApiVersionsRequest.max_version, now)

    def _ask_versions(self, link: Link, version: int, now: float) -> None:
        request = ApiVersionsRequest(
            version=version, client_software_name="outlast", client_software_version="sim"
        )
        self._transmit(link, -1, request, now)

    def _answered(self, link: Link, frame: bytes, now: float) -> None:
        if link.state not in ("setup", "open"):
            return
        try:
            [(_, response)] = link.protocol.receive_bytes(pack(">i", len(frame)) + frame)
        except Exception as error:  # whatever a reader may raise on bad bytes
            self._die(link, Loss.BAD_BYTES, f"{type(error).__name__}: {error}", now)
            return
        record = link.waiting.popleft()
        link.owed -= record.api_key == PRODUCE
        record.answered_at, record.answer = now, frame
        if link.state == "open":
            self.events.append(Responded(link.connection, record.token, response))
        else:
            self._versions_answered(link, record.api_version, response, now)

    def _versions_answered(self, link: Link, asked: int, response: Any, now: float) -> None:
        known = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        if response.error_code == 35 and asked > 0:  # UNSUPPORTED_VERSION, in v0 layout
            own = known.get(ApiVersionsRequest.API_KEY, (0, 0))
            self._ask_versions(link, max(0, min(own[1], asked - 1)), now)
        elif response.error_code != 0:
            self._die(link, Loss.UNSUPPORTED, f"ApiVersions: error {response.error_code}", now)
        else:
            link.state = "open"
            link.versions = BrokerVersionData(api_versions=known)
            link.log.ended_at = now
            finalized = response.finalized_features or ()
            features = {feature.name: feature.max_version_level for feature in finalized}
            self.events.append(Connected(link.connection, known, features))

    def _setup_timeout(self, link: Link, now: float) -> None:
        if link.state in ("connecting", "setup"):
            link.to_broker.held.clear()
            self._put(link, link.to_broker, partial(self._closed_at_broker, link), now)
            detail = f"no answer within {self._setup_timeout_s:g} s"
            self._notice(link, Loss.SETUP_TIMEOUT, detail, now)

    def _die(self, link: Link, loss: Loss, detail: str, now: float) -> None:
        """The socket is dead; the host notices within `notice_s`."""
        if link.state in ("dead", "gone"):
            return
        if link.state != "open" or not self.settings.notice_s:
            self._notice(link, loss, detail, now)
            return
        link.state = "dead"
        at = now + self._rng.uniform(0.0, self.settings.notice_s)
        self._at(at, partial(self._notice, link, loss, detail))

    def _notice(self, link: Link, loss: Loss, detail: str, now: float) -> None:
        if link.state == "gone":
            return
        if link.broker_open and loss in (Loss.BAD_BYTES, Loss.UNSUPPORTED):
            self._put(link, link.to_broker, partial(self._closed_at_broker, link), now)
        del self._links[link.connection]
        if link.log.ended_at is None:
            link.log.loss = loss.value
        self._forget(link, now, given_up=False)
        self.events.append(Lost(link.connection, loss, detail, tuple(link.unsent)))

    # --- helpers --------------------------------------------------------------------------------

    def _transmit(self, link: Link, token: int, request: Any, now: float) -> None:
        link.protocol.send_request(request)
        frame = bytes(link.protocol.send_bytes()[4:])
        record = WireRequest(
            link.conn, link.node_id, token, request.API_KEY, request.API_VERSION, frame, now
        )
        self.requests.append(record)
        if request.expect_response():
            link.waiting.append(record)
            if record.api_key == PRODUCE:
                link.owed += 1
                if self.watch is not None:
                    self.watch(link.node_id, link.owed)
        self._put(link, link.to_broker, partial(self._arrived, link, record), now)

    def _forget(self, link: Link, now: float, *, given_up: bool) -> None:
        """This host knows the connection no more."""
        link.state = "gone"
        link.log.closed_at = now
        for record in link.waiting:
            record.failed_at, record.given_up = now, given_up
        link.waiting.clear()
        link.owed = 0
        if link.log.ended_at is None:
            link.log.ended_at = now
        self._tidy(link)

    def _tidy(self, link: Link) -> None:
        if link.state == "gone" and not link.broker_open:
            self._conns.pop(link.conn, None)

    def _put(self, link: Link, pipe: Pipe, deliver: Callable[[float], None], now: float) -> None:
        parcel = Parcel(deliver, now)
        if link.deaf or link.node_id in self._cut_since:
            pipe.held.append(parcel)
        else:
            self._launch(pipe, parcel, now)

    def _launch(self, pipe: Pipe, parcel: Parcel, now: float) -> None:
        at = now + self._rng.uniform(*self.settings.latency_s)
        if self._rng.random() < self.settings.spike_probability:
            at += self._rng.uniform(*self.settings.spike_s)
        pipe.last_at = at = max(at, pipe.last_at)
        pipe.under_way.append(parcel)

        def arrive(later: float) -> None:
            if not parcel.lost:
                pipe.under_way.popleft()
                parcel.deliver(later)

        self._at(at, arrive)

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._heap, (at, self._order, action))
