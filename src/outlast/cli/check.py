"""`outlast check`: does this producer outlast what can happen to this cluster?

Reads, judges, tells; it changes nothing. Who reads is `check_reading` (the cluster) and
`check_settings` (the producer); the rules are in `check_loss`, `check_time` and `check_single`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence

from rich.console import Console

from outlast.cli.check_findings import Known
from outlast.cli.check_model import worst_gaps
from outlast.cli.check_reading import UnreachableError, read
from outlast.cli.check_rules import examine, exit_code
from outlast.cli.check_text import as_json, show
from outlast.cli.check_view import USUAL_RECORD_BYTES, Producer, Rate

NOT_CHECKED = 3
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
RATE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[kmg]i?)?(?P<bytes>b)?(/s)?", re.IGNORECASE)


def rate(text: str, record_bytes: int | None) -> Rate:
    """What `--rate` says: records per second, or bytes per second if it ends in B.

    Raises:
        ValueError: it says neither.
    """
    found = RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no rate; write records per second, 5000, or bytes, 2MB or 500KiB"
        )
    number = float(found["number"]) * UNITS[(found["unit"] or "").lower()]
    return Rate.of(
        records=None if found["bytes"] else number,
        data_bytes=number if found["bytes"] else None,
        record_bytes=record_bytes or USUAL_RECORD_BYTES,
    )


def quieten() -> None:
    """What is logged on the way is told in the report, or in one line."""
    for name in ("outlast", "kafka"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def run(
    producer: Producer,
    *,
    topics: Sequence[str] | None,
    load: Rate | None,
    json: bool,
    strict: bool,
    timeout_s: float,
) -> int:
    """Check and tell; the process's exit code."""
    try:
        cluster = read(producer.values, topics, timeout_s)
    except UnreachableError as error:
        print(f"outlast: {error}", file=sys.stderr)
        return NOT_CHECKED
    if load is None and producer.rate_bytes_per_s is not None:
        per_s = producer.rate_bytes_per_s
        load = Rate(bytes_per_s=per_s, said=f"{per_s:,.0f} bytes/s, its present rate")
    known = Known(
        cluster=cluster,
        producer=producer,
        worst=worst_gaps(cluster, producer.settings),
        rate=load,
    )
    found = examine(known)
    findings = [finding for section in found.values() for finding in section]
    code = exit_code(findings, unread=bool(cluster.unread), strict=strict)
    if json:
        print(as_json(known, found, code))
    else:
        show(Console(highlight=False), known, found, code)
    return code
