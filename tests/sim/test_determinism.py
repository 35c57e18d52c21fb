"""The same seed gives the same run, to the last bit, whatever the hash seed of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast.testing.swarm import run_seed

SEEDS = (3, 11)
PROGRAM = (
    "from outlast.testing.swarm import run_seed\n"
    f"print(*(run_seed(seed, trace=True).digest for seed in {SEEDS}))"
)


def digests_under(hash_seed: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.split()


def test_a_seed_gives_the_same_run_under_any_hash_seed():
    first, *others = [digests_under(hash_seed) for hash_seed in ("0", "1", "4242")]
    assert len(set(first)) == len(SEEDS), "two seeds are two runs"
    assert others == [first, first]


def test_a_seed_gives_the_same_run_twice_in_one_process_with_and_without_trace():
    once, again, untraced = (run_seed(5, trace=t) for t in (True, True, False))
    assert once.digest == again.digest
    assert once.trace == again.trace
    assert str(untraced) == str(once).replace(f"  digest {once.digest}\n", "")


@pytest.mark.parametrize("arguments", [["--seed", "5"], ["--seed", "5", "--trace"]])
def test_a_seed_can_be_replayed_from_the_command_line(arguments, capsys):
    from outlast.testing.swarm import main

    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].strip() == "nothing wrong"
    assert (len(lines) > 100) == ("--trace" in arguments)
