"""A cluster for producers that are swapped, in this process or in one that a test starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import outlast
from outlast.testing import MockCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster(topics=["t"]) as cluster:
        yield cluster


@pytest.fixture
def installed() -> Iterator[None]:
    outlast.install()
    yield
    outlast.uninstall()
