"""Programs that a test needs and a machine may lack: skip there, fail where they are demanded.

`TESTS_REQUIRE`, which the CI sets, is a list of words such as `java,prometheus`.
"""

from __future__ import annotations

import os
import shutil

import pytest


def need(word: str, *programs: str) -> None:
    """Go on if all these programs are on the path; `word` is theirs in `TESTS_REQUIRE`."""
    lacking = [program for program in programs if shutil.which(program) is None]
    if not lacking:
        return
    reason = f"no {' and no '.join(lacking)} on the path"
    if word in os.environ.get("TESTS_REQUIRE", "").split(","):
        pytest.fail(f"{reason} (TESTS_REQUIRE names {word})")
    pytest.skip(reason)
