"""The oldest versions that pyproject.toml allows, as requirements: `make oldest` installs them.

    python -m tests.packaging.oldest            # of what users install, extras included

A range such as `>=8.2` becomes `==8.2`. A dependency without a lower bound is an error: nobody
would know what works.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
OURS = ("dev", "bench", "docs")  # extras that no user installs
BESIDE = ("opentelemetry-sdk",)  # of ours, but users have it, and it wants its API's version


def oldest(project: dict[str, Any]) -> list[str]:
    """Requirements, in order."""
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in OURS}
    beside = [r for r in project["optional-dependencies"]["dev"] if r.startswith(BESIDE)]
    wanted = [*project["dependencies"], *(r for extra in extras.values() for r in extra), *beside]
    return [pinned(requirement) for requirement in wanted]


def pinned(requirement: str) -> str:
    """With the lower bound as the one version."""
    found = re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)>=([\w.]+)(?:,[<!=\w.]+)*", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} has no lower bound")
    return f"{found[1]}=={found[2]}"


def read() -> dict[str, Any]:
    """The table `project`."""
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]


if __name__ == "__main__":
    print(*oldest(read()), sep="\n")
