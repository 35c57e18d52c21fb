"""`make oldest` installs the lower bounds, all of them."""

from __future__ import annotations

import pytest

from tests.packaging.oldest import oldest, pinned

PROJECT: dict[str, object] = {
    "dependencies": ["kafka-python[crc32c]>=3.0.12,<3.1", "tenacity>=8.2"],
    "optional-dependencies": {
        "cli": ["rich>=13"],
        "dev": ["outlast[cli]", "pytest>=8.3", "opentelemetry-sdk>=1.25"],
        "bench": ["matplotlib>=3.8"],
    },
}


def test_ranges_become_their_lower_bounds() -> None:
    assert oldest(PROJECT) == [
        "kafka-python[crc32c]==3.0.12",
        "tenacity==8.2",
        "rich==13",
        "opentelemetry-sdk==1.25",
    ]


@pytest.mark.parametrize("requirement", ["tenacity", "tenacity<9", "tenacity!=8.3"])
def test_what_has_no_lower_bound_is_an_error(requirement: str) -> None:
    with pytest.raises(ValueError, match="no lower bound"):
        pinned(requirement)
