"""The presets of other designs: each says what it changes, and is more than a name."""

from __future__ import annotations

import ast
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from outlast import testing
from outlast.testing import DESIGNS, FAST, KRAFT, MockCluster, designs

OTHERS = sorted(set(DESIGNS) - {"fast", "kraft"})


def said(name: str) -> str:
    """The text below a preset."""
    body = ast.parse(Path(designs.__file__).read_text(encoding="utf-8")).body
    for statement, below in pairwise(body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            assert isinstance(below, ast.Expr)
            return str(ast.literal_eval(below.value))
    raise AssertionError(f"there is no {name}")


@pytest.mark.parametrize("name", OTHERS)
def test_it_says_of_every_clock_it_changes_where_that_comes_from(name: str) -> None:
    ours, kafkas = asdict(DESIGNS[name]), asdict(KRAFT)
    changed = {field for field, value in ours.items() if value != kafkas[field]}
    told = said(name.upper())
    assert {field for field in ours if f"* `{field}`" in told} - changed <= {"detect_s"}
    assert all(f"* `{field}`" in told for field in changed)


def test_each_goes_by_its_name_and_no_two_are_alike() -> None:
    assert DESIGNS["fast"] is FAST
    assert DESIGNS["kraft"] is KRAFT
    assert all(getattr(testing, name.upper()) is DESIGNS[name] for name in OTHERS)
    assert len({repr(settings) for settings in DESIGNS.values()}) == len(DESIGNS) == 6


def test_any_client_can_use_it() -> None:
    kafka = pytest.importorskip("kafka")
    with MockCluster(topics=["orders"], settings=DESIGNS["majority"]) as cluster:
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.kill(3)
        assert producer.send("orders", b"paid").get(timeout=20).offset == 0
        producer.close()
        assert [record.value for record in cluster.records("orders", 0)] == [b"paid"]
