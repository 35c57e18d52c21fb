"""What can be said to a mock cluster at the prompt of `outlast cluster`, and what it does.

One method for each word, named `do_WORD`: its docstring is `USAGE: what it does`, which `help`
prints. Rules: a word that cannot be obeyed is a `PromptError` whose text tells what can be
said instead, and it changes nothing; a method returns what there is to show.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from math import inf

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outlast.cli.fault_words import dashed, kinds, parse_fault, parse_partition
from outlast.testing import Fault, MockCluster, PartitionStatus

STATE_STYLES = {"up": "green", "down": "red", "paused": "yellow", "stopping": "yellow"}
SHOWN = 10  # records
WAIT_LIMIT_S = 60.0
UNTOLD = ("used", "until_s")


class PromptError(Exception):
    """The line could not be obeyed; the text is for whoever wrote it."""


class Quit(Exception):  # noqa: N818
    """The line said that it is enough."""


class Prompt:
    """Obeys lines. `obey` is all there is to it."""

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster
        self._words: dict[str, Callable[[list[str]], RenderableType]] = {
            name[3:]: getattr(self, name) for name in vars(Prompt) if name.startswith("do_")
        }

    def obey(self, line: str) -> RenderableType | None:
        """Do what the line says, and return what there is to show.

        Raises:
            PromptError: it cannot be done, or is not understood.
            Quit: it is enough.
        """
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise PromptError(f"{line.strip()!r}: {error}") from error
        if not words:
            return None
        name, *arguments = words
        action = self._words.get(name.lower())
        if action is None:
            near = get_close_matches(name.lower(), self._words, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise PromptError(f"there is no command {name!r}; {hint}'help' lists them")
        try:
            return action(arguments)
        except _UsageError:
            usage, _ = _usage(action)
            raise PromptError(f"{line.strip()!r} was not understood; write: {usage}") from None
        except (ValueError, TimeoutError) as error:
            raise PromptError(str(error)) from error

    # --- nodes ----------------------------------------------------------------------------------

    def do_kill(self, arguments: list[str]) -> str:
        """kill NODE: crash it; connections are reset, and the cluster notices after a while"""
        node = self._node(arguments, "up", "paused", "stopping", "starting")
        led = self._led_by(node)
        self._cluster.kill(node)
        return f"node {node} is down; it led {led}"

    def do_start(self, arguments: list[str]) -> str:
        """start NODE: start one that is down, on its old port and with its logs"""
        node = self._node(arguments, "down")
        self._cluster.start(node)
        return f"node {node} starts"

    def do_stop(self, arguments: list[str]) -> str:
        """stop NODE: shut it down in order; its leaders move at once, it ends some 2 s later"""
        node = self._node(arguments, "up")
        led = self._led_by(node)
        self._cluster.stop(node)
        return f"node {node} stops; it led {led}"

    def do_pause(self, arguments: list[str]) -> str:
        """pause NODE: silence it, as SIGSTOP does; its port accepts, nothing comes back"""
        node = self._node(arguments, "up", "stopping")
        led = self._led_by(node)
        self._cluster.pause(node)
        return f"node {node} is silent; it led {led}"

    def do_silence(self, arguments: list[str]) -> str:
        """silence NODE: the same as pause"""
        return self.do_pause(arguments)

    def do_resume(self, arguments: list[str]) -> str:
        """resume NODE: let one that is silent go on"""
        node = self._node(arguments, "paused")
        self._cluster.resume(node)
        return f"node {node} goes on"

    def do_heal(self, arguments: list[str]) -> str:
        """heal: end all faults, resume and start all nodes"""
        _count(arguments, 0)
        self._cluster.heal()
        return "no faults; every node runs or starts"

    # --- topics ---------------------------------------------------------------------------------

    def do_move(self, arguments: list[str]) -> str:
        """move TOPIC-PARTITION [NODE]: make another in-sync replica its leader"""
        _count(arguments, 1, 2)
        topic, partition = parse_partition(arguments[0])
        to = _number(arguments[1]) if arguments[1:] else None
        node = self._cluster.move_leader(topic, partition, to)
        return f"node {node} leads {topic}-{partition}"

    def do_topic(self, arguments: list[str]) -> str:
        """topic NAME [PARTITIONS [REPLICAS]]: make a topic, or give one more partitions"""
        _count(arguments, 1, 3)
        name, *numbers = arguments
        partitions = _number(numbers[0]) if numbers else 1
        replicas = _number(numbers[1]) if numbers[1:] else None
        have = [p for p in self._cluster.partitions() if p.topic == name]
        if not have:
            self._cluster.create_topic(name, partitions, replication=replicas)
            return f"{name} has {_partitions(partitions)}"
        if partitions <= len(have) or replicas is not None:
            raise ValueError(f"{name} exists, with {_partitions(len(have))}; it can only get more")
        self._cluster.add_partitions(name, partitions)
        return f"{name} has {_partitions(partitions)} now"

    def do_delete(self, arguments: list[str]) -> str:
        """delete NAME: delete a topic with its records"""
        _count(arguments, 1)
        self._cluster.delete_topic(arguments[0])
        return f"{arguments[0]} is deleted"

    def do_records(self, arguments: list[str]) -> RenderableType:
        """records TOPIC-PARTITION [COUNT]: the last records that consumers can read"""
        _count(arguments, 1, 2)
        topic, partition = parse_partition(arguments[0])
        count = _number(arguments[1]) if arguments[1:] else SHOWN
        records = self._cluster.records(topic, partition)
        if not records:
            return f"{topic}-{partition} has no records"
        lines = [f"{r.offset} key={r.key!r} value={r.value!r}" for r in records[-count:]]
        return Group(*map(Text, lines)) if count > 0 else ""

    # --- faults ---------------------------------------------------------------------------------

    def do_fault(self, arguments: list[str]) -> RenderableType:
        """fault KIND [VALUES] [TOPIC-PARTITION] [NAME=VALUE ...]: requests go wrong; alone: the kinds"""  # noqa: E501
        if not arguments:
            return kinds()
        now_s = self._cluster.now_s()
        fault = parse_fault(arguments, now_s)
        if fault.node is not None and fault.node not in self._cluster.nodes():
            raise ValueError(f"there is no node {fault.node}; there is {self._told_nodes()}")
        self._cluster.faults.append(fault)
        return f"fault {len(self._cluster.faults)}: {told(fault, now_s)}"

    def do_clear(self, arguments: list[str]) -> str:
        """clear [NUMBER]: end one fault of those that status lists, or all"""
        _count(arguments, 0, 1)
        faults = self._cluster.faults
        if not arguments:
            faults.clear()
            return "no faults"
        number = _number(arguments[0])
        if not 1 <= number <= len(faults):
            raise ValueError(f"there is no fault {number}; there are {len(faults)}")
        return f"ended: {told(faults.pop(number - 1), self._cluster.now_s())}"

    # --- looking and waiting --------------------------------------------------------------------

    def do_status(self, arguments: list[str]) -> RenderableType:
        """status [TOPIC]: nodes, partitions and faults"""
        _count(arguments, 0, 1)
        partitions = self._cluster.partitions(*arguments)
        shown: list[RenderableType] = [self._nodes()]
        if partitions:
            shown += ["", _partition_table(partitions, self._cluster.nodes())]
        faults = self._cluster.faults
        if faults:
            shown.append("")
        now_s = self._cluster.now_s()
        shown += [Text(f"fault {n}: {told(f, now_s)}") for n, f in enumerate(faults, 1)]
        return Group(*shown)

    def do_wait(self, arguments: list[str]) -> str:
        """wait SECONDS | led | healthy: before the next command; led: every partition has a leader"""  # noqa: E501
        _count(arguments, 1)
        since_s = time.monotonic()
        match arguments[0]:
            case "led":
                self._cluster.wait_until(self._cluster.all_led, WAIT_LIMIT_S)
            case "healthy":
                self._cluster.wait_until(self._cluster.healthy, WAIT_LIMIT_S)
            case text:
                try:
                    seconds = float(text)
                except ValueError:
                    raise _UsageError from None
                if not 0 <= seconds <= 86_400:
                    raise ValueError(f"cannot wait {text} s; allowed are 0 to 86400")
                time.sleep(seconds)
        return f"waited {time.monotonic() - since_s:.1f} s"

    def do_help(self, arguments: list[str]) -> RenderableType:
        """help: this list"""
        _count(arguments, 0)
        table = Table.grid(padding=(0, 2))
        for action in self._words.values():
            table.add_row(*map(Text, _usage(action)))
        return table

    def do_quit(self, _arguments: list[str]) -> str:
        """quit: end the cluster; so do Ctrl-D and the end of a pipe"""
        raise Quit

    def do_exit(self, _arguments: list[str]) -> str:
        """exit: the same as quit"""
        raise Quit

    # --- inside ---------------------------------------------------------------------------------

    def _node(self, arguments: list[str], *states: str) -> int:
        """The one argument, which is a node in one of these states."""
        _count(arguments, 1)
        node = _number(arguments[0])
        nodes = self._cluster.nodes()
        if node not in nodes:
            raise ValueError(f"there is no node {node}; there is {self._told_nodes()}")
        if nodes[node] not in states:
            raise ValueError(f"node {node} is {nodes[node]}; it would have to be {states[0]}")
        return node

    def _told_nodes(self) -> str:
        return ", ".join(map(str, self._cluster.nodes()))

    def _led_by(self, node: int) -> str:
        led = [f"{p.topic}-{p.partition}" for p in self._cluster.partitions() if p.leader == node]
        more = f" and {len(led) - SHOWN} more" if len(led) > SHOWN else ""
        return (", ".join(led[:SHOWN]) or "nothing") + more

    def _nodes(self) -> Table:
        led = [p.leader for p in self._cluster.partitions()]
        table = Table("node", "address", "state", "leads", box=None, padding=(0, 2, 0, 0))
        addresses = self._cluster.bootstrap_servers.split(",")
        for (node, state), address in zip(self._cluster.nodes().items(), addresses, strict=True):
            style = STATE_STYLES.get(state, "")
            table.add_row(str(node), address, Text(state, style), str(led.count(node)))
        return table


class _UsageError(Exception):
    """The arguments are not those that the word takes."""


def told(fault: Fault, now_s: float) -> str:
    """A fault without what it does not set: its time as what is left of it."""
    own = {f.name: getattr(fault, f.name) for f in fields(fault) if f.name not in UNTOLD}
    default = {f.name: f.default for f in fields(fault)}
    words = [f"{name}={value}" for name, value in own.items() if value != default[name]]
    over = fault.times is not None and fault.used >= fault.times
    if fault.until_s < inf:
        over |= fault.until_s <= now_s
        words.append(f"for={max(0.0, fault.until_s - now_s):.1f}")
    struck = f" (struck {fault.used} times)" if fault.used else ""
    return " ".join([dashed(type(fault).__name__), *words]) + struck + (", over" if over else "")


def _usage(action: Callable[..., object]) -> tuple[str, str]:
    usage, _, what = (action.__doc__ or "").splitlines()[0].partition(": ")
    return usage, what


def _count(arguments: list[str], least: int, most: int | None = None) -> None:
    if not least <= len(arguments) <= (least if most is None else most):
        raise _UsageError


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _UsageError from None


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _partition_table(partitions: list[PartitionStatus], nodes: Mapping[int, str]) -> Table:
    columns = ("partition", "leader", "epoch", "in sync", "out of sync", "records to")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for p in partitions:
        state = "down" if p.leader is None else nodes[p.leader]
        leader = Text(str(p.leader or "none"), "" if state == "up" else STATE_STYLES.get(state, ""))
        late = [n for n in p.replicas if n not in p.in_sync]
        table.add_row(
            f"{p.topic}-{p.partition}",
            leader,
            str(p.epoch),
            " ".join(map(str, p.in_sync)),
            Text(" ".join(map(str, late)), "yellow"),
            str(p.end_offset),
        )
    return table
