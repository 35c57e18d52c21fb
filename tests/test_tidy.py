"""The house rules hold here, and each can fail: its rule finds a planted breach."""

from __future__ import annotations

import subprocess
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from tests import tidy

ROOT = Path(__file__).resolve().parents[1]
Rule = Callable[[Path], list[str]]


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds(rule: Rule) -> None:
    assert rule(ROOT) == []


def test_all_names_what_is_public() -> None:
    assert all(getattr(outlast, name) for name in outlast.__all__)  # some come when asked for
    public = {
        name
        for name, value in vars(outlast).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(outlast.__all__) - {"__version__"} == public - {"annotations"}
    assert len(outlast.__all__) == len(set(outlast.__all__))


# --- each rule can fail ---------------------------------------------------------------------------

GOOD = {
    "Makefile": "VENV := .venv\ndemo: x ## d\n\ttrue\ntest:\n\ttrue\n",
    "README.md": "```console\nmake demo\n```\nand `make test`; to make sense of it is up to you\n",
    ".ci/run": "exec make test </dev/null\n",
    "docs/architecture.md": "\n".join(
        f"| `{name}` | for |"
        for name in (
            "__init__.py",
            "producer.py",
            "engine/sender.py",
            "io/kafka_net.py",
            "testing/cluster.py",
            "testing/simulation.py",
        )
    ),
    "src/outlast/__init__.py": '"""Top."""\nfrom outlast.producer import KafkaProducer\n',
    "src/outlast/producer.py": '"""P."""\nimport time\nfrom outlast.io import kafka_net\n',
    "src/outlast/engine/__init__.py": '"""E."""\n',
    "src/outlast/engine/sender.py": '"""S."""\nfrom kafka.protocol.producer import P\n',
    "src/outlast/io/kafka_net.py": '"""N."""\nimport kafka.net\nfrom outlast.engine import x\n',
    "src/outlast/testing/cluster.py": '"""C."""\nfrom kafka.record import MemoryRecords\n',
    "src/outlast/testing/simulation.py": '"""M."""\nfrom outlast.engine.sender import Sender\n',
    "tests/engine/test_a.py": "def f(self):\n    return self._x, a._replace(b=1)\n",
    "tests/net/test_b.py": "b._private\n",
}

HOME = "/" + "home" + "/"
HOST = "py" + "pi.org"
MISSPELLED = "rec" + "ieve"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in {**GOOD, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def test_a_tidy_tree_has_no_complaints(tmp_path: Path) -> None:
    plant(tmp_path, {})
    assert [rule(tmp_path) for rule in tidy.RULES] == [[] for _ in tidy.RULES]


TOP = "src/outlast/producer.py"
ENGINE = "src/outlast/engine/sender.py"
NET = "src/outlast/io/kafka_net.py"
CLUSTER = "src/outlast/testing/cluster.py"
BREACHES: list[tuple[Rule, str, str, str]] = [
    (tidy.directions, ENGINE, '"""S."""\nfrom outlast.io import kafka_net\n', "may not import"),
    (tidy.directions, ENGINE, '"""S."""\nfrom ..io.kafka_net import x\n', "may not import"),
    (tidy.directions, ENGINE, '"""S."""\nfrom .. import producer\n', "may not import"),
    (tidy.directions, NET, '"""N."""\ndef f():\n    import outlast.producer\n', "may not import"),
    (
        tidy.directions,
        TOP,
        '"""P."""\nimport outlast.cli\n',
        "nothing imports",
    ),
    (tidy.directions, TOP, '"""P."""\nfrom . import testing\n', "nothing"),
    (
        tidy.directions,
        CLUSTER,
        '"""C."""\nfrom .. import cli\n',
        "may not",
    ),
    (
        tidy.judge,
        CLUSTER,
        '"""C."""\nfrom outlast.testing.simulation import x\n',
        "simulation.py:2: the judge imports outlast.engine",
    ),
    (
        tidy.judge,
        CLUSTER,
        '"""C."""\nimport kafka.errors\n',
        "kafka.errors",
    ),
    (tidy.engine_is_pure, ENGINE, '"""S."""\nimport os.path\n', "imports os.path"),
    (tidy.engine_is_pure, ENGINE, '"""S."""\nif X:\n    from random import Random\n', "random"),
    (tidy.one_adapter, TOP, '"""P."""\nfrom kafka import net\n', "kafka.net"),
    (
        tidy.one_adapter,
        ENGINE,
        '"""S."""\nfrom kafka.net.selector import S\n',
        "kafka.net",
    ),
    (tidy.file_budget, ENGINE, '"""S."""\n' + "x = 1\n" * 450, "451 lines"),
    (tidy.function_budget, ENGINE, '"""S."""\ndef f():\n' + "    x = 1\n" * 70, "f has 71 lines"),
    (tidy.docstrings, "src/outlast/engine/__init__.py", "", "no docstring"),
    (tidy.private_doors, "tests/engine/test_a.py", "s._queue\n", "test_a.py:1: s._queue"),
    (tidy.private_doors, "tests/sim/test_c.py", "x = getattr(s, '_queue')\n", "getattr"),
    (tidy.private_doors, "tests/sim/test_c.py", "from outlast.engine.gap import _x\n", "_x"),
    (tidy.places, "docs/a.md", f"see {HOME}me/x\n", "docs/a.md:1: names"),
    (tidy.places, "Makefile", f"{GOOD['Makefile']}# https://{HOST}/simple\n", "names"),
    (tidy.file_map, "src/outlast/new.py", '"""New."""\n', "no new.py in the map"),
    (
        tidy.file_map,
        "docs/architecture.md",
        GOOD["docs/architecture.md"] + "\n| `gone.py` | x |\n",
        "gone.py is not there",
    ),
    (tidy.commands, "README.md", "```\nmake tea\n```\n", "no target tea"),
    (tidy.commands, "docs/a.md", "run `make tea` first\n", "no target tea"),
    (tidy.commands, "CONTRIBUTING.md", "run `make tea` first\n", "no target tea"),
    (tidy.spelling, "docs/a.md", f"{MISSPELLED} it\n", f"a.md:1: {MISSPELLED} ==> receive"),
]


@pytest.mark.parametrize(
    ("rule", "name", "text", "complaint"),
    BREACHES,
    ids=[f"{rule.__name__}-{number}" for number, (rule, *_) in enumerate(BREACHES)],
)
def test_a_breach_is_found_by_its_rule(
    rule: Rule, name: str, text: str, complaint: str, tmp_path: Path
) -> None:
    plant(tmp_path, {name: text})
    found = rule(tmp_path)
    assert len(found) == 1
    assert complaint in found[0]
