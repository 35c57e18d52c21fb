"""Planted bugs in `append_run`: what `send_many` brings, taken in one pass. How: `mutants`."""

from __future__ import annotations

from tests.sim.mutants import Mutant, Seeds, Story
from tests.sim.planted_order import edit

RUNS = (
    Mutant(
        "a run goes on one record too early",
        "The record that opened the batch is written again, and the last one is left out.",
        edit("batch.Batch.extend", "run.values[begin:end]", "run.values[begin - 1:end - 1]"),
        Seeds(20),
    ),
    Mutant(
        "a run's keys are left out",
        "A record has its own key, also in a run.",
        edit(
            "batch.Batch.extend",
            "repeat(None) if run.keys is None else run.keys[begin:end]",
            "repeat(None)",
        ),
        Seeds(20),
    ),
    Mutant(
        "a run's keys begin with the run",
        "A record has its own key, also where a run is continued in another batch.",
        edit("batch.Batch.extend", "run.keys[begin:end]", "run.keys[: end - begin]"),
        Seeds(20),
    ),
    Mutant(
        "the room of a run is lost",
        "What a batch holds of the buffer is given back when it is settled, all of it.",
        edit("intake.Intake._extend", "batch.charge_bytes += charge_bytes", "pass"),
        Seeds(20),
    ),
    Mutant(
        "a run takes room that others wait for",
        "What is beyond the buffer is asked for, and waited for, like that of a single record.",
        edit("intake.Intake._extend", "or not hub.accumulator.charge(tp, charge_bytes)", ""),
        Seeds(20),
    ),
    Mutant(
        "a run that waited asks for room anew",
        "Room that was set aside for it is taken with its ticket, or nobody ever has it.",
        edit(
            "intake.Intake.append_run", "run.timestamp_ms, now, ticket\n", "run.timestamp_ms, now\n"
        ),
        Seeds(60),
    ),
    Mutant(
        "keyed records follow the first",
        "Each goes where its key leads.",
        edit("intake.Intake.append_run", "(run.partition is not None or run.keys is None)", "True"),
        Story("sim.test_runs", "test_records_with_keys_go_where_single_ones_would"),
    ),
)
