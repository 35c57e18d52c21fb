"""Tests that need a program skip where it is not, and fail where it is demanded."""

from __future__ import annotations

import pytest

from tests.demands import need


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize("demanded", ["", "java", "java,maven"])
def test_a_test_that_cannot_run_is_skipped(demanded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_REQUIRE", demanded)
    with pytest.raises(pytest.skip.Exception, match="no prometheus and no promtool on the path"):
        need("prometheus", "prometheus", "promtool")


def test_a_test_that_must_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_REQUIRE", "java,prometheus")
    with pytest.raises(pytest.fail.Exception, match="TESTS_REQUIRE names prometheus"):
        need("prometheus", "promtool")
