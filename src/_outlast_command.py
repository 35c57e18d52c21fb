"""The command `outlast`. Two of its commands are here: `run`, and `path`, which serves it.

`outlast run` starts an application as `python` does, with its Kafka producers swapped. Nothing is
done but to put one folder on PYTHONPATH and to become that Python: its arguments, exit code,
signals and tracebacks are Python's own, and child processes inherit the folder. What happens there
is in `outlast/site/sitecustomize.py`. `outlast path` prints the folder, for those who start Python
themselves.

Rules: no extra is needed. What Python would tell by itself (a missing file) is left to it. This
file lies beside the package, as importing that takes longer than all that is done here.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

FOLDER = str(Path(__file__).parent / "outlast" / "site")
USAGE = """\
Usage: outlast run [PYTHON OPTION]... FILE | -m MODULE | -c CODE | -  [ARGUMENT]...

Run an application as python would, and let its kafka.KafkaProducer be outlast's:

  outlast run app.py --port 80        instead of  python app.py --port 80
  outlast run -m package              instead of  python -m package

Variables OUTLAST_<SETTING> set what the application leaves at its default. Where somebody else
starts Python, put what `outlast path` prints first on its PYTHONPATH. More in docs/swap.md.
"""
INTERRUPTED = 130  # as shells tell it, and what all commands end with
WRONG_USAGE = 2  # as Python's own for a file that is not there

_WITH_VALUE = ("W", "X")  # Python's options that take one, in the same word or in the next
_UNSWAPPED = {"E": "PYTHONPATH", "I": "PYTHONPATH", "S": "sitecustomize"}


def main() -> None:
    """Run the command that the arguments name."""
    match sys.argv[1:]:
        case ["run", *arguments]:
            run(arguments)
        case ["path"]:
            print(FOLDER)
        case ["path", "-h" | "--help"]:
            sys.stdout.write(USAGE)
        case _:
            try:
                from outlast.cli import main

                main()
            except KeyboardInterrupt:  # imports take long enough to think better of it
                sys.exit(INTERRUPTED)


def run(arguments: Sequence[str]) -> NoReturn:
    """Become `python ARGUMENTS`, swapped. Returns to nobody; SystemExit if that cannot be."""
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        sys.exit(0)
    if complaint := _complaint(arguments):
        sys.stderr.write(f"outlast run: {complaint}\n")
        sys.exit(WRONG_USAGE)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], swapped(os.environ))


def swapped(environment: Mapping[str, str]) -> dict[str, str]:
    """These variables, with the folder first on PYTHONPATH."""
    others = [
        p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", FOLDER)
    ]
    return {**environment, "PYTHONPATH": os.pathsep.join([FOLDER, *others])}


def _complaint(arguments: Sequence[str]) -> str | None:
    """Why Python would not run this, or not swapped; None where it can tell better than we."""
    if not arguments:
        return f"nothing to run\n\n{USAGE.rstrip()}"
    rest = iter(arguments)
    for word in rest:
        if word == "-":
            return None
        if not word.startswith("-"):
            return _no_file(word)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for index, option in enumerate(word[1:], 1):
            if option in "cm":
                return None
            if option in _UNSWAPPED:
                return (
                    f"with -{option} Python ignores {_UNSWAPPED[option]}, and nothing would be "
                    "swapped: leave it out, or call outlast.install() in the application"
                )
            if option in _WITH_VALUE:
                if index == len(word) - 1:
                    next(rest, None)
                break
    return None


def _no_file(name: str) -> str | None:
    """A command such as `gunicorn` is no file here; Python would only say that."""
    command = None if os.path.exists(name) else shutil.which(name)
    if command is None:
        return None
    return (
        f"{name} is a command and no Python file; if it is written in Python: "
        f"outlast run {command}, or outlast run -m {name}"
    )
