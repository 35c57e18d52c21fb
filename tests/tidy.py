"""House rules as functions: each takes the root of a checkout and gives its complaints.

The shape (docs/architecture.md, "Rules of the shape"): which part may import which, what the
engine may not touch, how long a file or function may be, and that the documents name what is
there. `ast` reads the code, so that an import inside a function or under TYPE_CHECKING counts like
any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 450
FUNCTION_LINES = 70

ENGINE_BANNED = frozenset(
    ("time", "random", "threading", "socket", "selectors", "ssl", "asyncio", "logging", "os")
)

# part → what of outlast it may import; parts are told by the longest prefix of their name
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "outlast.engine": ("outlast.engine", "outlast.errors"),
    "outlast.observe": ("outlast.observe", "outlast.engine.messages"),
    "outlast.io": ("outlast.io", "outlast.engine", "outlast.errors"),
    "outlast.testing": ("outlast.testing", "outlast.engine", "outlast.config", "outlast.errors"),
    "outlast.cli": ("outlast",),
    "outlast": ("outlast",),  # the facade's files; but nothing imports `testing` or `cli`
}

# The judge: what these files use of outlast.testing is part of it, and nothing else of outlast is.
JUDGE = tuple(f"outlast.testing.{m}" for m in ("cluster", "replica", "apis", "faults", "server"))
JUDGE_KAFKA = ("kafka.protocol", "kafka.record", "kafka.codec")

# One sentence each must hold for a file over the limit: path → why.
LONG_FILES: dict[str, str] = {}

_PLACES = r"(?<![\w.}~-])/(?:home|root|Users|work|tmp)/\w"
_HOSTS = "|".join(
    rf"\b{host}"
    for host in (
        r"py" + r"pi\.org",
        r"python" + r"hosted\.org",
        r"repo1?\.(?:maven|apache)",
        r"docker" + r"\.io",
        r"gh" + r"cr\.io",
        r"npm" + r"js\.",
    )
)


# --- reading the code -----------------------------------------------------------------------------


def sources(root: Path) -> dict[str, Path]:
    """Module name → file, for all of src/outlast."""
    found = {}
    for path in sorted((root / "src" / "outlast").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, `from a import b` being `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - (node.level - 1)]
                base = ".".join([*kept, base] if base else kept)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def within(name: str, *prefixes: str) -> bool:
    """Whether a dotted name is one of the prefixes or below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _of_outlast(root: Path) -> Iterator[tuple[str, str, str]]:
    """Module, place and imported name, for each import of outlast within outlast."""
    for module, path in sources(root).items():
        for line, name in imports(module, path):
            if within(name, "outlast"):
                yield module, f"{path.relative_to(root)}:{line}", name


# --- the shape ------------------------------------------------------------------------------------


def directions(root: Path) -> list[str]:
    """Imports point one way."""
    complaints = []
    for module, place, name in _of_outlast(root):
        part = next(part for part in MAY_IMPORT if within(module, part))
        if not within(name, *MAY_IMPORT[part]):
            complaints.append(f"{place}: {part} may not import {name}")
        elif part == "outlast" and within(name, "outlast.testing", "outlast.cli"):
            complaints.append(f"{place}: nothing imports {name}")
    return complaints


def judge(root: Path) -> list[str]:
    """The mock cluster, with all it uses, never imports the engine: the judge is independent."""
    modules = sources(root)
    waiting = [name for name in JUDGE if name in modules]
    seen = set(waiting)
    complaints = []
    while waiting:
        module = waiting.pop()
        for line, name in imports(module, modules[module]):
            place = f"{modules[module].relative_to(root)}:{line}"
            if within(name, "outlast") and not within(name, "outlast.testing"):
                complaints.append(f"{place}: the judge imports {name}")
            if within(name, "kafka") and not within(name, *JUDGE_KAFKA):
                complaints.append(f"{place}: the judge imports {name}")
            # `from package import module` uses the module; the package itself is lazy
            used = name if name in modules else name.rpartition(".")[0]
            if within(used, "outlast.testing") and used in modules and used not in seen:
                seen.add(used)
                waiting.append(used)
    return complaints


def engine_is_pure(root: Path) -> list[str]:
    """The engine has no clock, dice, thread, lock, socket or log."""
    return [
        f"{path.relative_to(root)}:{line}: the engine imports {name}"
        for module, path in sources(root).items()
        if within(module, "outlast.engine")
        for line, name in imports(module, path)
        if name.partition(".")[0] in ENGINE_BANNED
    ]


def one_adapter(root: Path) -> list[str]:
    """Only io/kafka_net.py names kafka.net, which kafka-python 3.1 rewrites."""
    return [
        f"{path.relative_to(root)}:{line}: only io/kafka_net.py may import {name}"
        for module, path in sources(root).items()
        if module != "outlast.io.kafka_net"
        for line, name in imports(module, path)
        if within(name, "kafka.net")
    ]


# --- size and words -------------------------------------------------------------------------------


def file_budget(root: Path) -> list[str]:
    """No file of src is longer than the reader's patience."""
    return [
        f"{path.relative_to(root)}: {lines} lines, {FILE_LINES} are allowed"
        for path in sources(root).values()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES
        and str(path.relative_to(root)) not in LONG_FILES
    ]


def function_budget(root: Path) -> list[str]:
    """A function fits a screen."""
    return [
        f"{path.relative_to(root)}:{node.lineno}: {node.name} has {lines} lines, "
        f"{FUNCTION_LINES} are allowed"
        for path in sources(root).values()
        for node in ast.walk(_parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    ]


def docstrings(root: Path) -> list[str]:
    """Every file says what it is for."""
    return [
        f"{path.relative_to(root)}: no docstring"
        for path in sources(root).values()
        if not ast.get_docstring(_parsed(path))
    ]


def private_doors(root: Path) -> list[str]:
    """Tests of the engine and in the simulator use inputs and outputs only."""
    complaints = []
    for folder in ("engine", "sim"):
        for path in sorted((root / "tests" / folder).rglob("*.py")):
            place = path.relative_to(root)
            complaints += [f"{place}:{line}: {name}" for line, name in _private(_parsed(path))]
    return complaints


def _private(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each reach for a private member of something else than oneself."""
    named_tuple = ("_replace", "_asdict", "_fields", "_make")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if _is_private(name) and name not in named_tuple:
                yield node.lineno, ast.unparse(node)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ) if _is_private(name):
                yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=module, names=names) if within(module or "", "outlast"):
                for alias in names:
                    if _is_private(alias.name):
                        yield node.lineno, f"from {module} import {alias.name}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def places(root: Path) -> list[str]:
    """No path of one machine and no registry's host name in any file that git knows or may add."""
    complaints = []
    for name in _listed(root):
        text = (root / name).read_text("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if found := re.search(f"{_PLACES}|{_HOSTS}", line):
                complaints.append(f"{name}:{number}: names {found[0]!r}")
    return complaints


def spelling(root: Path) -> list[str]:
    """Words are spelled as codespell knows them; pyproject.toml lists those that are meant so."""
    texts = [name for name in _listed(root) if not name.endswith((".png", ".svg", "LICENSE"))]
    command = [sys.executable, "-m", "codespell_lib", *texts]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() + done.stderr.splitlines()


def _listed(root: Path) -> list[str]:
    """The files that git knows or may add, but for those just taken away."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = sorted(filter(None, done.stdout.split("\0")))
    return [name for name in names if (root / name).is_file()]


# --- documents ------------------------------------------------------------------------------------


def file_map(root: Path) -> list[str]:
    """The file map of docs/architecture.md names every file of src, and no other.

    A package's `__init__.py` that holds nothing but its docstring may be left out.
    """
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    mapped = set(re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE))
    base = root / "src" / "outlast"
    files = {str(path.relative_to(base)): path for path in sources(root).values()}
    empty = {
        name
        for name, path in files.items()
        if name.endswith("/__init__.py") and len(_parsed(path).body) == 1
    }
    return [
        *(
            f"docs/architecture.md: no {name} in the map"
            for name in sorted(files.keys() - mapped - empty)
        ),
        *(f"docs/architecture.md: {name} is not there" for name in sorted(mapped - files.keys())),
    ]


def commands(root: Path) -> list[str]:
    """Each `make x` that a document names is a target of the Makefile."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))
    spoken = re.compile(r"(?:`|^\s*|exec )make ([a-z][\w-]*)", re.MULTILINE)
    documents = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return [
        f"{path.relative_to(root)}: the Makefile has no target {target}"
        for path in [*documents, root / ".ci" / "run"]
        if path.exists()
        for target in spoken.findall(path.read_text("utf-8"))
        if target not in targets
    ]


RULES = (
    directions,
    judge,
    engine_is_pure,
    one_adapter,
    file_budget,
    function_budget,
    docstrings,
    private_doors,
    places,
    spelling,
    file_map,
    commands,
)
