"""TLS: the context made from kafka-python's keywords, and what its errors mean.

Rules:
* An error names the setting that is to blame, its value unless that is a secret, and what to do.
* A private key that is encrypted and has no `ssl_password` is an error: OpenSSL would ask the
  terminal, and wait.
* Files may be replaced while the producer runs, as short-lived certificates are: the next
  connection sees it. Files that cannot be used then leave all as it was, with a warning, and are
  tried again.
* Once there is a loop to hold up, files are read and `ssl_password` is called beside it.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from outlast.errors import ConfigurationError

log = logging.getLogger(__name__)

_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


class Contexts:
    """The TLS context of one producer, as new as its files.

    Raises ConfigurationError if a file cannot be read or a value is not understood.
    """

    __slots__ = ("_config", "_context", "_lock", "_stamps", "_warned")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._lock = threading.Lock()  # of the thread that reads
        self._stamps = self._seen()
        self._warned: object = None
        self._context: ssl.SSLContext = config.get("ssl_context") or _made(config)

    def __repr__(self) -> str:
        return f"<Contexts files={len(self._stamps)}>"

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. May block: it looks at the files, and reads them anew.
        Who comes while another thread does gets what there is.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._context

    def _look(self) -> None:
        stamps = self._seen()
        if stamps != self._stamps:
            try:
                self._context, self._stamps = _made(self._config), stamps
            except Exception as error:
                # what a user's function raises may hold the password
                told = error if isinstance(error, ConfigurationError) else type(error).__name__
                if stamps != self._warned:
                    self._warned = stamps
                    log.warning("TLS files were replaced, and the old ones stay in use: %s", told)

    def _seen(self) -> dict[str, tuple[int, ...] | None]:
        if self._config.get("ssl_context") is not None:
            return {}
        return {name: _stamp(self._config[name]) for name in _FILES if self._config.get(name)}


def _stamp(path: Any) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _made(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = bool(config.get("ssl_check_hostname", True))
    cafile, crlfile, ciphers = (config.get(f"ssl_{n}") for n in ("cafile", "crlfile", "ciphers"))
    if cafile:
        _try(config, "ssl_cafile", lambda: context.load_verify_locations(cafile=cafile))
    else:
        context.load_default_certs()
    if config.get("ssl_certfile"):
        _load_own(context, config)
    elif config.get("ssl_keyfile"):
        log.warning("ssl_keyfile=%r is not used: set ssl_certfile too", config["ssl_keyfile"])
    if crlfile:
        _try(config, "ssl_crlfile", lambda: context.load_verify_locations(cafile=crlfile))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if ciphers:
        _try(config, "ssl_ciphers", lambda: context.set_ciphers(ciphers))
    return context


def _load_own(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    certfile, keyfile = config["ssl_certfile"], config.get("ssl_keyfile")
    key_setting = "ssl_keyfile" if keyfile else "ssl_certfile"
    for name in ("ssl_certfile", key_setting):
        _try(config, name, partial(_open, config[name]))
    asked = False

    def password() -> Any:
        nonlocal asked
        asked = True
        given = config.get("ssl_password")
        given = given() if callable(given) else given
        return "" if given is None else given

    try:
        context.load_cert_chain(certfile, keyfile, password)
    except (OSError, ValueError, TypeError) as error:
        if asked and config.get("ssl_password") is None:
            raise ConfigurationError(
                f"ssl_password=None is not allowed: the key in {key_setting}="
                f"{config[key_setting]!r} is encrypted, and this is to be its password"
            ) from None
        if asked:
            raise ConfigurationError(
                f"ssl_password=… does not open the key in {key_setting}={config[key_setting]!r}: "
                "give the password that the key was encrypted with"
            ) from None
        _blame(config, key_setting, error)


def _open(path: Any) -> None:
    with open(path, "rb"):
        pass


def _try(config: Mapping[str, Any], name: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        _blame(config, name, error)


_WANTED = {
    "ssl_cafile": "the certificates of the authorities to trust, as PEM",
    "ssl_certfile": "the client's certificate and those that signed it, as PEM, its key beside it "
    "or in ssl_keyfile",
    "ssl_keyfile": "the key of the certificate in ssl_certfile, as PEM",
    "ssl_crlfile": "a list of revoked certificates, as PEM",
    "ssl_ciphers": "a list of ciphers that this host's OpenSSL knows, such as 'ECDHE+AESGCM'",
}


def _blame(config: Mapping[str, Any], name: str, error: Exception) -> NoReturn:
    raise ConfigurationError(
        f"{name}={config[name]!r} cannot be used for TLS ({_reason(error)}): "
        f"it must be {_WANTED[name]}"
    ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "reason", None) or error)  # some have no reason
    return getattr(error, "strerror", None) or str(error)


# --- what went wrong with a peer ------------------------------------------------------------------

# OpenSSL's verification results (x509_vfy.h)
_UNTRUSTED = "ssl_cafile must have the authority that signed it"
_VERIFY_ADVICE = {
    2: _UNTRUSTED,
    3: "ssl_crlfile has no list of the authority that signed it",
    9: "its time has not come yet: look at the clocks",
    10: "it has expired: the broker needs a new one",
    12: "the list in ssl_crlfile has expired: get a new one",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    23: "it was revoked, by the list in ssl_crlfile: the broker needs a new one",
    62: "connect by a name that it has, or give the broker one with this name; "
    "ssl_check_hostname=False trusts any name",
    64: "connect by a name or address that it has, or give the broker one with this address; "
    "ssl_check_hostname=False trusts any name",
}
_NO_TLS = frozenset(
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
)
_CLIENT_CERTIFICATE = (
    "the broker does not take the client's certificate: check ssl_certfile and ssl_keyfile"
)
_REASON_ADVICE = {
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no version or cipher is common, or the broker wants a "
    "client's certificate: check ssl_ciphers and ssl_certfile",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker wants a client's certificate that it trusts: check "
    "ssl_certfile",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker wants a client's certificate: set "
    "ssl_certfile and ssl_keyfile",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _CLIENT_CERTIFICATE,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client's certificate has expired: ssl_certfile needs "
    "a new one",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": _CLIENT_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": _CLIENT_CERTIFICATE,
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker speaks no version of TLS that is allowed here "
    "(1.2 or later)",
    "UNSUPPORTED_PROTOCOL": "the broker speaks no version of TLS that is allowed here (1.2 or "
    "later)",
}


def explained(error: ssl.SSLError) -> str:
    """A TLS error in words, with what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _VERIFY_ADVICE.get(error.verify_code, "")
        text = f"the broker's certificate is not accepted: {error.verify_message.rstrip('.')}"
    elif _reason(error) in _NO_TLS:
        return f"the port does not speak TLS ({_reason(error)}): {no_tls_advice()}"
    else:
        advice = _REASON_ADVICE.get(_reason(error), "")
        text = f"TLS failed: {_reason(error)}"
    return f"{text}; {advice}" if advice else text


def no_tls_advice() -> str:
    """For a port that does not speak TLS."""
    return (
        "take the port of a TLS listener, or set security_protocol to 'PLAINTEXT' or "
        "'SASL_PLAINTEXT'"
    )


def tls_advice() -> str:
    """For a port that speaks TLS, and nothing else."""
    return "set security_protocol to 'SSL' or 'SASL_SSL', or take another port"
