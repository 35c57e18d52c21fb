"""TLS and SASL on a real Kafka: every mechanism on every transport, with good and bad credentials.

Each bad row says what is wrong within `max_block_ms`, keeps the log short, and delivers with the
same producer once it is mended. In every row all that a user can see is searched for secrets: log
lines down to DEBUG, exceptions and their causes, reprs, spans, metrics and health.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from kafka.net.sasl.oauth import AbstractTokenProvider

from outlast import BlockedError, KafkaProducer
from tests.net.proxies import HttpConnect, Proxy, Relay, Socks5
from tests.real.kafka_jars import need_kafka
from tests.real.secure_kafka import (
    HOST,
    LISTENERS,
    MECHANISMS,
    ODD_USER,
    PASSWORD,
    REAUTH_MS,
    USER,
    SecureKafka,
)
from tests.real.security import (
    MARK,
    Eavesdropper,
    Provider,
    Watched,
    listening,
    secrets_in,
    token,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

TOPIC = "t"
VALUE = f"record {MARK}".encode()
MAX_BLOCK_S = 0.6
LOUD_LINES_MAX = 4  # of WARNING and above, while something is wrong for MAX_BLOCK_S
MENDED_S = 5.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    need_kafka()
    cluster = SecureKafka(tmp_path_factory.mktemp("secure-kafka"))
    try:
        cluster.open()
        cluster.create_topic(TOPIC, nodes=(1, 2))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def log() -> Iterator[Eavesdropper]:
    with listening() as handler:
        yield handler


class Case:
    """One producer on one listener, from first to last."""

    def __init__(self, kafka: SecureKafka, log: Eavesdropper, **settings: Any) -> None:
        self.log = log
        self.secrets = [PASSWORD]
        self.provider = settings.get("sasl_oauth_token_provider")
        if settings["security_protocol"].endswith("SSL"):
            settings.setdefault("ssl_cafile", str(kafka.authority.file))
        self.watched = Watched(**{"max_block_ms": MAX_BLOCK_S * 1000, **settings})

    def send(self, topic: str = TOPIC, partition: int = 0) -> Any:
        headers = [("h", VALUE)]
        return self.watched.producer.send(
            topic, VALUE, key=VALUE, headers=headers, partition=partition
        )

    def delivers(self) -> None:
        for partition in (0, 1):  # on both nodes
            assert self.send(partition=partition).get(10).offset >= 0

    def is_told(self, *words: str) -> None:
        """`send` says why it cannot, in time and without a flood of log lines."""
        loud, begun_s = self.log.loud, time.monotonic()
        with pytest.raises(BlockedError) as caught:
            self.send()
        assert time.monotonic() - begun_s < MAX_BLOCK_S + 1.0
        self.watched.failed(caught.value)
        for word in words:
            assert word in str(caught.value)
        assert 1 <= self.log.loud - loud <= LOUD_LINES_MAX
        assert any(words[0] in line for line in self.log.lines if "outlast" in line)

    def comes_back(self) -> None:
        """What was wrong is mended: the same producer delivers."""
        end_s = time.monotonic() + MENDED_S
        while not self._sends():
            assert time.monotonic() < end_s, "it does not come back"
        self.delivers()

    def _sends(self) -> bool:
        try:
            self.send()
        except BlockedError:
            return False
        return True


@contextmanager
def case(kafka: SecureKafka, log: Eavesdropper, listener: str, **settings: Any) -> Iterator[Case]:
    settings.setdefault("bootstrap_servers", kafka.bootstrap(listener))
    settings.setdefault("security_protocol", LISTENERS[listener])
    made = Case(kafka, log, **settings)
    try:
        yield made
    finally:
        made.watched.producer.close(2)
    if made.provider is not None:
        made.secrets += made.provider.given
    assert secrets_in(made.watched.everything(), *made.secrets) == []
    assert secrets_in("\n".join(log.lines), *made.secrets) == []


def login(mechanism: str, **more: Any) -> dict[str, Any]:
    """Settings of a good login."""
    if mechanism == "OAUTHBEARER":
        more.setdefault("sasl_oauth_token_provider", Provider())
    else:
        more = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD, **more}
    return {"sasl_mechanism": mechanism, **more}


# --- SASL -----------------------------------------------------------------------------------------

both_transports = pytest.mark.parametrize("listener", ["LOGIN", "BOTH"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
@both_transports
def test_a_good_login_delivers(
    kafka: SecureKafka, log: Eavesdropper, listener: str, mechanism: str
) -> None:
    kafka.set_scram(USER, PASSWORD)
    with case(kafka, log, listener, **login(mechanism)) as made:
        made.delivers()
        assert log.loud == 0


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@both_transports
def test_a_wrong_scram_password_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper, listener: str, mechanism: str
) -> None:
    user = f"{mechanism}-{listener}"
    kafka.set_scram(user, "another one")
    with case(kafka, log, listener, **login(mechanism, sasl_plain_username=user)) as made:
        made.is_told(f"SASL {mechanism} was refused", "check sasl_plain_username and")
        kafka.set_scram(user, PASSWORD)
        made.comes_back()


@both_transports
def test_a_password_that_is_changed_later_is_told_by_the_future_and_mended(
    kafka: SecureKafka, log: Eavesdropper, listener: str
) -> None:
    user = f"later-{listener}"
    kafka.set_scram(user, PASSWORD)
    settings = login("SCRAM-SHA-512", sasl_plain_username=user)
    settings |= {"delivery_timeout_ms": 1000, "request_timeout_ms": 1000}
    with (
        Socks5() as proxy,
        case(
            kafka, log, listener, proxy_url=f"socks5h://127.0.0.1:{proxy.port}", **settings
        ) as made,
    ):
        made.delivers()
        kafka.set_scram(user, "another one")
        proxy.cut()
        begun_s = time.monotonic()
        with pytest.raises(kafka_errors.KafkaTimeoutError) as caught:
            made.send().get(10)
        assert time.monotonic() - begun_s < 3.0
        made.watched.failed(caught.value)
        assert "SASL SCRAM-SHA-512 was refused" in str(caught.value)
        kafka.set_scram(user, PASSWORD)
        made.comes_back()


@both_transports
def test_an_unknown_plain_user_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper, listener: str
) -> None:
    with Relay(kafka.place(listener)) as relay:
        settings = login("PLAIN", sasl_plain_username="late")
        bootstrap = f"{HOST}:{relay.port}"
        with case(kafka, log, listener, bootstrap_servers=bootstrap, **settings) as made:
            made.is_told("SASL PLAIN was refused: Authentication failed", "check sasl_plain_us")
            relay.target = kafka.place(f"{listener}2")  # there the user is known
            made.comes_back()


@both_transports
def test_an_expired_token_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper, listener: str
) -> None:
    provider = Provider(lasts_s=-100)
    settings = login("OAUTHBEARER", sasl_oauth_token_provider=provider)
    with case(kafka, log, listener, **settings) as made:
        made.is_told("SASL OAUTHBEARER was refused", "sasl_oauth_token_provider")
        provider.lasts_s = 600
        made.comes_back()


def test_a_token_provider_that_fails_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    provider = Provider()
    provider.failing = True
    settings = login("OAUTHBEARER", sasl_oauth_token_provider=provider)
    with case(kafka, log, "LOGIN", **settings) as made:
        made.is_told("no OAuth token: RuntimeError('the identity server is away')")
        provider.failing = False
        made.comes_back()


def test_a_user_name_with_characters_that_mean_something_to_scram(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    kafka.set_scram(ODD_USER, PASSWORD)
    settings = login("SCRAM-SHA-512", sasl_plain_username=ODD_USER)
    with case(kafka, log, "LOGIN", **settings) as made:
        made.delivers()


def test_a_mechanism_that_the_listener_does_not_have(kafka: SecureKafka, log: Eavesdropper) -> None:
    with case(kafka, log, "LOGIN_PLAIN_ONLY", **login("SCRAM-SHA-256")) as made:
        made.is_told("sasl_mechanism='SCRAM-SHA-256' is not enabled", "it has: PLAIN")


def test_a_session_is_renewed_before_it_ends_though_the_provider_fails_at_first(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    """B83: no connection is lost over it, and no record waits. Over plaintext and TLS at once."""
    plain, secret = (login("OAUTHBEARER", sasl_oauth_token_provider=Provider()) for _ in range(2))
    with case(kafka, log, "LOGIN2", **plain) as one, case(kafka, log, "BOTH2", **secret) as two:
        both = (one, two)
        for made in both:
            made.delivers()
            made.provider.failing = True
        first = [len(made.provider.asked) for made in both]
        end_s = time.monotonic() + 2.2 * REAUTH_MS / 1000
        slowest_s = 0.0
        while time.monotonic() < end_s:
            for made, before in zip(both, first, strict=True):
                begun_s = time.monotonic()
                made.delivers()
                slowest_s = max(slowest_s, time.monotonic() - begun_s)
                if len(made.provider.asked) > before:
                    made.provider.failing = False  # asked once in vain
            time.sleep(0.02)
        for made, before in zip(both, first, strict=True):
            assert len(made.provider.asked) - before >= 3  # once in vain, and twice renewed
            assert made.watched.producer.gaps() == []
        assert slowest_s < 1.0
        assert not [line for line in log.lines if " outlast: connection" in line]


def test_a_provider_that_hangs_holds_up_no_broker_that_is_connected(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    provider = Provider()
    settings = login("OAUTHBEARER", sasl_oauth_token_provider=provider)
    with case(kafka, log, "LOGIN", max_block_ms=10_000, **settings) as made:
        assert made.send(partition=0).get(10).offset >= 0  # node 1 is connected, node 2 is not
        provider.go.clear()
        late = made.send(partition=1)
        begun_s, slowest_s = time.monotonic(), 0.0
        while time.monotonic() < begun_s + 3.0:
            sent_s = time.monotonic()
            assert made.send(partition=0).get(10).offset >= 0
            slowest_s = max(slowest_s, time.monotonic() - sent_s)
            time.sleep(0.02)
        assert not late.is_done
        assert slowest_s < 1.0
        provider.go.set()
        assert late.get(10).offset >= 0
        assert provider.most_at_once == 1  # nobody promised that it is thread-safe


# --- TLS ------------------------------------------------------------------------------------------


def own_context(kafka: SecureKafka) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(kafka.authority.file))
    context.load_cert_chain(kafka.authority.issue("in-a-context").file)
    return {"ssl_context": context, "ssl_cafile": None}


def own_certificate(kafka: SecureKafka) -> dict[str, Any]:
    return {"ssl_certfile": str(kafka.authority.issue("client").file)}


def encrypted_key(kafka: SecureKafka) -> dict[str, Any]:
    issued = kafka.authority.issue("encrypted")
    key = str(issued.encrypted_key(PASSWORD))
    return {"ssl_certfile": str(issued.file), "ssl_keyfile": key, "ssl_password": PASSWORD}


TLS_ROWS: list[tuple[str, Callable[[SecureKafka], dict[str, Any]]]] = [
    ("TLS", lambda _: {}),
    ("TLS", lambda kafka: {"ssl_crlfile": kafka.authority.revoked("nobody")}),
    ("TLS", lambda _: {"ssl_ciphers": "ECDHE-RSA-AES256-GCM-SHA384"}),
    ("TLS", lambda _: {"bootstrap_servers": "127.0.0.1:{port}"}),
    ("MUTUAL", own_certificate),
    ("MUTUAL", encrypted_key),
    ("MUTUAL", own_context),
]


@pytest.mark.parametrize(("listener", "settings"), TLS_ROWS)
def test_tls_delivers(
    kafka: SecureKafka, log: Eavesdropper, listener: str, settings: Callable[..., dict[str, Any]]
) -> None:
    given = settings(kafka)
    if "bootstrap_servers" in given:
        given["bootstrap_servers"] = f"127.0.0.1:{kafka.place(listener)[1]}"
    with case(kafka, log, listener, **given) as made:
        made.delivers()
        assert log.loud == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("expired", ("certificate has expired", "the broker needs a new one")),
        ("elsewhere", ("Hostname mismatch", "'localhost'", "ssl_check_hostname=False")),
        ("unknown", ("unable to get local issuer certificate", "ssl_cafile")),
        ("revoked", ("certificate revoked", "ssl_crlfile")),
    ],
)
def test_a_bad_certificate_of_the_broker_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper, name: str, words: tuple[str, ...]
) -> None:
    revoked = kafka.authority.issue("revoked", HOST)
    bad = {
        "expired": kafka.expired,
        "elsewhere": kafka.elsewhere,
        "unknown": kafka.stranger.issue("unknown", HOST),
        "revoked": revoked,
    }[name]
    kafka.put_on_shaky(bad)
    crl = str(kafka.authority.revoked("some", revoked))
    with case(kafka, log, "SHAKY", ssl_crlfile=crl) as made:
        made.is_told("the broker's certificate is not accepted", *words)
        kafka.put_on_shaky(kafka.good)
        made.comes_back()


def test_a_certificate_with_another_name_may_be_trusted(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    kafka.put_on_shaky(kafka.elsewhere)
    with case(kafka, log, "SHAKY", ssl_check_hostname=False) as made:
        made.delivers()


@pytest.mark.parametrize("bad", ["a stranger's", "none"])
def test_a_bad_certificate_of_the_client_is_told_and_mended(
    kafka: SecureKafka, log: Eavesdropper, bad: str, tmp_path: Path
) -> None:
    """Files may be replaced while the producer runs."""
    if bad == "none":
        with case(kafka, log, "MUTUAL") as made:
            made.is_told("the broker wants a client's certificate", "ssl_certfile")
        return
    path = kafka.stranger.issue("client").copy_to(tmp_path / "client.pem")
    with case(kafka, log, "MUTUAL", ssl_certfile=str(path)) as made:
        made.is_told("the broker does not take the client's certificate", "ssl_certfile")
        kafka.authority.issue("client").copy_to(path)
        made.comes_back()


# --- the wrong way to talk ------------------------------------------------------------------------

WRONG = [
    ("PLAINTEXT", "TLS", "the port answers in TLS: set security_protocol to 'SSL'"),
    ("SSL", "ADMIN", "does the port speak TLS?"),
    ("PLAINTEXT", "LOGIN", "does the listener want SASL?"),
    ("SSL", "BOTH", "does the listener want SASL?"),
    ("PLAINTEXT", "BOTH", "the port answers in TLS"),
    ("SASL_PLAINTEXT", "ADMIN", "this port wants no SASL"),
    ("SASL_SSL", "TLS", "this port wants no SASL"),
    ("SASL_PLAINTEXT", "BOTH", "the port answers in TLS"),
    ("SASL_SSL", "LOGIN", "does the port speak TLS?"),
]


@pytest.mark.parametrize(("protocol", "listener", "words"), WRONG)
def test_a_wrong_security_protocol_is_told(
    kafka: SecureKafka, log: Eavesdropper, protocol: str, listener: str, words: str
) -> None:
    more = login("PLAIN") if protocol.startswith("SASL") else {}
    with case(kafka, log, listener, security_protocol=protocol, **more) as made:
        made.is_told(words, "security_protocol")


# --- proxies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scheme", "names", "listener", "setting"),
    [
        (Socks5, "socks5", False, "TLS", "proxy_url"),
        (Socks5, "socks5", False, "BOTH", "socks5_proxy"),
        (Socks5, "socks5h", True, "TLS", "socks5_proxy"),
        (Socks5, "socks5h", True, "BOTH", "proxy_url"),
        (HttpConnect, "http", True, "TLS", "proxy_url"),
        (HttpConnect, "http", True, "BOTH", "proxy_url"),
    ],
)
def test_through_a_proxy_with_a_login(
    kafka: SecureKafka,
    log: Eavesdropper,
    kind: type[Proxy],
    scheme: str,
    names: bool,
    listener: str,
    setting: str,
) -> None:
    more = login("PLAIN") if listener == "BOTH" else {}
    secret = f"p@ss:w/rd {MARK}"
    with kind(login=("me", secret)) as proxy:
        url = f"{scheme}://me:p%40ss%3Aw%2Frd%20{MARK}@127.0.0.1:{proxy.port}"
        with case(kafka, log, listener, **{setting: url}, **more) as made:
            made.secrets += [secret, f"p%40ss%3Aw%2Frd%20{MARK}"]
            made.delivers()
        assert {host for host, _ in proxy.asked} == ({HOST} if names else {"127.0.0.1"})


# --- the page -------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_page_work(kafka: SecureKafka, example: str) -> None:
    kafka.set_scram(USER, PASSWORD)
    client = kafka.authority.issue("client-of-the-page")
    with Socks5(login=("me", "p@ssword")) as proxy:
        meant = {
            "broker1:9093": kafka.bootstrap("TLS"),
            "broker1:9094": kafka.bootstrap("MUTUAL"),
            "broker1:9095": kafka.bootstrap("LOGIN"),
            "broker1:9096": kafka.bootstrap("BOTH"),
            "proxy1:1080": f"127.0.0.1:{proxy.port}",
            '"ca.pem"': repr(str(kafka.authority.file)),
            '"client.pem"': repr(str(client.file)),
            '"client.key"': repr(str(client.encrypted_key(PASSWORD))),
        }
        for word, meaning in meant.items():
            example = example.replace(word, meaning)
        names: dict[str, Any] = {
            "KafkaProducer": KafkaProducer,
            "AbstractTokenProvider": AbstractTokenProvider,
            "fetch_token": token,
            "ssl": ssl,
            "password": PASSWORD,
            "key_password": PASSWORD,
        }
        exec(example, names)
        with names["producer"] as producer:
            assert producer.send(TOPIC, b"v").get(10).offset >= 0
        assert ("proxy_url" in example) == bool(proxy.asked)


# --- access lists ---------------------------------------------------------------------------------


def acl(
    permission: ACLPermissionType, operation: ACLOperation, kind: ResourceType, name: str, user: str
) -> ACL:
    return ACL(f"User:{user}", "*", operation, permission, ResourcePattern(kind, name))


def denied(operation: ACLOperation, kind: ResourceType, name: str, user: str) -> ACL:
    return acl(ACLPermissionType.DENY, operation, kind, name, user)


def test_a_forbidden_topic_disturbs_no_other_and_may_be_allowed_later(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    kafka.create_topic("forbidden", nodes=(1,))
    no = denied(ACLOperation.WRITE, ResourceType.TOPIC, "forbidden", USER)
    with kafka.acls(no), case(kafka, log, "LOGIN", **login("PLAIN")) as made:
        made.delivers()
        slowest_s = 0.0
        for _ in range(30):
            begun_s = time.monotonic()
            fine, refused = made.send(), made.send("forbidden")
            assert fine.get(10).offset >= 0
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            with pytest.raises(kafka_errors.TopicAuthorizationFailedError) as caught:
                refused.get(10)
            made.watched.failed(caught.value)
            assert "access lists must allow this user" in str(caught.value)
        assert slowest_s < 0.5
        assert log.loud <= LOUD_LINES_MAX
        kafka.forget(no)
        assert made.send("forbidden").get(10).offset >= 0


def test_without_the_right_to_number_records_the_first_one_says_so(
    kafka: SecureKafka, log: Eavesdropper
) -> None:
    """B54. Any topic that may be written to gives that right too, so none may."""
    user = "numberless"
    kafka.set_scram(user, PASSWORD)
    acls = [
        denied(ACLOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster", user),
        denied(ACLOperation.WRITE, ResourceType.TOPIC, "*", user),
        acl(ACLPermissionType.ALLOW, ACLOperation.DESCRIBE, ResourceType.TOPIC, TOPIC, user),
    ]
    settings = login("SCRAM-SHA-256", sasl_plain_username=user)
    with kafka.acls(*acls), case(kafka, log, "LOGIN", **settings) as made:
        with pytest.raises(kafka_errors.ClusterAuthorizationFailedError) as caught:
            made.send().get(10)
        made.watched.failed(caught.value)
        assert "enable_idempotence" in str(caught.value)
        assert log.loud <= LOUD_LINES_MAX
        kafka.forget(*acls)
        made.comes_back()
