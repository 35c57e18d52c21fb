"""`world`: every test runs once on the mock and once on a real Kafka. `contract`: the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.rules import RULES
from tests.contract.world import MockWorld, RealWorld, World


@pytest.fixture(scope="session", params=["mock", pytest.param("real", marks=pytest.mark.real)])
def any_world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "real":
        cluster = request.getfixturevalue("one_cluster")
        cluster.heal()
        yield RealWorld(cluster)
    else:
        world = MockWorld()
        with world.server:
            yield world


@pytest.fixture
def world(any_world: World) -> Iterator[World]:
    """The world of this run; what a test opened is closed after it."""
    yield any_world
    any_world.forget()


@pytest.fixture(scope="session")
def asked() -> dict[str, set[str]]:
    """World → the rules that were asked for in it."""
    return {"mock": set(), "real": set()}


class Contract:
    """Holds what a world answers against the table; tells all that is wrong at once."""

    def __init__(self, kind: str, module: str, asked: set[str]) -> None:
        self._kind = kind
        self._module = module
        self._asked = asked
        self.wrong: list[str] = []

    def __call__(self, rule: str, answer: object) -> None:
        self._asked.add(rule)
        wanted = RULES[rule].answer_of(self._kind) if rule in RULES else "nothing of it"
        print(f"CONTRACT\t{self._kind}\t{rule}\t{answer}\t{self._module}")  # shown by -s
        if str(answer) != wanted:
            self.wrong.append(f"{rule}: {answer}, and the table says {wanted}")


@pytest.fixture
def contract(
    world: World, request: pytest.FixtureRequest, asked: dict[str, set[str]]
) -> Iterator[Contract]:
    """`contract(rule, answer)` for each row of docs/contract.md."""
    module = request.module.__name__.rpartition(".")[-1]
    contract = Contract(world.kind, module, asked[world.kind])
    yield contract
    assert not contract.wrong, "\n".join([world.kind, *contract.wrong])
