"""Runs the scenarios: one JSON line per run, then how it compares, and which targets are met.

    python -m benchmarks.run                              # all of it: 25 minutes
    python -m benchmarks.run --short                      # one short run of each target: 3 minutes
    python -m benchmarks.run --only throughput --runs 3   # one scenario
    python -m benchmarks.run --only throughput --variants mock --clients outlast,kafka-python

Each run is a process of its own; runs alternate between the clients, in turned order every other
round. After every run the topic must hold exactly the records that were sent, or the run counts as
failed, and so does the program. Lines go to stdout and to a file for each scenario in `--results`;
what they come to, to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from benchmarks import clusters, summary
from benchmarks.clients import CLIENTS, lacking, version
from benchmarks.measure import Job, command
from benchmarks.relay import Relay
from benchmarks.scenarios import FULL, ROUND_TRIP_S, SCENARIOS, SHORT, Case, Scenario

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".bench"
RUN_S = 300.0  # no run takes that long
Run = dict[str, Any]

# What makes a real broker's machine code, before the first run that counts.
WARM_UP = (
    Case("warm-up", "kafka-python", "kafka", {"seconds": 3.0}),
    Case("warm-up", "kafka-python", "kafka", {"kind": "latency", "linger_ms": 0, "seconds": 2.0}),
)


class RunError(Exception):
    """A run that is no measurement."""


class Bench:
    """The clusters, and runs on them."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._resources = resources
        self._kafka: clusters.OneKafka | None = None
        self._relay: Relay | None = None
        self._topics = 0

    def run(self, scenario: Scenario, case: Case) -> Run:
        """One run of one case; raises RunError if the log does not hold what was sent."""
        if case.cluster == "mock":
            with clusters.mock() as mock:
                return self._run_on_mock(mock, case)
        return self._run_on_kafka(self._real(), case, scenario.outage_s)

    def _real(self) -> clusters.OneKafka:
        if self._kafka is None:
            self._kafka = self._resources.enter_context(clusters.one_kafka())
            for case in WARM_UP:
                self._run_on_kafka(self._kafka, case, 0.0)
        return self._kafka

    def _relayed(self) -> Relay:
        if self._relay is None:
            self._relay = self._resources.enter_context(self._real().relay())
        return self._relay

    def _run_on_mock(self, mock: clusters.Mock, case: Case) -> Run:
        job = _job(case, mock.bootstrap, "bench")
        mock.create_topic(job.topic, job.partitions)
        with _producing(job) as process:
            if job.kind == "memory":
                _await_ready(process)
                mock.mute()
                _go(process)
                return _result(process)
            result = _result(process)
        return checked(result, mock.bootstrap, job.topic, _count(job))

    def _run_on_kafka(self, kafka: clusters.OneKafka, case: Case, outage_s: float) -> Run:
        self._topics += 1
        address = kafka.relayed if case.cluster == "relay" else kafka.direct
        job = _job(case, address, f"bench-{self._topics}")
        kafka.create_topic(job.topic, job.partitions, replication=1, min_isr=1)
        if case.cluster == "relay":
            self._relayed().delay(0.0 if job.kind == "backlog" else ROUND_TRIP_S / 2)
        with _producing(job) as process:
            if job.kind == "backlog":
                result = self._outage(process, outage_s)
            else:
                result = _result(process)
        result = checked(result, kafka.direct, job.topic, _count(job))
        if job.batch_records is not None:
            result |= filled(result["sent"], kafka.batches(job.topic), job.batch_records)
        kafka.delete_topic(job.topic)
        return result

    def _outage(self, process: subprocess.Popen[str], seconds: float) -> Run:
        relay = self._relayed()
        _await_ready(process)
        relay.down()
        _go(process)
        time.sleep(seconds)
        up_s = relay.up()
        result = _result(process)
        first_s, last_s = result.pop("first_ack_s"), result.pop("last_ack_s")
        return {"gone_s": round(last_s - up_s, 3), "first_s": round(first_s - up_s, 3), **result}


def _count(job: Job) -> Callable[[str, str], int]:
    return clusters.count_committed if job.kind == "transactions" else clusters.count


def _job(case: Case, bootstrap: str, topic: str) -> Job:
    return Job(client=case.client, bootstrap=bootstrap, topic=topic, **case.job)


@contextlib.contextmanager
def _producing(job: Job) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(job), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise RunError("the producing process ended early; it said why above")


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _result(process: subprocess.Popen[str]) -> Run:
    try:
        said, _ = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"the producing process did not end within {RUN_S:g} s") from None
    if process.returncode:
        raise RunError("the producing process failed; it said why above")
    result: Run = json.loads(said.splitlines()[-1])
    return result


def checked(
    result: Run,
    bootstrap: str,
    topic: str,
    count: Callable[[str, str], int] | None = None,
) -> Run:
    """The result, if the topic holds exactly the records that were sent."""
    found = (count or clusters.count)(bootstrap, topic)
    if found != result["sent"]:
        raise RunError(f"{result['sent']} records sent, {found} in the topic")
    return result


def filled(records: int, batches: int, wanted: int) -> Run:
    """How many records a batch had, if it is what it was to be: else costs are not comparable."""
    each = records / batches
    if each != wanted:
        raise RunError(
            f"{records} records came in {batches} batches, {each:.2f} each, not {wanted}"
        )
    return {"records_per_batch": each}


# --- many runs ------------------------------------------------------------------------------------


def measure(bench: Bench, scenario: Scenario, out: TextIO, *, short: bool) -> list[Run]:
    """All runs of a scenario."""
    runs: list[Run] = []
    variants = list(dict.fromkeys(case.variant for case in scenario.cases))
    for number in range(scenario.runs):
        for variant in variants:
            cases = [case for case in scenario.cases if case.variant == variant]
            for case in cases if number % 2 == 0 else reversed(cases):
                run: Run = {"scenario": scenario.name, "variant": variant, "client": case.client}
                run |= {"run": number, "version": version(case.client), "short": short}
                begin_s = time.monotonic()
                try:
                    run |= bench.run(scenario, case)
                except Exception as error:  # the others are not lost for it
                    run["failed"] = str(error) if isinstance(error, RunError) else repr(error)
                run["took_s"] = round(
                    time.monotonic() - begin_s, 1
                )  # with all that is not measured
                runs.append(run)
                line = json.dumps(run)
                print(line, flush=True)
                print(line, file=out, flush=True)
    return runs


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """The scenarios that are asked for, without the clients that cannot be had."""
    scale = SHORT if options.short else FULL
    lacks = {name: lacking(name) for name in CLIENTS}
    for name, why in lacks.items():
        if why is not None:
            print(f"{name} is left out: {why}", file=sys.stderr)
    found = []
    for name, make in SCENARIOS.items():
        scenario = make(scale)
        if name not in (options.only or SCENARIOS):
            continue
        if options.short and scenario.curve is not None and not options.only:
            continue  # a picture, and no target
        cases = tuple(
            case
            for case in _with_asked(scenario.cases, options.clients or ())
            if lacks[case.client] is None
            and (options.clients is None or case.client in options.clients)
            and options.variants in case.variant
        )
        runs = options.runs or min(scenario.runs, scale.runs_max)
        found.append(replace(scenario, cases=cases, runs=runs))
    return found


def _with_asked(cases: Sequence[Case], clients: Sequence[str]) -> Iterator[Case]:
    """The cases, and beside each of outlast the same for clients that are asked for by name and
    have none: outlast-one-lane is in no scenario.
    """
    others = [client for client in clients if all(case.client != client for case in cases)]
    for case in cases:
        yield case
        if case.client == "outlast":
            yield from (replace(case, client=client) for client in others)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    def names(known: Any) -> Any:
        def split(text: str) -> list[str]:
            unknown = set(text.split(",")) - set(known)
            if unknown:
                raise argparse.ArgumentTypeError(
                    f"{', '.join(sorted(unknown))}; known are {', '.join(known)}"
                )
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--clients", type=names(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("--variants", default="", help="those whose name holds this text")
    parser.add_argument("--runs", type=int, help="of each case")
    parser.add_argument("--short", action="store_true", help="one short run of each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON lines")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    options.results.mkdir(parents=True, exist_ok=True)
    failed = 0
    with contextlib.ExitStack() as resources:
        bench = Bench(resources)
        for scenario in chosen(options):
            with (options.results / f"{scenario.name}.jsonl").open("w", encoding="utf-8") as out:
                runs = measure(bench, scenario, out, short=options.short)
            print(summary.told(scenario, runs), file=sys.stderr, flush=True)
            failed += sum("failed" in run for run in runs)
    if failed:
        raise SystemExit(f"{failed} runs failed")


if __name__ == "__main__":
    main()
