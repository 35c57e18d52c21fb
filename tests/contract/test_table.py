"""Every row of docs/contract.md is asked for, once, and says why where the worlds differ."""

from __future__ import annotations

import importlib

import pytest

from tests.contract.rules import EQUAL, RULES, rules
from tests.contract.world import World


def test_rows_are_unique_and_differences_have_a_reason() -> None:
    assert len(RULES) == len(list(rules())) > 100
    for rule in RULES.values():
        assert rule.real, rule
        assert rule.mock == EQUAL or (rule.mock != rule.real and len(rule.note) > 20), rule


def test_every_row_was_asked_for(
    request: pytest.FixtureRequest, any_world: World, asked: dict[str, set[str]]
) -> None:
    """Of each file of tests of which all were run, as they are by default."""
    whole = set()
    for module in {rule.module for rule in RULES.values()}:
        file = importlib.import_module(f"tests.contract.{module}")
        ran = {
            item.originalname
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.module.__name__.endswith(module)
            and any_world.kind in item.name
        }
        if ran == {name for name in vars(file) if name.startswith("test_")}:
            whole.add(module)
    if not whole:
        pytest.skip("no file's tests were all selected")
    wanted = {rule.text for rule in RULES.values() if rule.module in whole}
    assert wanted - asked[any_world.kind] == set()
