"""A producer's settings as plain JSON types, as `health()` tells and `outlast check` reads them.

Rule: nothing that lets anyone in. TLS, SASL and proxies are left out, and so are objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outlast.config import SETTINGS

_KEPT_BACK = ("sasl_", "ssl_", "proxy_url", "socks5_proxy")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, words, switches and lists of words, by kafka-python's names; infinity is 'inf'."""
    return {
        name: _finite(values[name])
        for name in SETTINGS
        if not name.startswith(_KEPT_BACK) and _is_plain(values[name])
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(entry, str) for entry in value)
    return isinstance(value, (bool, int, float, str))


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor tuples."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, float) and math.isinf(value) else value
