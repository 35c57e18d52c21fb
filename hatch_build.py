"""Compiles the hot path with mypyc when a wheel is built, if it is told to (docs/compiled.md).

With HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 the wheel is one for this Python and platform. Without it this
file is not even read, and the wheel is pure. The source is the same, and is in both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = Path("src/outlast/engine")
BESIDE = ("src/outlast/io/door.py", "src/outlast/sending.py")
# Values stay as they are: what users see must pickle, and compiled frozen dataclasses do not; and
# messages name batches, whose file imports messages first (mypyc cannot wait for a class).
INTERPRETED = {"__init__.py", "messages.py", "outcomes.py"}
# On Linux a library's functions can be replaced from outside unless it says no, and so none of them
# is inlined: that is worth a twentieth.
FLAGS = ("-fno-semantic-interposition",) if sys.platform == "linux" else ()
MYPY = ("--no-warn-unused-ignores", "--no-warn-unreachable")  # true of the versions tested with


class CompiledHotPath(BuildHookInterface[BuilderConfig]):
    """Adds the extension modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is filled. What is made for it lies in a folder that goes afterwards."""
        if version == "editable":
            return
        self._made = TemporaryDirectory(prefix="outlast-compiled-")
        library = _compiled(Path(self._made.name))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file in library.rglob("*"):
            if file.is_file():
                build_data["force_include"][str(file)] = str(file.relative_to(library))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The wheel is there."""
        if version != "editable":
            self._made.cleanup()


def _compiled(made: Path) -> Path:
    """Compile; returns a folder with the extension modules, as they lie beside the sources."""
    from mypyc.build import mypycify  # only where something is compiled
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    engine = sorted(str(file) for file in ENGINE.glob("*.py") if file.name not in INTERPRETED)
    extensions = mypycify(
        [*MYPY, *engine, *BESIDE],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        debug_level="0",
        target_dir=str(made / "c"),
        group_name="outlast",
    )
    for extension in extensions:
        extension.extra_compile_args = [*(extension.extra_compile_args or ()), *FLAGS]
    command = build_ext(Distribution({"name": "outlast", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(made / "lib"), str(made / "objects")
    command.ensure_finalized()
    command.run()
    return made / "lib"
