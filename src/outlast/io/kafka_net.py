"""The engine's commands, carried out with kafka-python's connections.

The only file that imports `kafka.net` (3.1 rewrites it). `Network` takes commands and gives events
back; framing, correlation ids, ApiVersions, SASL and re-authentication stay kafka-python's.

Rules:
* Everything but `wake` is called on one thread, the one that polls, and nothing here blocks it.
* Each Connect is answered by Connected or Disconnected; each open connection ends with one
  Disconnected, unless the engine gave it up before. One deadline covers look-up, TCP, TLS,
  ApiVersions and SASL.
* Whatever goes wrong on one connection ends that connection, and no other.
* Time and flow are the engine's: no throttling, in-flight limit or request time-out in here.
* What was handed to an open connection counts as sent. What was not is named as `unsent`.

kafka.net parks a task anew for each event on a socket: two system calls and four objects. Here the
reader stays registered, and a request is written where it is handed over.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection, SaslReauthenticator
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import KernelEvent, NetworkSelector, Task, TaskState
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from outlast.engine.messages import Command, Connect, Connection, Disconnect, Inspect, Loss, Send
from outlast.io import asserts_off
from outlast.io.addresses import Resolver, resolve
from outlast.io.advice import Stage, with_advice
from outlast.io.connection_config import (
    connection_config,
    selector_class,
    version_limits,
    versions_within,
)
from outlast.io.dialing import Dial, Dialer, beside
from outlast.io.events import (
    Connected,
    Disconnected,
    Ended,
    Event,
    Features,
    Inspected,
    Responded,
    because,
)
from outlast.io.lent import borrow
from outlast.io.metering import METERING, metered
from outlast.io.quiet import quiet
from outlast.io.sasl import HeldToken, Logins
from outlast.io.sockets import (
    abandon_loop,
    close_descriptor,
    reset_on_close,
    retransmits,
)
from outlast.io.steady import SteadyTransport
from outlast.io.tls import Contexts

log = logging.getLogger(__name__)

OLDEST_PRODUCE_VERSION = 3  # record batches of format 2, Kafka 0.11


class Network:
    """All connections of one producer.

    `config` has kafka-python's keywords; those of transport, TLS, SASL and proxies are used.
    Raises KafkaConfigurationError if TLS cannot be set up from them.
    """

    def __init__(
        self, config: Mapping[str, Any], *, setup_timeout_s: float, resolver: Resolver = resolve
    ) -> None:
        self.setup_timeout_s = setup_timeout_s
        self.version_limits = version_limits(config.get("api_version"))
        self.metering = config.get(METERING)
        self.dialer = Dialer(config, resolver)
        self.protocol: str = config.get("security_protocol", "PLAINTEXT")
        self.tls = Contexts(config) if self.protocol in ("SSL", "SASL_SSL") else None
        self.connection_config = connection_config(config, setup_timeout_s)
        self.logins: Logins | None = None
        if self.protocol.startswith("SASL_"):
            provider = config.get("sasl_oauth_token_provider")
            self.logins = Logins(
                self.connection_config, provider, get_sasl_mechanism, _Token, setup_timeout_s
            )
        self.events: list[Event] = []
        self._links: dict[Connection, _Link] = {}
        self._leaving: set[_Link] = set()  # given up, their last bytes still on the way out
        self._ended: dict[Connection, Disconnected] = {}  # not yet told
        selector = selector_class(config)
        self.lent = borrow(config, KafkaNetClient, KafkaConnectionManager._build_transport)
        self.loop: Any = (
            self.lent.loop if self.lent else _Loop(selector=selector, slow_task_threshold_secs=0)
        )
        quiet.install()
        asserts_off.install()

    def __repr__(self) -> str:
        return f"<Network connections={len(self._links)} leaving={len(self._leaving)}>"

    def execute(self, command: Command) -> None:
        """Carry one command out. What comes of it is told by the next `poll`."""
        if isinstance(command, Send):
            self._send(command)
        elif isinstance(command, Connect):
            assert command.connection not in self._links
            self._links[command.connection] = _Link(self, command)
        elif isinstance(command, Inspect):
            self._inspect(command.connection)
        else:
            self._give_up(command)

    def poll(self, timeout_s: float) -> list[Event]:
        """Wait for something to happen, at most `timeout_s`; returns what happened."""
        quiet.threads.add(threading.get_ident())
        self.loop.poll(timeout_ms=0 if self.events else timeout_s * 1000)
        events, self.events[:] = self.events[:], []
        self._ended.clear()
        return events

    def wake(self) -> None:
        """End the wait of `poll`; from any thread."""
        self.loop.wakeup()

    def close(self, grace_s: float = 0.0) -> None:
        """Close all connections; those given up before may write their last bytes first."""
        last_s = time.monotonic() + grace_s
        while self._leaving and (left_s := last_s - time.monotonic()) > 0:
            self.loop.poll(timeout_ms=left_s * 1000)
        for link in [*self._links.values(), *self._leaving]:
            link.give_up()
        self._links.clear()
        (self.lent or self.loop).close()
        quiet.threads.discard(threading.get_ident())

    def abandon(self) -> None:
        """In a forked child: close our copies of the descriptors, and leave the parent its own."""
        for link in [*self._links.values(), *self._leaving]:
            if link.dial.sock is not None:
                close_descriptor(link.dial.sock)
        abandon_loop(self.loop)
        quiet.threads.clear()

    def ended(self, link: _Link, error: BaseException | None, unsent: list[int]) -> None:
        """Called by a connection that is gone."""
        self._leaving.discard(link)
        if self._links.get(link.name) is link:  # else the engine has given it up
            del self._links[link.name]
            event = because(error, link.name, repr(link.dial), unsent)
            self._ended[link.name] = event
            self.events.append(event)

    def _send(self, command: Send) -> None:
        link = self._links.get(command.connection)
        if link is not None:
            link.submit(command)
        elif (ended := self._ended.get(command.connection)) is not None:
            ended.unsent.append(command.token)
        # else its end was told together with what made the engine send this

    def _inspect(self, name: Connection) -> None:
        link = self._links.get(name)
        if link and (count := retransmits(link.dial.sock)) is not None:
            self.events.append(Inspected(name, count))

    def _give_up(self, command: Disconnect) -> None:
        link = self._links.pop(command.connection, None)
        if link is None:
            return  # it has just ended by itself
        if command.abort:
            link.abort()
        elif link.give_up():
            self._leaving.add(link)


# --- one connection -----------------------------------------------------------------------------


class _Link(KafkaConnection):  # type: ignore[misc]
    """One connection from its Connect to its end."""

    def __init__(self, network: Network, command: Connect) -> None:
        super().__init__(network.loop, command.connection.node_id, **network.connection_config)
        self._reauth = _Reauthenticator(self)
        self.network = network
        self.name = command.connection
        self.dial = Dial(
            network.dialer, command.host, command.port, bootstrap=self.name.node_id < 0
        )
        self._deadline_s = time.monotonic() + network.setup_timeout_s
        self._timer = self.net.call_at(self._deadline_s, self._expired)
        self._opening = self.net.call_soon(self._open)
        self._stage = Stage.DIALING
        self._features = Features()
        self.session = network.logins.session(self.net, self.dial) if network.logins else None

    # --- opening ---

    async def _open(self) -> None:
        try:
            if self.session is not None:
                await self.session.prepare()
            self.connection_made(await self._transport())
            self.parser: Any = metered(self.parser, self.name.node_id, self.network.metering)
        except Exception as error:
            self.close(error)
        else:
            # Our own timer comes first; its reason is the better one.
            await self.initialize(timeout_at=self._deadline_s + 1.0)

    async def _transport(self) -> Any:
        lent, node_id = self.network.lent, self.name.node_id
        if lent is None:
            sock, tls = await self.dial.connect(self.net), self.network.tls
            context = await beside(self.net, tls.current, "TLS files") if tls else None
            transport = self._wrapped(sock, context)
            self._stage = Stage.TLS_HANDSHAKE
            await transport.handshake()
            return transport
        lent_one = await lent.transport(node_id, *self.dial.place, self._deadline_s)
        self.dial.sock = getattr(lent_one, "_sock", None)  # none, where all is in memory
        return lent_one

    def _wrapped(self, sock: socket.socket, context: ssl.SSLContext | None) -> _Transport:
        tls = {} if context is None else {"ssl_context": context}
        kind = _TLSTransport if tls else _Transport
        transport = kind(self.net, sock, host=self.dial.name, **tls)
        self.dial.sock = transport._sock
        return transport

    async def _get_api_versions(self, timeout_at: float | None = None) -> None:
        self._stage = Stage.API_VERSIONS
        await super()._get_api_versions(timeout_at)
        self._stage = Stage.LOGIN
        offered = self.broker_version_data
        offered.api_versions = versions_within(offered.api_versions, self.network.version_limits)
        offered.api_version(ProduceRequest, min_version=OLDEST_PRODUCE_VERSION)
        offered.api_version(MetadataRequest)

    def _send_request(self, request: Any, **options: Any) -> Any:
        """kafka.net's, which keeps nothing of ApiVersions but the versions."""
        future = super()._send_request(request, **options)
        if self._stage is Stage.API_VERSIONS:
            future.add_callback(self._features.hear)
        return future

    async def _sasl_authenticate(self, timeout_at: float | None = None) -> None:
        assert self.session is not None
        lifetime_ms = await self.session.authenticate(
            lambda request: self._send_request(request, timeout_at=timeout_at)
        )
        self._reauth.session_updated(lifetime_ms)

    @property
    def logging_in(self) -> bool:
        """Whether what comes may be the broker's reason to close."""
        return bool(self.initializing or self._reauth.is_reauthenticating)

    def _init_complete(self) -> None:
        self._stage = Stage.FIRST_REQUEST
        super()._init_complete()
        self.net.cancel(self._timer)
        self.dial.worked()
        versions = self.broker_version_data
        self.network.events.append(
            Connected(self.name, repr(self.dial), versions, self._features.levels)
        )

    def _expired(self) -> None:
        self._end(Ended(Loss.SETUP_TIMEOUT, f"not up in {self.network.setup_timeout_s:g} s"))

    # --- requests ---

    def submit(self, command: Send) -> None:
        """Hand a request over. (kafka.net's `send_request` makes a future and a timer for each.)"""
        request = command.request
        events = self.network.events if command.expects_answer else None
        answer = Responded(self.name, command.token, events)
        if self._reauth.is_reauthenticating:
            self._request_buffer.append((request, answer, float("inf")))
            return
        try:
            if request.API_VERSION is None:
                request.API_VERSION = self.broker_version_data.api_version(request)
            correlation_id = self.parser.send_request(request)
        except Exception as error:
            log.exception("%s: %s cannot be encoded", self.dial, type(request).__name__)
            self._end(Ended(Loss.UNSUPPORTED, f"{type(request).__name__}: {error}"))
            self.network.execute(command)  # is unsent now
            return
        if request.expect_response():
            self.in_flight_requests.append((correlation_id, answer, 0.0, 0.0, _NO_TIMER))
        self.transport.write(self.parser.send_bytes())

    def _maybe_throttle(self, _response: object) -> None:
        """The engine reads throttle times."""
        if self.connected:
            self._stage = Stage.SERVED

    # --- the end ---

    def abort(self) -> None:
        """Close it so that what has not left this host never will."""
        if self.dial.sock is not None and self.dial.sock.fileno() >= 0:
            reset_on_close(self.dial.sock)
        self._end(kafka_errors.Cancelled())

    def give_up(self) -> bool:
        """Close it: at once if that harms nothing. True: its last bytes are on the way out."""
        if self.in_flight_requests or self.transport is None or self.transport.is_closing():
            self.abort()
            return False
        self._timer = self.net.call_later(self.network.setup_timeout_s, self.abort)
        self.transport.close()
        return not self.closed

    def _end(self, error: BaseException) -> None:
        if self.transport is None:
            self.net.cancel(self._opening)
        self.close(error)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by kafka.net when the connection is gone; more than once, at times."""
        if self.closed:
            return
        if self.initializing or (exc is not None and not isinstance(exc, kafka_errors.Cancelled)):
            self.dial.failed()
        exc = with_advice(exc, self._stage, self.network.protocol)
        unsent = [a.token for _, a, _ in self._request_buffer if isinstance(a, Responded)]
        super().connection_lost(exc)
        self.net.cancel(self._timer)
        if self.dial.sock is not None:
            self.dial.sock.close()
        self.network.ended(self, exc, unsent)


class _Token(HeldToken, AbstractTokenProvider):  # type: ignore[misc]
    """A token that was fetched, as kafka.net wants to ask for it."""


class _Reauthenticator(SaslReauthenticator):  # type: ignore[misc]
    """KIP-368, with what it needs fetched in time and while requests still flow."""

    def schedule(self) -> None:
        """Earlier than kafka.net, at 85 %: a token may take its time, or be asked for again."""
        if self.session_lifetime_ms:
            begin_s = self.session_lifetime_ms / 1000 * random.uniform(0.7, 0.8)
            self._task = self._conn.net.call_later(begin_s, self._run)

    async def _do_reauth(self) -> None:
        link, end_s = self._conn, self.authenticated_at + self.session_lifetime_ms / 1000
        await link.session.renew(end_s, lambda: not link.closed)
        await super()._do_reauth()


# --- kafka-python's loop and transports -----------------------------------------------------------


class _Loop(NetworkSelector):  # type: ignore[misc]
    """kafka.net's loop with a wait that leaves the registration of its socket alone."""

    def _park(self) -> None:
        self._current.state = TaskState.WAIT_IO


_NO_TIMER = Task(lambda: None)
_NO_TIMER.state = TaskState.DONE


class _Transport(SteadyTransport, KafkaTCPTransport):  # type: ignore[misc]
    """A TCP socket."""

    _parked = KernelEvent("_park")


class _TLSTransport(_Transport, KafkaSSLTransport):  # type: ignore[misc]
    """The same under TLS."""

    _short_read_is_last = False  # TLS cuts its own records, and keeps what it has decrypted
