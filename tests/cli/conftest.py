"""One browser for all tests that look at a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.cli.report import Run, write
from tests.cli.chromium import Chromium, executable
from tests.cli.report_browser import Opened
from tests.demands import need


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        need("chromium", "chromium")
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Iterator[Opened]:
    """Show a run's report. Whatever else is tested: its script ran to the end, the browser has
    nothing to complain of, and was asked for no other file.
    """

    def show(it: Run) -> Chromium:
        write(it, tmp_path / "report.html")
        browser.open(tmp_path / "report.html")
        assert browser.run("document.documentElement.dataset.ready") == "true"
        return browser

    browser.window(1280, 900)
    browser.media()
    browser.scripts(True)
    yield show
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "report.html").as_uri()]
