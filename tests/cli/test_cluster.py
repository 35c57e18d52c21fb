"""`outlast cluster` as a user runs it: from a pipe, on a terminal, and with clients of others."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import kafka
import pytest
from rich.console import Console
from typer.testing import CliRunner

from outlast.cli.app import app
from outlast.cli.prompt import Prompt, PromptError, Quit
from outlast.testing import (
    DESIGNS,
    Error,
    LoseResponse,
    MetadataLag,
    MockCluster,
    Slow,
    SlowFollower,
    Throttle,
)

RUN = [sys.executable, "-c", "from outlast.cli import main; main()", "cluster", "--port", "0"]
ENVIRONMENT = {**os.environ, "COLUMNS": "120"}


@pytest.fixture(scope="module")
def shared() -> Iterator[MockCluster]:
    with MockCluster(topics={"orders": 3}) as cluster:
        yield cluster


class Talk:
    """A prompt, and what it shows as plain text."""

    def __init__(self, cluster: MockCluster) -> None:
        self.cluster = cluster
        self._prompt = Prompt(cluster)

    def __call__(self, line: str) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as shown:
            console.print(self._prompt.obey(line))
        return shown.get().strip()


@pytest.fixture
def say(shared: MockCluster) -> Iterator[Talk]:
    yield Talk(shared)
    shared.heal()
    shared.wait_until(shared.healthy)


# --- what is said and done ------------------------------------------------------------------------


def test_kill_and_start(say: Talk) -> None:
    leader = say.cluster.leader("orders", 0)
    assert leader is not None
    assert re.fullmatch(rf"node {leader} is down; it led .*orders-0.*", say(f"kill {leader}"))
    assert say.cluster.nodes()[leader] == "down"
    assert re.fullmatch(r"waited \d+\.\d s", say("wait led"))
    assert say.cluster.leader("orders", 0) not in (leader, None)
    assert say(f"start {leader}") == f"node {leader} starts"
    say("wait healthy")
    assert say.cluster.healthy()


@pytest.mark.parametrize("word", ["pause", "silence"])
def test_silence_and_resume(say: Talk, word: str) -> None:
    assert say(f"{word} 2").startswith("node 2 is silent; it led ")
    assert say.cluster.nodes()[2] == "paused"
    assert say("resume 2") == "node 2 goes on"
    assert say.cluster.nodes()[2] == "up"


def test_stop(say: Talk) -> None:
    assert say("stop 3").startswith("node 3 stops; it led ")
    assert say.cluster.nodes()[3] == "stopping"
    say.cluster.wait_until(lambda: say.cluster.nodes()[3] == "down")


def test_move(say: Talk) -> None:
    say("move orders-0 3")
    assert say.cluster.leader("orders", 0) == 3
    assert say("move orders-0 1") == "node 1 leads orders-0"
    assert say("MOVE orders-0") == "node 2 leads orders-0"


def test_topics(say: Talk) -> None:
    assert say("topic my-events 4") == "my-events has 4 partitions"
    assert say("topic my-events 6") == "my-events has 6 partitions now"
    assert say("move my-events-0 2") == "node 2 leads my-events-0"
    assert say("topic one") == "one has 1 partition"
    assert say("topic two 1 2") == "two has 1 partition"
    assert [len(p.replicas) for p in say.cluster.partitions("two")] == [2]
    assert say("records one-0") == "one-0 has no records"
    for name in ("my-events", "one", "two"):
        assert say(f"delete {name}") == f"{name} is deleted"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("error 6", Error(6)),
        (
            "error NOT_LEADER_OR_FOLLOWER orders-0 times=3",
            Error(6, topic="orders", partition=0, times=3),
        ),
        ("error 14 api=init-producer-id node=2", Error(14, api=22, node=2)),
        ("error 6 hint=(2,7) message=why", Error(6, hint=(2, 7), message="why")),
        ("Slow 0.5 node=2", Slow(0.5, node=2)),
        ("slow-follower 3 topic=my-t node=1", SlowFollower(3.0, topic="my-t", node=1)),
        ("lose-response blocks=no times=1", LoseResponse(blocks=False, times=1)),
        ("metadata-lag lag_s=2", MetadataLag(2.0)),
    ],
)
def test_faults_in_words(say: Talk, words: str, fault: object) -> None:
    say(f"fault {words}")
    assert say.cluster.faults == [fault]


def test_the_list_of_faults_is_for_people_at_a_prompt(say: Talk) -> None:
    listed = say("fault")
    assert "throttle THROTTLE_S" in listed
    assert not re.findall(r"MockCluster|\([A-Z]\d+\)|`", listed)


def test_faults_are_listed_and_cleared_by_number(say: Talk) -> None:
    assert say("fault throttle 1 for=60") == "fault 1: throttle throttle_s=1.0 for=60.0"
    assert say("fault error 6 times=0") == "fault 2: error times=0 code=6, over"
    assert [type(fault) for fault in say.cluster.faults] == [Throttle, Error]
    assert say.cluster.faults[0].until_s - say.cluster.now_s() <= 60
    assert "fault 2: error times=0 code=6, over" in say("status")
    assert say("clear 1").startswith("ended: throttle")
    assert [type(fault) for fault in say.cluster.faults] == [Error]
    assert say("clear") == "no faults"
    assert say.cluster.faults == []


def test_status_tells_nodes_partitions_and_faults(say: Talk) -> None:
    if say.cluster.leader("orders", 0) != 2:
        say("move orders-0 2")
    say("pause 2")
    say("wait led")
    lines = [line.split() for line in say("status orders").splitlines()]
    address = say.cluster.bootstrap_servers.split(",")[1]
    assert ["2", address, "paused", "0"] in lines
    assert sum(line[:1] in (["orders-0"], ["orders-1"], ["orders-2"]) for line in lines) == 3
    assert all(line[-2] == "2" for line in lines if line and line[0].startswith("orders-"))


def test_help_has_every_word_and_fault_every_kind(say: Talk) -> None:
    told = say("help")
    for usage in ("kill NODE", "silence NODE", "move TOPIC-PARTITION [NODE]", "status", "quit"):
        assert usage in told
    kinds = say("fault")
    for usage in ("error CODE", "slow DELAY_S", "lose-response", "blackhole"):
        assert usage in kinds


def test_nothing_is_said_to_an_empty_line_or_a_comment(shared: MockCluster) -> None:
    prompt = Prompt(shared)
    assert prompt.obey("") is prompt.obey("  # what follows") is None
    for word in ("quit", "exit"):
        with pytest.raises(Quit):
            prompt.obey(word)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("kil 1", "there is no command 'kil'; did you mean 'kill'? 'help' lists them"),
        ("xyzzy", "there is no command 'xyzzy'; 'help' lists them"),
        ("kill", "'kill' was not understood; write: kill NODE"),
        ("kill one", "'kill one' was not understood; write: kill NODE"),
        ("kill 1 2", "write: kill NODE"),
        ("kill 9", "there is no node 9; there is 1, 2, 3"),
        ("start 1", "node 1 is up; it would have to be down"),
        ("resume 1", "node 1 is up; it would have to be paused"),
        ("move orders 1", "'orders' is no partition; write TOPIC-NUMBER, such as orders-0"),
        ("move orders-9 1", "orders has no partition 9; it has 0 to 2"),
        ("move order-0 1", "there is no topic 'order'; there is orders"),
        ("move orders-0 7", "7"),
        ("topic orders 2", "orders exists, with 3 partitions; it can only get more"),
        ("topic b/d", "topic name is 'b/d'"),
        ("delete x", "there is no topic 'x'"),
        ("status x", "there is no topic 'x'"),
        ("wait long", "write: wait SECONDS | led | healthy"),
        ("wait -1", "cannot wait -1 s"),
        ("clear 3", "there is no fault 3; there are 0"),
        ("fault eror 6", "there is no fault 'eror'; did you mean 'error'? there are: error, "),
        ("fault error", "error needs code: fault error CODE"),
        ("fault error SIX", "code is 'SIX'; it is a whole number or Kafka's name of the error"),
        ("fault error 6 hint=2", "hint is '2'; it is (node, epoch)"),
        ("fault error 6 api=produc", "one of produce, fetch"),
        ("fault slow x", "delay_s is 'x'; it is a number of seconds"),
        ("fault slow 1 for=ever", "for is 'ever'; it is a number of seconds"),
        ("fault slow 1 nod=2", "slow has no 'nod'; it has delay_s, node, "),
        ("fault slow 1 used=2", "slow has no 'used'"),
        ("fault slow 1 node=9", "there is no node 9"),
        ("fault slow 1 2", "'2' is no partition"),
        ("'kill 1", "No closing quotation"),
    ],
)
def test_what_cannot_be_obeyed_is_told_and_changes_nothing(
    shared: MockCluster, line: str, complaint: str
) -> None:
    with pytest.raises(PromptError, match=re.escape(complaint)):
        Prompt(shared).obey(line)
    assert shared.faults == []
    assert shared.healthy()


# --- as a process ---------------------------------------------------------------------------------


def run(*arguments: str, lines: str = "") -> Any:
    """In this process, with lines from a pipe."""
    return CliRunner(env={"COLUMNS": "120"}).invoke(
        app, ["cluster", "--port", "0", *arguments], input=lines
    )


def test_a_pipe_is_obeyed_line_by_line_until_it_ends() -> None:
    done = run("--topic", "orders:2", lines="kill 1\nwait led\nstatus\n")
    assert done.stderr == ""
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"bootstrap servers: (127\.0\.0\.1:\d+,?){3}", lines[0])
    assert lines[1:3] == ["outlast> kill 1", "node 1 is down; it led orders-0"]
    assert any(line.split()[:2] == ["orders-0", "2"] for line in lines)


def test_a_line_that_cannot_be_obeyed_ends_in_1_and_the_rest_is_done() -> None:
    done = run(lines="kill 7\nnode\nkill 1\nquit\nkill 2\n")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == "there is no node 7; there is 1, 2, 3"
    assert "node 1 is down; it led nothing" in done.stdout
    assert "node 2" not in done.stdout


def test_where_there_is_nothing_to_read_it_tells_how_to_go_without() -> None:
    done = run()
    assert done.exit_code == 0
    assert "--no-prompt" in done.stdout
    assert "--no-prompt" not in run(lines="status\n").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--topic", "orders:many"], "'orders:many' is no topic"),
        (["--topic", "orders:0"], "0 partitions"),
        (["--set", "detect_s"], "'detect_s' is no setting"),
        (["--set", "auto_create_topics=true"], "the value as in Python"),
        (["--set", "detect=3"], "there is no setting 'detect'"),
        (["--set", "acks_all='most'"], "acks_all is 'most'; allowed are"),
        (["--design", "rust"], "there is no design 'rust'; there are: fast, kraft, majority, "),
        (
            ["--kraft", "--design", "queue"],
            "--kraft is --design kraft, and there is --design queue",
        ),
    ],
)
def test_bad_options_are_named(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.stderr.replace("│", "").split())


def test_settings_are_the_clusters() -> None:
    done = run("--topic", "t", "--set", "detect_s=60", lines="kill 1\nstatus\n")
    assert done.exit_code == 0
    down = next(line for line in done.stdout.splitlines() if " down " in line)
    assert down.split()[-1] == "1"  # it has not been given up


def test_a_design_is_the_clusters() -> None:
    """Node 1 leads t-0. On Kafka it goes on alone; here it needs one more of the three."""
    options = ["--topic", "t", "--set", "detect_s=0.1", "--set", "promote_s=0.0"]
    lines = "kill 2\nkill 3\nwait 0.5\nstatus\n"
    for design, leader in (("kraft", "1"), ("majority", "none")):
        done = run("--design", design, *options, lines=lines)
        assert done.exit_code == 0
        assert [line.split()[1] for line in done.stdout.splitlines() if "t-0" in line] == [leader]


def test_every_design_is_named_by_the_help() -> None:
    told = " ".join(run("--help").stdout.replace("│", "").split())
    assert all(name in told.split("Its clocks and its way")[1] for name in DESIGNS)


def test_kraft_is_a_design() -> None:
    for asked in (["--kraft"], ["--design", "kraft"]):  # given up after 8 s: not by now
        done = run("--topic", "t", *asked, lines="kill 1\nwait 0.5\nstatus\n")
        assert [line.split()[1] for line in done.stdout.splitlines() if "t-0" in line][-1] == "1"


@contextmanager
def serving(
    *arguments: str, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its bootstrap servers; it ends in order, or the test is told."""
    process = subprocess.Popen(
        [*before, *RUN, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdin
    assert process.stdout
    try:
        yield process, process.stdout.readline().removeprefix("bootstrap servers: ").strip()
        _, errors = process.communicate(timeout=30)
        assert errors == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_a_port_in_use_is_named() -> None:
    with MockCluster(nodes=1) as other:
        port = other.bootstrap_servers.partition(":")[2]
        done = run("--port", port)
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port} for node 1" in done.stderr
    assert "--port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# A shell has SIGINT ignored in what it starts in the background.
@pytest.mark.parametrize("before", [(), ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")])
def test_without_a_prompt_it_serves_until_it_is_interrupted(before: Sequence[str]) -> None:
    arguments = ("--no-prompt", "--nodes", "1", "--topic", "orders")
    with serving(*arguments, before=before) as (process, bootstrap):
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        assert producer.send("orders", b"1").get(timeout=20).offset == 0
        producer.close()
        process.send_signal(signal.SIGINT)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_clients_of_others_live_through_what_is_said_to_it() -> None:
    with serving("--topic", "orders:3") as (process, bootstrap):
        assert process.stdin
        theirs = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        ours = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        told: list[object] = []
        for number in range(60):
            theirs.produce(
                "orders",
                b"librdkafka",
                partition=number % 3,
                on_delivery=lambda error, message: told.append(error or message),
            )
            ours.send("orders", b"kafka-python", partition=number % 3)
            if number in (20, 40):
                assert theirs.flush(20) == 0
                ours.flush(20)
                print(f"kill {number // 20}" if number == 20 else "start 1", file=process.stdin)
                process.stdin.flush()
        assert theirs.flush(20) == 0
        ours.flush(20)
        ours.close()
        assert [m for m in told if not isinstance(m, confluent_kafka.Message)] == []
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
        partitions = [kafka.TopicPartition("orders", p) for p in range(3)]
        assert sum(consumer.end_offsets(partitions).values()) == 120
        consumer.close()
        process.send_signal(signal.SIGTERM)


def test_on_a_terminal_it_asks_and_goes_on_after_a_mistake() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        RUN, stdin=theirs, stdout=theirs, stderr=theirs, env={**ENVIRONMENT, "TERM": "dumb"}
    )
    os.close(theirs)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 4096)
        seen = seen.partition(text)[2]

    try:
        until(b"'help' lists the commands")
        until(b"outlast> ")
        os.write(ours, b"kil 1\n")
        until(b"did you mean 'kill'?")
        until(b"outlast> ")
        os.write(ours, b"kill 1\n")
        until(b"node 1 is down; it led nothing")
        until(b"outlast> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
