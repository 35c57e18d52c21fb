"""Every setting of the producer, once: its name, default, check and meaning.

`SETTINGS` is the table; the reference page of the docs is made from it. `Config` takes keywords as
users write them, checks each on its own, then together, and gives

* `values`: every setting under kafka-python's name, normalised as kafka-python does it;
* `settings`: the engine's share, in seconds and bytes.

Rules: names, defaults and exception classes are kafka-python's, except where a row says `differs`.
What kafka-python lets pass and then hangs or crashes on (acks='1', linger_ms=-1) is refused here.
An error names the setting, the value and what is allowed. Importing and using this file opens
nothing and starts nothing.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import math
import selectors
import socket
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaProducer as _KafkaPythonProducer
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.partitioner import DefaultPartitioner
from kafka.serializer import Serializer, SerializeWrapper

from outlast import checks
from outlast.checks import ANYTHING, CALLABLE, FLAG, PATH, TEXT, Check, Choice, Duck, Number
from outlast.engine.settings import Settings
from outlast.errors import ConfigurationError, MissingCodecError

log = logging.getLogger(__name__)

NEWEST_API_VERSION = (4, 3)  # what `producer.config` shows until a broker has answered
OLDEST_API_VERSION = (0, 11)  # Produce v3: record batches of format 2
ZSTD_API_VERSION = (2, 1)
IDEMPOTENT_IN_FLIGHT = 5  # a broker remembers five batches of a producer (S1)
LONGEST_S = 1e8  # three years: float('inf') becomes this, so that deadlines can be added up


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    default: Any
    check: Check
    doc: str
    differs: str = ""  # from kafka-python, and why


class _DefaultRegistry:
    """Stands for `prometheus_client.REGISTRY`, which is looked up when a producer is built."""

    def __repr__(self) -> str:
        return "prometheus_client.REGISTRY"

    def register(self, collector: object) -> None:
        """Here for the check only."""


DEFAULT_REGISTRY = _DefaultRegistry()

_MS, _LONG_MS, _SOME_MS = Number(), Number(infinite=True), Number(low=1)
_INT32_MS = Number(low=1, high=2**31 - 1, whole=True)  # on the wire
_BYTES = _COUNT = Number(low=1, whole=True)
_SOCKET_BYTES = Number(high=2**31 - 1, whole=True, optional=True)  # a C int
_SERIALIZER = Duck(("serialize",), "a kafka.Serializer, a callable or None", or_callable=True)
_PARTITIONER = Duck(("partition",), "a Partitioner or a callable", optional=False, or_callable=True)
_PROTOCOLS = Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
_MECHANISMS = Choice(
    (None, "PLAIN", "GSSAPI", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512", "AWS_MSK_IAM")
)
_NEW = "new"

# fmt: off
_GROUPS: dict[str, tuple[Setting, ...]] = {
    "Identity": (
        Setting("bootstrap_servers", "localhost", checks.BOOTSTRAP,
                "Addresses of some brokers, the first to be asked; port 9092 if none is given."),
        Setting("client_id", None, checks.WIRE_TEXT,
                "Name of this client in requests and broker logs; None: kafka-python-producer-N."),
    ),
    "Records": (
        Setting("key_serializer", None, _SERIALIZER, "Turns keys into bytes."),
        Setting("value_serializer", None, _SERIALIZER, "Turns values into bytes."),
        Setting("partitioner", DefaultPartitioner(), _PARTITIONER,
                "Chooses the partition of records that name none. Default: murmur2 of the key; "
                "without a key one partition at a time, never one that is held up by a gap."),
    ),
    "Delivery": (
        Setting("acks", -1, Choice((0, 1, -1), aliases=(("all", -1),)),
                "Who must have a record before it counts as written: 0 nobody, 1 the leader, "
                "'all' (-1) every in-sync replica."),
        Setting("enable_idempotence", True, FLAG,
                "No duplicates and no reordering by retries. Needs acks='all', retries > 0 and at "
                "most 5 in flight; if one of these is set otherwise, it is switched off with a "
                "warning, or is an error if idempotence was asked for."),
        Setting("retries", math.inf, Number(whole=True, infinite=True),
                "How often a batch may be tried again. Waiting for a leader is not counted.",
                "moves of the leader and lost connections do not use it up"),
        Setting("delivery_timeout_ms", 120_000, _LONG_MS,
                "From send() until the record is delivered or failed, at most. At least "
                "linger_ms + request_timeout_ms."),
        Setting("request_timeout_ms", 30_000, _SOME_MS,
                "How long a request may go unanswered."),
        Setting("ack_wait_ms", 1_000, _SOME_MS,
                "How long a broker may hold back an acks='all' answer before it must say who is "
                "stuck.", _NEW),
        Setting("silence_timeout_ms", 1_000, _SOME_MS,
                "After how long without any answer a broker is suspected and probed.", _NEW),
        Setting("retry_backoff_ms", 100, _MS, "First pause before the same batch goes out again."),
        Setting("retry_backoff_max_ms", 1_000, _MS, "Longest such pause.", _NEW),
        Setting("retry_wait", None, CALLABLE,
                "A tenacity wait_* instead of the retry_backoff settings.", _NEW),
        Setting("retry_stop", None, CALLABLE, "A tenacity stop_* beside `retries`.", _NEW),
        Setting("max_in_flight_requests_per_connection", 5, _COUNT,
                "Produce requests on their way to one broker at a time."),
        Setting("max_block_ms", 60_000, _LONG_MS,
                "How long send() and partitions_for() may wait for room or metadata; 0: never."),
    ),
    "Batching": (
        Setting("buffer_memory", 33_554_432, _BYTES,
                "Bytes of all records not yet settled, at most; a full buffer makes send() wait.",
                _NEW),
        Setting("batch_size", 16_384, Number(whole=True),
                "Bytes of a batch; 0: one record a batch."),
        Setting("linger_ms", 0, _MS, "How long a batch waits for more records."),
        Setting("compression_type", None, Choice((None, "gzip", "snappy", "lz4", "zstd")),
                "Codec for whole batches."),
        Setting("max_request_size", 1_048_576, _BYTES, "Bytes of a request and so of a record."),
    ),
    "Transactions": (
        Setting("transactional_id", None, checks.TRANSACTIONAL_ID,
                "Records go out in transactions under this id; None: without."),
        Setting("transaction_timeout_ms", 60_000, _INT32_MS,
                "After so long without an end the coordinator aborts a transaction."),
    ),
    "Metadata": (
        Setting("metadata_max_age_ms", 300_000, _LONG_MS, "Age at which metadata is asked anew."),
        Setting("metadata_wait", None, CALLABLE,
                "A tenacity wait_* between questions for a missing leader.", _NEW),
        Setting("allow_auto_create_topics", True, FLAG, "May asking for a topic create it?"),
        Setting("client_dns_lookup", "use_all_dns_ips",
                Choice(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
                "Names are resolved for each connect, and all their addresses tried in turn; the "
                "second way calls a bootstrap server by the canonical name of its address, as "
                "Kerberos and certificates may want it."),
        Setting("bootstrap_timeout_ms", 30_000, _MS,
                "How long calls may block until a broker is first reached, if it is given and less "
                "than max_block_ms. The constructor never waits.",
                "the constructor does not wait; calls do, and only if it is given"),
        Setting("api_version", None, checks.API_VERSION,
                "Version of the brokers; None: ask them. One older than (0, 11) switches "
                "idempotence off, and brokers are spoken to as if they were 0.11."),
    ),
    "Connections": (
        Setting("connections_max_idle_ms", 540_000, _LONG_MS, "Idle connections are closed then."),
        Setting("reconnect_backoff_ms", 50, _MS, "First pause after a connect that failed."),
        Setting("reconnect_backoff_max_ms", 1_000, _MS, "Longest such pause.",
                "kafka-python: 30 000, which keeps a producer off a broker that is back"),
        Setting("reconnect_wait", None, CALLABLE,
                "A tenacity wait_* instead of the reconnect_backoff settings.", _NEW),
        Setting("socket_connection_setup_timeout_ms", 10_000, _SOME_MS,
                "One deadline over TCP, TLS, ApiVersions and SASL of a new connection.", _NEW),
        Setting("receive_message_max_bytes", 100_000_000, _BYTES, "Bytes of an answer, at most."),
        Setting("receive_buffer_bytes", None, _SOCKET_BYTES, "SO_RCVBUF; None: the system's."),
        Setting("send_buffer_bytes", None, _SOCKET_BYTES, "SO_SNDBUF; None: the system's."),
        Setting("socket_options", [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                checks.SOCKET_OPTIONS, "Options for every socket."),
        Setting("proxy_url", None, checks.PROXY_URL, "Proxy for every connection."),
        Setting("socks5_proxy", None, TEXT, "Deprecated: use proxy_url."),
        Setting("selector", selectors.DefaultSelector, CALLABLE, "Class of the I/O selector."),
        Setting("kafka_client", _KafkaPythonProducer.DEFAULT_CONFIG["kafka_client"], checks.FACTORY,
                "Gives a network client of kafka-python's kind, which makes the transports.",
                "nothing but its connection manager's transports and its event loop is used"),
    ),
    "Security": (
        Setting("security_protocol", "PLAINTEXT", _PROTOCOLS, "TLS or not, SASL or not."),
        Setting("ssl_context", None, Duck(("wrap_socket",), "an SSLContext or None"),
                "Used as it is, instead of the other ssl_ settings."),
        Setting("ssl_check_hostname", True, FLAG, "Must the certificate name the broker's host?"),
        Setting("ssl_cafile", None, PATH, "Authorities to trust, as PEM."),
        Setting("ssl_certfile", None, PATH, "The client's certificate, as PEM."),
        Setting("ssl_keyfile", None, PATH, "The client's private key, as PEM."),
        Setting("ssl_crlfile", None, PATH, "Revoked certificates, as PEM."),
        Setting("ssl_password", None, ANYTHING, "Password of the private key."),
        Setting("ssl_ciphers", None, TEXT, "Ciphers, in OpenSSL's list format."),
        Setting("sasl_mechanism", None, _MECHANISMS, "Needed by the SASL_ protocols."),
        Setting("sasl_plain_username", None, TEXT, "User name for PLAIN and SCRAM."),
        Setting("sasl_plain_password", None, TEXT, "Password for PLAIN and SCRAM."),
        Setting("sasl_kerberos_name", None, ANYTHING, "A gssapi.Name or its string."),
        Setting("sasl_kerberos_service_name", "kafka", TEXT, "Service name for GSSAPI."),
        Setting("sasl_kerberos_domain_name", None, TEXT, "Domain for GSSAPI; None: the broker's."),
        Setting("sasl_oauth_token_provider", None,
                Duck(("token", "extensions"), "an AbstractTokenProvider or None"),
                "Gives tokens for OAUTHBEARER."),
    ),
    "Observing": (
        Setting("on_gap", None, CALLABLE,
                "Called with each `Gap` when its outcome is final, on the I/O thread.", _NEW),
        Setting("on_undelivered", None, CALLABLE,
                "Called with each failed record as an `Undelivered`, on the I/O thread.", _NEW),
        Setting("metrics", "prometheus", Choice(("prometheus", "otel", None)),
                "Who shows metrics: a Prometheus registry, OpenTelemetry or nobody.", _NEW),
        Setting("metrics_registry", DEFAULT_REGISTRY,
                Duck(("register",), "a prometheus_client registry or None"),
                "Where the Prometheus metrics are registered; None: no such metrics.", _NEW),
        Setting("metrics_labels", {}, checks.METRICS_LABELS,
                "Labels for every metric, such as {'app': 'billing'}.", _NEW),
        Setting("meter_provider", None, Duck(("get_meter",), "a MeterProvider or None"),
                "OpenTelemetry provider for metrics='otel'; None: the global one.", _NEW),
        Setting("partition_metrics_limit", 1_000, Number(whole=True),
                "Partitions with metrics of their own; others share those of '_other'.", _NEW),
        Setting("tracer_provider", None, Duck(("get_tracer",), "a TracerProvider or None"),
                "OpenTelemetry provider for spans of gaps and sends; None: the global one.", _NEW),
        Setting("send_spans", "with_parent", Choice(("with_parent", "always", "never")),
                "Which records get a span from send() to their outcome: those whose sender has a "
                "current span, all or none.", _NEW),
        Setting("metric_reporters", [], checks.METRIC_REPORTERS,
                "kafka-python metrics reporters: classes, instantiated."),
        Setting("metrics_enabled", True, FLAG, "Does producer.metrics() give figures?"),
        Setting("metrics_num_samples", 2, _COUNT, "Samples for producer.metrics()."),
        Setting("metrics_sample_window_ms", 30_000, _SOME_MS, "Age of such a sample, at most."),
    ),
}
# fmt: on

SETTINGS: dict[str, Setting] = {row.name: row for rows in _GROUPS.values() for row in rows}
KAFKA_PYTHONS = tuple(row.name for row in SETTINGS.values() if row.differs != _NEW)
DEFAULTS: dict[str, Any] = {row.name: row.default for row in SETTINGS.values()}

CODECS: dict[str | None, tuple[int, Callable[[], bool]]] = {
    None: (0, lambda: True),
    "gzip": (1, has_gzip),
    "snappy": (2, has_snappy),
    "lz4": (3, has_lz4),
    "zstd": (4, has_zstd),
}

_client_ids = itertools.count(1)


def settings(**keywords: Any) -> Settings:
    """The engine's settings for keywords as users write them. For tests."""
    return Config(**keywords).settings


class Config:
    """Checked settings of one producer. `defaults` go before the table's, and are checked already.

    Raises:
        ConfigurationError: a keyword is unknown, a value not allowed, or two exclude each other.
        ConfigurationTypeError: a value has the wrong type.
        MissingCodecError: the library for `compression_type` is not installed.
    """

    __slots__ = ("settings", "values")

    def __init__(self, defaults: Mapping[str, Any] = DEFAULTS, /, **keywords: Any) -> None:
        _refuse_unknown(keywords)
        values = {**DEFAULTS, **defaults}
        for name, value in keywords.items():
            values[name] = SETTINGS[name].check(name, value)
        _check_times(values)
        _check_compression(values)
        _check_security(values)
        checks.one_metrics_backend(values, default_registry=DEFAULT_REGISTRY)
        _settle_idempotence(values, keywords)
        _wrap_serializers(values)
        if values["client_id"] is None:
            values["client_id"] = f"kafka-python-producer-{next(_client_ids)}"
        self.values: dict[str, Any] = values
        self.settings: Settings = _for_the_engine(values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        changed = {
            name: checks.shown(name, value)
            for name, value in self.values.items()
            if value is not DEFAULTS.get(name)
        }
        return f"Config({', '.join(f'{name}={text}' for name, text in changed.items())})"


def _refuse_unknown(keywords: Mapping[str, Any]) -> None:
    unknown = [name for name in keywords if name not in SETTINGS]
    if not unknown:
        return
    hints = []
    for name in unknown:
        near = difflib.get_close_matches(name, SETTINGS, n=2)
        hints.append(f"{name!r}" + (f" (did you mean {' or '.join(near)}?)" if near else ""))
    raise ConfigurationError(f"Unrecognized configs: {', '.join(hints)}")


def _check_times(values: dict[str, Any]) -> None:
    total, linger, request = (
        values[name] for name in ("delivery_timeout_ms", "linger_ms", "request_timeout_ms")
    )
    if total < linger + request:
        raise ConfigurationError(
            f"delivery_timeout_ms={total} is not allowed: it must be at least linger_ms + "
            f"request_timeout_ms, which is {linger} + {request}; raise it or lower those"
        )


def _check_compression(values: dict[str, Any]) -> None:
    codec = values["compression_type"]
    if codec == "zstd" and (values["api_version"] or NEWEST_API_VERSION) < ZSTD_API_VERSION:
        raise ConfigurationError(
            f"compression_type='zstd' needs api_version {ZSTD_API_VERSION} or newer, "
            f"but api_version={values['api_version']} is set"
        )
    bits, is_installed = CODECS[codec]
    if not is_installed():
        raise MissingCodecError(
            f"compression_type={codec!r}: Libraries for {codec} compression codec not found; "
            f"install them with outlast[{codec}]"
        )
    values["compression_attrs"] = bits


def _warn_of_the_unused(values: dict[str, Any], protocol: str) -> None:
    """What asks for TLS or a login where there is none: somebody believes that it is there."""
    lacks = {"ssl_": "encrypted"} if not protocol.endswith("SSL") else {}
    if "SASL" not in protocol:
        lacks["sasl_"] = "logged in"
    for prefix, what in lacks.items():
        unused = [n for n in SETTINGS if n.startswith(prefix) and values[n] != DEFAULTS[n]]
        if unused:
            names = f"{', '.join(unused)} {'is' if len(unused) == 1 else 'are'}"
            log.warning(
                "%s without effect: with security_protocol=%r nothing is %s", names, protocol, what
            )


def _check_security(values: dict[str, Any]) -> None:
    protocol, mechanism = values["security_protocol"], values["sasl_mechanism"]
    _warn_of_the_unused(values, protocol)
    if not protocol.startswith("SASL_"):
        return
    needed: tuple[str, ...] = ()
    if mechanism is None:
        needed = ("sasl_mechanism",)
    elif mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        needed = ("sasl_plain_username", "sasl_plain_password")
    elif mechanism == "OAUTHBEARER":
        needed = ("sasl_oauth_token_provider",)
    elif mechanism == "AWS_MSK_IAM" and protocol != "SASL_SSL":
        raise ConfigurationError(
            f"sasl_mechanism='AWS_MSK_IAM' needs security_protocol='SASL_SSL', not {protocol!r}"
        )
    for name in needed:
        if values[name] is None:
            raise ConfigurationError(
                f"{name}=None is not allowed with security_protocol={protocol!r} and "
                f"sasl_mechanism={mechanism!r}: it must be {checks.but_none(SETTINGS[name].check)}"
            )


def _settle_idempotence(values: dict[str, Any], keywords: Mapping[str, Any]) -> None:
    """KIP-679 as kafka-python does it: an explicit wish is an error when it cannot be had, a
    default gives way with a warning. Transactions are such a wish.
    """
    transactional = values["transactional_id"] is not None
    if not values["enable_idempotence"]:
        if transactional:
            raise ConfigurationError(
                "Cannot set transactional_id without enable_idempotence: "
                f"transactional_id={values['transactional_id']!r} needs enable_idempotence=True"
            )
        return
    version = values["api_version"]
    conflicts = [
        f"{name}={values[name]!r}"
        for name, conflict in (
            ("acks", values["acks"] != -1),
            ("retries", values["retries"] == 0),
            (
                "max_in_flight_requests_per_connection",
                values["max_in_flight_requests_per_connection"] > IDEMPOTENT_IN_FLIGHT,
            ),
            ("api_version", version is not None and version < OLDEST_API_VERSION),
        )
        if conflict
    ]
    if not conflicts:
        return
    if transactional or "enable_idempotence" in keywords:
        raise ConfigurationError(
            f"enable_idempotence=True is incompatible with user-provided {', '.join(conflicts)}: "
            f"it needs acks='all', retries > 0, max_in_flight_requests_per_connection <= "
            f"{IDEMPOTENT_IN_FLIGHT} and brokers from {OLDEST_API_VERSION} on"
        )
    log.warning(
        "Idempotence will be disabled because user-provided config conflicts with idempotent "
        "defaults: %s",
        ", ".join(conflicts),
    )
    values["enable_idempotence"] = False


def _wrap_serializers(values: dict[str, Any]) -> None:
    for name in ("key_serializer", "value_serializer"):
        serializer = values[name]
        if serializer is None or isinstance(serializer, Serializer):
            continue
        warnings.warn(
            f"{name} does not implement kafka.serializer.Serializer",
            category=DeprecationWarning,
            stacklevel=4,  # whoever calls KafkaProducer
        )
        if not hasattr(serializer, "serialize"):
            values[name] = SerializeWrapper(serializer)


def _for_the_engine(values: dict[str, Any]) -> Settings:
    from outlast.engine_settings import engine_settings  # with it comes the engine

    return engine_settings(values)
