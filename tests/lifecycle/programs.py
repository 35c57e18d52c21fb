"""Runs programs of users' in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PREAMBLE = """
import atexit, logging, os, signal, sys, threading, time
from outlast import KafkaProducer
bootstrap = sys.argv[1]
def made(**settings):
    return KafkaProducer(bootstrap_servers=bootstrap, metrics_registry=None, **settings)
"""


@dataclass
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str
    took_s: float  # since it said 'ready', if it did


def run(
    program: str,
    *arguments: str,
    first: str = "",
    at: Mapping[str, Callable[[subprocess.Popen[str]], None]] | None = None,
) -> Ended:
    """Run it, with a line that comes `first`; do something where it says a word in a line of its
    own. 'ready' starts the watch.
    """
    at = at or {}
    environment = {**os.environ, "PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
    with subprocess.Popen(
        [sys.executable, "-c", first + PREAMBLE + program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        begun_s = time.monotonic()
        out = ""
        for line in process.stdout:
            word = line.strip()
            if word in at:
                at[word](process)
            if word == "ready":
                begun_s = time.monotonic()
                break
            out += line
        rest, err = process.communicate(timeout=60)
        took_s = time.monotonic() - begun_s
    return Ended(process.returncode, out + rest, err, took_s)


def go_on(process: subprocess.Popen[str]) -> None:
    """Let it read a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
