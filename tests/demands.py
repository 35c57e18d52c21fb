"""Programs that a test needs and a machine may lack: skip there, fail where they are demanded.

`OUTLAST_REQUIRE`, which the CI sets, is a list of words such as `java,prometheus`.
"""

from __future__ import annotations

import os
import shutil

import pytest


def need(word: str, *programs: str) -> None:
    """Go on if all these programs are on the path; `word` is theirs in `OUTLAST_REQUIRE`."""
    lacking = [program for program in programs if shutil.which(program) is None]
    if not lacking:
        return
    reason = f"no {' and no '.join(lacking)} on the path"
    if word in os.environ.get("OUTLAST_REQUIRE", "").split(","):
        pytest.fail(f"{reason} (OUTLAST_REQUIRE names {word})")
    pytest.skip(reason)
