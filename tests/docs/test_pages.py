"""The programs on the pages of the site run: the blocks of a page one after the other, as a reader
would put them into one file, in one namespace. Their brokers are a mock cluster's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.testing import MockCluster

FOLDER = Path(__file__).resolve().parents[2] / "docs"
BROKERS = "localhost:9091,localhost:9092"
PAGES = [
    FOLDER / "index.md",
    FOLDER / "tutorial.md",
    *sorted((FOLDER / "how-to").glob("*.md")),
    *sorted((FOLDER / "explanation").glob("*.md")),
]
SHORTER = {"SECONDS = 40": "SECONDS = 2", "start_http_server(8000)": "start_http_server(0)"}


def programs(page: Path) -> str:
    """All blocks of Python on a page, each on its own lines."""
    kept: list[str] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        if fence:
            inside = line == "```python"
        kept.append("" if fence or not inside else line)
    return "\n".join(kept)


WITH_PROGRAMS = [page for page in PAGES if programs(page).strip()]
TESTS = [page for page in WITH_PROGRAMS if "def test_" in programs(page)]
PROGRAMS = [page for page in WITH_PROGRAMS if page not in TESTS]


def test_pages_of_both_kinds_are_found() -> None:
    assert (len(PROGRAMS) >= 10, len(TESTS) >= 1) == (True, True)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with MockCluster(topics={"orders": 6}) as cluster:
        program = programs(page).replace(BROKERS, cluster.bootstrap_servers)
        for long, short in SHORTER.items():
            program = program.replace(long, short)
        meanwhile = MEANWHILE.get(page.stem, lambda _: None)
        beside = threading.Thread(target=meanwhile, args=[cluster])
        beside.start()
        try:
            if "prometheus_client" in program:  # a registry of its own, as an application has it
                subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
            else:
                exec(compile(program, str(page), "exec"), {"__name__": "__main__"})
        finally:
            beside.join()
    check = CHECKS.get(page.stem)
    if check:
        check(capsys.readouterr().out)


def kill_a_leader(cluster: MockCluster) -> None:
    """What the tutorial asks of its reader."""
    cluster.wait_until(lambda: sum(len(cluster.records("orders", p)) for p in range(6)) > 20)
    cluster.kill(2)


def tutorial_goes_as_told(said: str) -> None:
    assert re.search(r"orders-\d: \d\.\d\d s from connection_lost, absorbed", said)
    (sent, acknowledged) = re.findall(r"^sent (\d+), acknowledged (\d+)$", said, re.MULTILINE)[0]
    assert sent == acknowledged


MEANWHILE: dict[str, Callable[[MockCluster], None]] = {"tutorial": kill_a_leader}
CHECKS: dict[str, Callable[[str], None]] = {"tutorial": tutorial_goes_as_told}


@pytest.mark.parametrize("page", TESTS, ids=lambda page: page.stem)
def test_the_tests_of_a_page_pass_under_pytest(page: Path, tmp_path: Path) -> None:
    source = programs(page)
    (tmp_path / "test_page.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{source.count('def test_')} passed" in done.stdout
