"""SASL logins: kafka-python's mechanisms, asked where they may take their time.

A mechanism may wait for a token provider (OAUTHBEARER), a ticket (GSSAPI) or an instance's
credentials (AWS_MSK_IAM), or compute for long (SCRAM). On the I/O thread that would hold every
broker up.

Rules:
* A mechanism is only called in a short-lived thread; its log lines are kept back as all of
  kafka-python's are. A token is fetched before connecting; and what the renewal of a session needs
  is fetched while requests still flow.
* The token provider is asked by one thread at a time; who asks meanwhile shares its answer. One
  that hangs for `patience_s` is left alone, and the next one to need a token asks it again; ever
  more rarely the more threads hang in it.
* Whatever a mechanism or a broker says no with becomes an `Ended`, without any secret in it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest, SaslHandshakeRequest

from outlast.engine.messages import Loss
from outlast.io.addresses import in_thread
from outlast.io.dialing import Dial, beside
from outlast.io.events import Ended
from outlast.io.quiet import quiet

log = logging.getLogger(__name__)

RENEW_AGAIN_S = 0.5  # at most; near its end after half of what is left of the session
RENEW_LAST_S = 0.02  # less than that is not halved
_PATIENCE_MAX_S = 600.0

Ask = Callable[[Any], Awaitable[Any]]
Token = tuple[str, dict[str, str]]
Credentials = Mapping[str, Any]

_ADVICE = {
    "PLAIN": "check sasl_plain_username and sasl_plain_password",
    "SCRAM-SHA-256": "check sasl_plain_username and sasl_plain_password",
    "SCRAM-SHA-512": "check sasl_plain_username and sasl_plain_password",
    "OAUTHBEARER": "check what sasl_oauth_token_provider gives: issuer, audience, expiry",
    "GSSAPI": "check the ticket, and sasl_kerberos_service_name",
    "AWS_MSK_IAM": "check the credentials that botocore finds, and their policy",
}


class Logins:
    """What all logins of one producer share.

    Args:
        config: kafka-python's keywords for a connection.
        provider: the user's token provider, or None.
        mechanisms: gives kafka-python's class for a mechanism's name.
        holder: makes a provider, as kafka-python wants one, that has this token.
        patience_s: how long a token may take.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        provider: Any,
        mechanisms: Callable[[str], Callable[..., Any]],
        holder: Callable[[str, dict[str, str]], Any],
        patience_s: float,
    ) -> None:
        self.name: str = config["sasl_mechanism"]
        self.protocol: str = config["security_protocol"]
        self.advice = _ADVICE.get(self.name, "check the sasl_ settings")
        self._config = dict(config)
        if self.name.startswith("SCRAM") and "sasl_plain_username" in config:
            self._config["sasl_plain_username"] = _escaped(config["sasl_plain_username"])
        self._make = mechanisms(self.name)
        self._holder = holder
        self._tokens = Tokens(provider, patience_s) if provider is not None else None

    def __repr__(self) -> str:
        return f"<Logins {self.name} {self.protocol}>"

    def session(self, loop: Any, dial: Dial) -> Session:
        """The logins of one connection."""
        return Session(self, loop, dial)

    async def credentials(self, loop: Any) -> Credentials:
        """What a login needs and may have to wait for. Raises Ended."""
        if self._tokens is None:
            return {}
        return {"sasl_oauth_token_provider": self._holder(*await self._tokens.fresh(loop))}

    async def begin(self, loop: Any, host: str, credentials: Credentials) -> Login:
        """A login to this host that knows what to say first. Raises Ended."""
        config = {**self._config, "host": host, **credentials}
        login = Login(self, loop)
        await login.begin(lambda: self._make(**config))
        return login


class Session:
    """One connection's logins: the first, and those that renew it (KIP-368)."""

    __slots__ = ("_credentials", "_dial", "_logins", "_loop", "_renewal")

    def __init__(self, logins: Logins, loop: Any, dial: Dial) -> None:
        self._logins = logins
        self._loop = loop
        self._dial = dial
        self._credentials: Credentials = {}
        self._renewal: Login | None = None

    def __repr__(self) -> str:
        return f"<Session {self._logins} {self._dial}>"

    async def prepare(self) -> None:
        """Before connecting: fetch the credentials. Raises Ended."""
        self._credentials = await self._logins.credentials(self._loop)

    async def authenticate(self, ask: Ask) -> int:
        """Log in: how long the session lasts, in ms; 0: for ever. Raises Ended."""
        login, self._renewal = self._renewal, None
        return await (login or await self._begin()).authenticate(ask)

    async def renew(self, end_s: float, wanted: Callable[[], bool]) -> None:
        """Begin a login that renews the session, before its end. Raises Ended.

        Where that fails, there is time to try it again while the session still lasts: a broker
        closes the connection at the first request after its end, which it knows before we do.
        """
        warned = False
        while wanted() and (failed := await self._begun_again()) is not None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise failed
            if not warned:
                warned = True
                log.warning("%s: %s; the session lasts %.1f s more", self._dial, failed, left_s)
            await self._loop.sleep(min(RENEW_AGAIN_S, max(left_s / 2, RENEW_LAST_S)))

    async def _begun_again(self) -> Ended | None:
        try:
            await self.prepare()
            self._renewal = await self._begin()
        except Ended as error:
            return error
        return None

    async def _begin(self) -> Login:
        return await self._logins.begin(self._loop, self._dial.name, self._credentials)


class Login:
    """One login, from the first word to the session."""

    __slots__ = ("_logins", "_loop", "_mechanism", "_next")

    def __init__(self, logins: Logins, loop: Any) -> None:
        self._logins = logins
        self._loop = loop
        self._mechanism: Any = None
        self._next = b""

    def __repr__(self) -> str:
        return f"<Login {self._logins.name}>"

    async def begin(self, make: Callable[[], Any]) -> None:
        """Make the mechanism, and get its first word."""

        def begin() -> None:
            self._mechanism = make()
            self._next = self._mechanism.auth_bytes()

        await self._beside(begin)

    async def authenticate(self, ask: Ask) -> int:
        """The exchange with the broker: how long the session lasts, in ms; 0: for ever."""
        name, mechanism = self._logins.name, self._mechanism
        answer = await ask(SaslHandshakeRequest(mechanism=name, max_version=1))
        self._check_handshake(answer)
        framed = answer.API_VERSION == 1
        while True:
            said = self._next
            answer = await ask(SaslAuthenticateRequest(said) if framed else SaslBytesRequest(said))
            if answer.error_code:
                raise self._refused(answer.error_code, answer.error_message)
            if not framed and mechanism.is_done():
                break  # GSSAPI: nothing comes after its last word
            await self._beside(partial(self._hear, answer.auth_bytes))
            if mechanism.is_done():
                break
        if not mechanism.is_authenticated():
            raise self._refused(None, "the exchange ended without a login")
        return answer.session_lifetime_ms or 0 if framed else 0

    def _hear(self, heard: bytes) -> None:
        self._mechanism.receive(heard)
        if not self._mechanism.is_done():
            self._next = self._mechanism.auth_bytes()

    async def _beside(self, work: Callable[[], None]) -> None:
        try:
            await beside(self._loop, lambda: _silently(work), f"SASL {self._logins.name}")
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            if type(error) is KeyError:  # SCRAM: a broker that tells an error, and no signature
                detail = "an answer that is none of this mechanism"
            text = f"SASL {self._logins.name} failed: {detail}; {self._logins.advice}"
            raise Ended(Loss.AUTHENTICATION, text) from None  # the cause may hold secrets

    def _check_handshake(self, answer: Any) -> None:
        name, protocol = self._logins.name, self._logins.protocol
        if answer.error_code == kafka_errors.IllegalSaslStateError.errno:
            other = "PLAINTEXT" if protocol == "SASL_PLAINTEXT" else "SSL"
            raise Ended(
                Loss.AUTHENTICATION,
                f"this port wants no SASL, and security_protocol={protocol!r} brings it: set "
                f"{other!r}, or take the port of a SASL listener",
            )
        if name in answer.mechanisms and not answer.error_code:
            return
        offered = ", ".join(sorted(answer.mechanisms)) or "none"
        raise Ended(
            Loss.AUTHENTICATION,
            f"sasl_mechanism={name!r} is not enabled on this listener; it has: {offered}",
        )

    def _refused(self, code: int | None, message: str | None) -> Ended:
        kind = kafka_errors.for_code(code).__name__ if code else "no error code"
        text = f"SASL {self._logins.name} was refused: {message or 'no reason given'} ({kind})"
        return Ended(Loss.AUTHENTICATION, f"{text}; {self._logins.advice}")


class Tokens:
    """The user's token provider, which may be slow, may hang, and need not be thread-safe."""

    __slots__ = ("_asked", "_patience_s", "_provider", "_threads")

    def __init__(self, provider: Any, patience_s: float) -> None:
        self._provider = provider
        self._patience_s = patience_s
        self._asked: _Asked | None = None
        self._threads = 0  # that ask it, and have no answer

    def __repr__(self) -> str:
        return f"<Tokens asking={self._asked is not None}>"

    async def fresh(self, loop: Any) -> Token:
        """A token that was fetched after this was called, or was being fetched. Raises Ended."""
        asked = self._asked
        if asked is None or time.monotonic() - asked.since_s > self._patience():
            asked = self._asked = _Asked()
            self._ask(loop, asked)
        waiter = Future()
        asked.waiters.append(waiter)
        try:
            token, error = await waiter
        finally:
            asked.waiters.remove(waiter)  # of a connection that was given up, at times
        if error is not None:
            raise Ended(Loss.AUTHENTICATION, f"no OAuth token: {error!r}") from None
        got: Token = token
        return got

    def _patience(self) -> float:
        longer_s = self._patience_s * 2.0 ** min(self._threads - 1, 32)
        return max(self._patience_s, min(longer_s, _PATIENCE_MAX_S))

    def _ask(self, loop: Any, asked: _Asked) -> None:
        self._threads += 1

        def fetch() -> None:
            token, error = None, None
            try:
                token = (self._provider.token(), dict(self._provider.extensions()))
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(lambda: self._answer(asked, token, error))

        in_thread(fetch, "OAuth token")

    def _answer(self, asked: _Asked, token: Token | None, error: BaseException | None) -> None:
        self._threads -= 1
        if self._asked is asked:
            self._asked = None
        for waiter in list(asked.waiters):
            waiter.success((token, error))


class HeldToken:
    """The ways in which kafka.net's mechanism asks for a token that is already here."""

    def __init__(self, token: str, extensions: dict[str, str]) -> None:
        self._held = token, extensions

    def token(self) -> str:
        """The token."""
        return self._held[0]

    def extensions(self) -> dict[str, str]:
        """What goes with it."""
        return self._held[1]


class _Asked:
    """A question to the provider that is under way."""

    __slots__ = ("since_s", "waiters")

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        self.waiters: list[Future] = []


def _silently(work: Callable[[], None]) -> None:
    with quiet.here():
        work()


def _escaped(username: str) -> str:
    """RFC 5802: in a SCRAM user name '=' and ',' stand for something else."""
    return username.replace("=", "=3D").replace(",", "=2C")
