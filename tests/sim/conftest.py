"""Stories that several tests of a module look at are told once, and forgotten with the module: what
a whole simulation keeps makes each full garbage collection of the rest of the run slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _told_stories_are_forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for value in vars(request.module).values():
        if callable(forget := getattr(value, "cache_clear", None)):
            forget()
