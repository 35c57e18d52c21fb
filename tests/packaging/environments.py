"""Runs tests in environments that are not the desk's: older libraries, other Pythons.

    python -m tests.packaging.environments oldest    # `make oldest`
    python -m tests.packaging.environments pythons   # `make pythons`

Each has a venv below .venv, which is made anew. A Python that is not found is told, and is no
failure; that none is found is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from typing import Any

from tests.packaging.oldest import PYPROJECT, oldest, read

ROOT = PYPROJECT.parent
VENVS = ROOT / ".venv" / "environments"
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "psutil", "cryptography", "gevent", "hatchling")
LIBRARIES = ("tests/facade", "tests/observe", "tests/wire")
NEED_NEWER = (  # in the test itself: packages of OpenTelemetry's, a server of prometheus_client's
    "tests/observe/test_instrumentation.py",
    "tests/observe/test_conventions.py",
    "tests/observe/test_live_dashboard.py",
)
QUICK = ("tests/facade", "tests/engine", "tests/lifecycle", "tests/packaging")
NOT_QUICK = ("tests/engine/test_exhaustive.py", "tests/lifecycle/test_workers.py")


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or among those that pyenv keeps."""
    kept = Path.home() / ".pyenv" / "versions" / f"{version}.*" / "bin" / "python"
    for candidate in [shutil.which(f"python{version}"), *sorted(glob(str(kept)))]:
        if candidate is not None and _runs(candidate):
            return candidate
    return None


def _runs(candidate: str) -> bool:
    """pyenv has a command for each version, whether it may be used here or not."""
    return subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0


def environment(name: str, base: str, requirements: list[str]) -> str:
    """A new venv with these and with outlast from this tree; its Python."""
    folder = VENVS / name
    subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", "."], cwd=ROOT, check=True)
    return python


def tested(python: str, tests: tuple[str, ...], without: tuple[str, ...]) -> bool:
    """Run them; whether they pass."""
    command = [python, "-m", "pytest", "-q", "-m", "not (real or timed)", "-p", "no:cacheprovider"]
    ignored = [f"--ignore={path}" for path in without]
    return subprocess.run([*command, *ignored, *tests], cwd=ROOT, check=False).returncode == 0


def run_oldest(project: dict[str, Any]) -> bool:
    """On the oldest Python that is found, as somebody has it who has the oldest libraries."""
    version = next(v for v in pythons(project) if interpreter(v) is not None)
    wanted = [*oldest(project), *tools(project)]
    print(f"Python {version}: {' '.join(wanted)}", flush=True)
    python = environment("oldest", interpreter(version) or "", wanted)
    return tested(python, LIBRARIES, NEED_NEWER)


def run_pythons(project: dict[str, Any]) -> bool:
    """A quick part of the tests, on each Python, with the newest libraries."""
    passed: dict[str, str] = {}
    for version in pythons(project):
        base = interpreter(version)
        if base is None:
            passed[version] = "not found"
            continue
        print(f"Python {version}", flush=True)
        python = environment(version, base, [*newest(project), *tools(project)])
        passed[version] = "passed" if tested(python, QUICK, NOT_QUICK) else "FAILED"
    print(*(f"Python {version}: {result}" for version, result in passed.items()), sep="\n")
    return "passed" in passed.values() and "FAILED" not in passed.values()


def pythons(project: dict[str, Any]) -> list[str]:
    """The versions that the classifiers name, oldest first."""
    lines = "\n".join(project["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", lines, re.MULTILINE)


def newest(project: dict[str, Any]) -> list[str]:
    """The same libraries as in `oldest`, as pyproject.toml has them."""
    names = {re.split("[=[]", pin)[0] for pin in oldest(project)}
    extras = project["optional-dependencies"].values()
    all_of_them = [*project["dependencies"], *(r for extra in extras for r in extra)]
    return [r for r in dict.fromkeys(all_of_them) if re.split("[>[]", r)[0] in names]


def tools(project: dict[str, Any]) -> list[str]:
    """What these tests need beside, as the extra `dev` has it."""
    dev = project["optional-dependencies"]["dev"]
    return [r for r in dev if re.split("[>[]", r)[0] in TOOLS]


if __name__ == "__main__":
    passed = {"oldest": run_oldest, "pythons": run_pythons}[sys.argv[1]](read())
    sys.exit(0 if passed else 1)
