"""Planted bugs: how the engine is made wrong while it runs, and what must notice.

A mutant is an edit of the engine's source: one or more functions, each compiled again with a piece
of its text replaced, for as long as the mutant is planted. The piece must occur exactly once, so a
mutant cannot outlive the code that it was made for without saying so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

from outlast.testing.swarm import run_seed
from tests.engine.model import explore
from tests.engine.starts import begin

ENGINE = "outlast.engine"


@dataclass(frozen=True)
class Edit:
    """One function's text, changed."""

    where: str  # module.Class.method or module.function, below the engine
    old: str
    new: str

    def named(self) -> Any:
        """What stands under the name."""
        module, *names = self.where.split(".")
        found: Any = import_module(f"{ENGINE}.{module}")
        for name in names:
            found = vars(found)[name]
        return found

    def forget(self) -> None:
        """What was cached of it."""
        getattr(self.named(), "cache_clear", lambda: None)()

    def function(self) -> FunctionType:
        """What is changed: under its properties, static methods and caches."""
        found = self.named()
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        found = inspect.unwrap(found)
        assert isinstance(found, FunctionType)
        return found

    def code(self) -> CodeType:
        """The function's code with the change."""
        function = self.function()
        source = dedent(inspect.getsource(function))
        count = source.count(self.old)
        assert count == 1, f"{self.where} has {count} times: {self.old}"
        lines = source.replace(self.old, self.new).splitlines()
        begins = next(i for i, line in enumerate(lines) if line.startswith("def "))
        text = "\n".join(["from __future__ import annotations", *lines[begins:]])
        made: dict[str, Any] = {}
        exec(compile(text, function.__code__.co_filename, "exec"), function.__globals__, made)
        code = made[function.__name__].__code__
        assert isinstance(code, CodeType)
        return code


@dataclass(frozen=True)
class Model:
    """The exhaustive model finds it, from one of its starts."""

    start: str

    def __call__(self) -> str:
        """What was found, or ''."""
        world = begin(self.start)
        found = explore(world, first=True)
        wrong = found.lies or [f"stuck: {story}" for story in found.stuck]
        if not world.allowed.failures:
            wrong += [f"told unknown: {story}" for story in found.unknown]
        return f"{found.states} states: {wrong[0]}" if wrong else ""


@dataclass(frozen=True)
class Seeds:
    """Random runs find it, no later than this one."""

    last: int

    def __call__(self) -> str:
        """What was found, or ''."""
        for seed in range(1, self.last + 1):
            findings = run_seed(seed).findings
            if findings:
                return f"seed {seed}: {findings[0]}"
        return ""


@dataclass(frozen=True)
class Story:
    """A named test finds it: module below tests, test, arguments if it has any."""

    module: str
    test: str
    arguments: tuple[Any, ...] = ()

    def function(self) -> Callable[..., None]:
        """The test itself; it can be called with the arguments."""
        found: Any = import_module(f"tests.{self.module}")
        group, _, name = self.test.rpartition(".")
        test = getattr(getattr(found, group)() if group else found, name)
        inspect.signature(test).bind(*self.arguments)
        assert callable(test)
        return test

    def __call__(self) -> str:
        """What was found is the test's own complaint."""
        self.function()(*self.arguments)
        return ""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    breaks: str  # the rule, in a sentence
    edits: tuple[Edit, ...]
    caught_by: Model | Seeds | Story

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Until the end of the block the engine is wrong."""
        functions = [edit.function() for edit in self.edits]
        assert len(set(functions)) == len(functions), "one edit for each function"
        codes = [edit.code() for edit in self.edits]
        right = [function.__code__ for function in functions]
        try:
            for edit, function, code in zip(self.edits, functions, codes, strict=True):
                function.__code__ = code
                edit.forget()
            yield
        finally:
            for edit, function, code in zip(self.edits, functions, right, strict=True):
                function.__code__ = code
                edit.forget()

    def caught(self) -> str:
        """How it was noticed, or ''. The engine's own asserts count: they are there for this."""
        if isinstance(self.caught_by, Story):
            self.caught_by.function()  # a test that is not there would catch anything
        with self.planted():
            try:
                return self.caught_by()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
