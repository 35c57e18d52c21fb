"""The TLS context, made once per producer from kafka-python's keywords."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from kafka.errors import KafkaConfigurationError

_SETTINGS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile", "ssl_ciphers")


def tls_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """The user's own `ssl_context`, or one made from the `ssl_…` keywords.

    Raises KafkaConfigurationError if a file cannot be read or a value is not understood.
    """
    given = config.get("ssl_context")
    if given is not None:
        assert isinstance(given, ssl.SSLContext)
        return given
    try:
        return _made(config)
    except (OSError, ValueError) as error:
        values = ", ".join(f"{k}={config[k]!r}" for k in _SETTINGS if config.get(k) is not None)
        raise KafkaConfigurationError(
            f"TLS cannot be set up from {values or 'the defaults of this host'}: {error}; "
            "give readable PEM files and ciphers in OpenSSL's notation, or an `ssl_context`"
        ) from error


def _made(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = bool(config.get("ssl_check_hostname", True))
    if config.get("ssl_cafile"):
        context.load_verify_locations(cafile=config["ssl_cafile"])
    else:
        context.load_default_certs()
    if config.get("ssl_certfile"):
        context.load_cert_chain(
            config["ssl_certfile"], config.get("ssl_keyfile"), config.get("ssl_password")
        )
    if config.get("ssl_crlfile"):
        context.load_verify_locations(cafile=config["ssl_crlfile"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if config.get("ssl_ciphers"):
        context.set_ciphers(config["ssl_ciphers"])
    return context
