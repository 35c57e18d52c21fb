"""kafka-python's own producer tests, with kafka-python's producer and with outlast's.

    python -m tests.upstream.run DIR [--without-broker]

DIR is an export of kafka-python's repository at tag 3.0.11; of it only `test/` is used, and copied
to a folder for the time of the run. `tests.txt` lists the tests: those that use public names only.
Each is run twice against the installed kafka-python, and what passed of what was run is printed.
Those that need a broker get a real Kafka of one node.

Exit code: 0 if every listed test passed with both; else 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import kafka.version

from tests.real.kafka_cluster import Node, RealCluster

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KAFKA_VERSION = "4.1.1"  # of tests/real
LIMIT_S = 600


@dataclass(frozen=True)
class Listed:
    """One line of tests.txt."""

    count: int
    test: str
    needs_broker: bool

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def listed() -> list[Listed]:
    """The lines of tests.txt."""
    found, needs_broker = [], False
    for line in (HERE / "tests.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# on a broker"):
            needs_broker = True
        elif line and not line.startswith("#"):
            count, test = line.split()
            found.append(Listed(int(count), test, needs_broker))
    return found


@dataclass
class Outcome:
    """What became of the tests of one run, by the file they are in."""

    passed: dict[str, list[str]]
    failed: dict[str, list[str]]
    output: str

    def count(self, tests: Sequence[Listed]) -> str:
        """'passed/listed' of these."""
        files = {test.file for test in tests}
        passed = sum(len(self.passed.get(file, ())) for file in files)
        return f"{passed}/{sum(test.count for test in tests)}"


def run(folder: Path, tests: Sequence[Listed], *, swapped: bool, broker: str | None) -> Outcome:
    """Run these tests in a process of its own."""
    report = folder / f"report-{'outlast' if swapped else 'kafka-python'}.xml"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    if broker is not None:
        environment |= {"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_URI": f"kafka://{broker}"}
    plugin = ["-p", "tests.upstream.swapped"] if swapped else []
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-c", os.devnull, "--rootdir=."]
    command += ["-p", "no:cacheprovider", *plugin, f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *(test.test for test in tests)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if not report.exists():
        raise SystemExit(f"pytest ended with {done.returncode} and no report:\n{done.stdout}")
    return _read(report, done.stdout)


def _read(report: Path, output: str) -> Outcome:
    outcome = Outcome({}, {}, output)
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        names = [part for part in parts if not part.startswith("Test")]
        well = all(child.tag not in ("failure", "error", "skipped") for child in case)
        kept = outcome.passed if well else outcome.failed
        kept.setdefault("/".join(names) + ".py", []).append(case.get("name", ""))
    return outcome


def table(tests: Sequence[Listed], outcomes: Sequence[Outcome]) -> str:
    """Passed/listed by file and in all, kafka-python's producer first."""
    files = list(dict.fromkeys(test.file for test in tests))
    groups = [(file, [test for test in tests if test.file == file]) for file in files]
    rows = [
        (name, *(o.count(group) for o in outcomes)) for name, group in [*groups, ("in all", tests)]
    ]
    width = max(len(file) for file in files)
    head = f"{'':{width}}  {'kafka-python':>12}  {'outlast':>8}"
    return "\n".join([head, *(f"{n:{width}}  {a:>12}  {b:>8}" for n, a, b in rows)])


class OneNode(RealCluster):
    """A real Kafka as those tests want it: topics are created, of four partitions, when somebody
    asks for them. (With one partition, offsets of a second one are tried for ever.)
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nodes = {1: self.nodes[1]}

    def _properties(self, node: Node) -> str:
        return super()._properties(node) + _OF_ONE_NODE  # the last word counts


_OF_ONE_NODE = """\
auto.create.topics.enable=true
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream.run", description=__doc__)
    parser.add_argument("dir", type=Path, help="an export of kafka-python at tag 3.0.11")
    parser.add_argument("--without-broker", action="store_true", help="leave the real Kafka out")
    options = parser.parse_args(arguments)
    if not (options.dir / "test" / "mock_broker.py").exists():
        parser.error(f"{options.dir} has no test/mock_broker.py: not an export of kafka-python")
    tests = [t for t in listed() if not (t.needs_broker and options.without_broker)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upstream-")))
        shutil.copytree(options.dir / "test", folder / "test")
        (folder / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True)
        broker = None
        if any(test.needs_broker for test in tests):
            cluster = OneNode(folder / "kafka")
            stack.callback(cluster.close)
            cluster.open()
            broker = cluster.bootstrap[0]
        outcomes = [run(folder, tests, swapped=s, broker=broker) for s in (False, True)]
    print(f"kafka-python {kafka.version.__version__}, its own tests: passed/listed")
    print(table(tests, outcomes))
    failed = [name for names in outcomes[1].failed.values() for name in names]
    for name in failed:
        print(f"failed with outlast: {name}")
    if failed:
        print(outcomes[1].output)
    whole = all(
        sum(len(names) for kept in (o.passed, o.failed) for names in kept.values())
        == sum(test.count for test in tests)
        for o in outcomes
    )
    if not whole:
        print("the number of tests is not that of tests.txt")
    return 1 if failed or outcomes[0].failed or not whole else 0


if __name__ == "__main__":
    sys.exit(main())
