"""`outlast run`: all is as `python` has it, but for the producer."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.testing import MockCluster
from tests.swap.processes import FOLDER, MAIN, OUTLAST, PYTHON, RUN, environment, path, run, said

SELF = """\
import json, os, sys
print(json.dumps([
    sys.argv, sys.orig_argv, sys.path, __name__, globals().get("__file__"), sys.flags.dev_mode,
    sys.flags.optimize, sys.warnoptions, sys.executable, sys.prefix, os.getcwd(), sys.stdin.read(),
    sorted(name for name in sys.modules if "outlast" in name or name.startswith("kafka")),
]))
"""
FAILING = """\
def broken():
    raise ValueError("no good")

try:
    broken()
except ValueError as error:
    raise RuntimeError("on the way") from error
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(SELF)
    (tmp_path / "failing.py").write_text(FAILING)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(SELF)
    (tmp_path / "broken.py").write_text("def (:\n")
    return tmp_path


# --- as python has it -----------------------------------------------------------------------------

FORMS: dict[str, tuple[str, ...]] = {
    "a file": ("app.py", "one", "-m", "--two=3", "", "a b"),
    "a module": ("-m", "package", "-x", "--help"),
    "code": ("-c", SELF, "one", "-E"),
    "from stdin": ("-", "one", "two"),
    "a folder": ("package", "one"),
    "Python's options": ("-O", "-X", "dev", "-Wignore", "-W", "error::UserWarning", "app.py", "-I"),
    "an exit code": ("-c", "import sys; sys.exit(7)"),
    "an exit message": ("-c", "import sys; sys.exit('it is over')"),
    "a traceback": ("failing.py",),
    "a traceback of code": ("-c", FAILING),
    "a traceback of a module": ("-m", "failing"),
    "a syntax error": ("broken.py",),
    "no such file": ("nothing.py", "one"),
    "no such module": ("-m", "nothing"),
    "nothing to run in a folder": (".",),
    "a failing import": ("-c", "import kafka.nothing"),
    "the version": ("-V",),
    "an unknown option": ("-Z",),
}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_differs(form: str, app: Path) -> None:
    stdin = SELF if form == "from stdin" else "what comes in"
    there = run(PYTHON, *FORMS[form], folder=app, stdin=stdin)
    here = run(RUN, *FORMS[form], folder=app, stdin=stdin)
    assert there.stdout or there.stderr or there.returncode
    assert (here.returncode, here.stdout, here.stderr) == (
        there.returncode,
        there.stdout,
        there.stderr,
    )


def test_variables_are_the_same_but_for_the_path() -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    more = {"PYTHONPATH": path("one", "", "two"), "PYTHONUNBUFFERED": "1"}
    there = json.loads(said(PYTHON, "-c", code, env=more))
    here = json.loads(said(RUN, "-c", code, env=more))
    assert here.pop("PYTHONPATH") == path(FOLDER, "one", "two")
    assert there.pop("PYTHONPATH") == path("one", "", "two")
    assert here == there


def started(code: str) -> tuple[subprocess.Popen[str], int]:
    """An application that is running, and the process id that it sees."""
    process = subprocess.Popen(
        [*RUN, "-u", "-c", f"import os, signal, sys, time\nprint(os.getpid())\n{code}"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


SIGNALS = {
    "SIGTERM": (signal.SIGTERM, "time.sleep(60)", -signal.SIGTERM, ""),
    "SIGINT": (signal.SIGINT, "time.sleep(60)", -signal.SIGINT, "KeyboardInterrupt"),
    "a handler": (
        signal.SIGTERM,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('ready')\ntime.sleep(60)",
        5,
        "",
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_reach_the_application_itself(name: str) -> None:
    number, code, exit_code, told = SIGNALS[name]
    process, pid = started(code)
    assert pid == process.pid
    assert process.stdout is not None
    if name == "a handler":
        process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == exit_code
    assert errors.strip().endswith(told)


# --- but for the producer -------------------------------------------------------------------------

SENDS = """\
import sys
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
offset = producer.send("t", sys.argv[2].encode()).get(10).offset
producer.close()
print(type(producer).__module__, offset)
"""
CHILD = """\
import subprocess, sys
subprocess.run([sys.executable, "sends.py", *sys.argv[1:]], check=True)
"""
THREAD = f"""\
import threading
thread = threading.Thread(target=exec, args=({SENDS!r}, {{}}))
thread.start()
thread.join()
"""
PYTEST = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir=.", "test_sends.py")
WAYS_TO_SEND = {
    "a file": ("sends.py",),
    "a module": ("-m", "sends"),
    "code": ("-c", SENDS),
    "from stdin": ("-",),
    "a child": ("-c", CHILD),
    "a thread": ("-c", THREAD),
    "multiprocessing": ("spawns.py",),
    "outlast first": ("-c", f"import outlast\n{SENDS}"),
    "pytest": PYTEST,
}
TEST = """\
import os, sys
import pytest
pytest.register_assert_rewrite("outlast")  # pytest does so itself for what it finds as a plugin's
import outlast
sys.argv = ["sends", *os.environ["SENDS"].split(" ", 1)]

def test_it():
    import sends
"""
SPAWNS = """\
import multiprocessing, sys

def work(arguments):
    sys.argv = ["sends", *arguments]
    import sends

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(work, [sys.argv[1:]])
        pool.close()
        pool.join()
"""


@pytest.fixture
def senders(tmp_path: Path) -> Path:
    (tmp_path / "sends.py").write_text(SENDS)
    (tmp_path / "test_sends.py").write_text(TEST)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    return tmp_path


@pytest.mark.parametrize("way", WAYS_TO_SEND)
def test_the_producer_is_ours(way: str, senders: Path, cluster: MockCluster) -> None:
    arguments = cluster.bootstrap_servers, f"by {way}"
    plain = () if way == "pytest" else arguments
    shown = said(
        RUN,
        *WAYS_TO_SEND[way],
        *plain,
        folder=senders,
        stdin=SENDS if way == "from stdin" else "",
        env={"SENDS": " ".join(arguments)},
    )
    offset = int(shown.split("outlast.producer ")[1].split()[0])
    assert cluster.records("t", 0)[offset].value == f"by {way}".encode()


def test_where_somebody_else_starts_python(senders: Path, cluster: MockCluster) -> None:
    """`outlast path` tells what a process manager puts into a variable."""
    folder = said(OUTLAST, "path").strip()
    assert folder == FOLDER
    arguments = "sends.py", cluster.bootstrap_servers, "managed"
    assert said(PYTHON, *arguments, folder=senders).startswith("kafka.producer.kafka ")
    shown = said(PYTHON, *arguments, folder=senders, env={"PYTHONPATH": path(folder)})
    assert shown.startswith("outlast.producer ")


def test_it_is_on_the_path_of_commands(senders: Path, cluster: MockCluster) -> None:
    """The console script is wired to it."""
    command = Path(sys.executable).with_name("outlast")
    shown = said((str(command), "run"), "sends.py", cluster.bootstrap_servers, "x", folder=senders)
    assert shown.startswith("outlast.producer ")


def test_no_extra_is_needed(senders: Path, cluster: MockCluster) -> None:
    bare = f"import sys; sys.modules.update(typer=None, rich=None, jinja2=None); {MAIN}"
    command = (sys.executable, "-c", bare)
    shown = said((*command, "run"), "sends.py", cluster.bootstrap_servers, "x", folder=senders)
    assert shown.startswith("outlast.producer ")
    assert said((*command, "path")).strip() == FOLDER
    other = run(command, "demo")
    assert other.returncode == 1
    assert "`outlast run` and `outlast path` need nothing" in other.stderr


def test_an_application_without_kafka_does_not_pay_for_it() -> None:
    code = (
        "import sys; print([name for name in sys.modules if 'kafka' in name or 'outlast' in name],"
        " [type(finder).__name__ for finder in sys.meta_path])"
    )
    there, here = said(PYTHON, "-c", code), said(RUN, "-c", code)
    assert there.startswith("[] ")
    assert here.replace("'AfterKafka', ", "") == there


def test_the_finder_goes_when_its_work_is_done(cluster: MockCluster) -> None:
    code = "import sys, kafka; print([f for f in sys.meta_path if 'After' in type(f).__name__])"
    assert said(RUN, "-c", code) == "[]\n"


def test_another_module_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kafka.py").write_text("print('mine')")
    code = "import kafka, sys; print('outlast' in sys.modules)"
    assert said(RUN, "-c", code, folder=tmp_path) == "mine\nFalse\n"


def test_a_python_without_outlast_goes_on_and_says_so(tmp_path: Path, cluster: MockCluster) -> None:
    (tmp_path / "outlast.py").write_text(
        "raise ModuleNotFoundError('No module named outlast', name='outlast')"
    )
    env = {"PYTHONPATH": path(FOLDER, tmp_path)}
    done = run(PYTHON, "-c", SENDS, cluster.bootstrap_servers, "other", env=env)
    assert done.stdout.startswith("kafka.producer.kafka ")
    assert done.stderr == (
        f"outlast: not installed for {sys.executable}, where kafka.KafkaProducer stays "
        "kafka-python's\n"
    )


def test_an_outlast_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "outlast.py").write_text("import a_library_that_is_missing")
    done = run(PYTHON, "-c", "import kafka", env={"PYTHONPATH": path(FOLDER, tmp_path)})
    assert done.returncode == 1
    assert "No module named 'a_library_that_is_missing'" in done.stderr


# --- other sitecustomize modules ------------------------------------------------------------------

CUSTOM = {
    "one that works": "import sys; sys.customized = getattr(sys, 'customized', 0) + 1",
    "one that fails": "import sys; sys.customized = 'partly'; raise ValueError('not today')",
    "one that misses something": "import a_library_that_is_missing",
    "one that imports kafka": "import kafka; import sys; sys.customized = 1",
}


@pytest.mark.parametrize("custom", CUSTOM)
def test_another_sitecustomize_runs_as_if_alone(
    custom: str, senders: Path, cluster: MockCluster
) -> None:
    (senders / "sitecustomize.py").write_text(CUSTOM[custom])
    code = (
        "import sys\nfound = sys.modules.get('sitecustomize')\n"
        "print(getattr(sys, 'customized', None), getattr(found, '__file__', None), sys.path)\n"
    )
    there = run(PYTHON, "-c", code, env={"PYTHONPATH": path(senders)})
    here = run(PYTHON, "-c", code, env={"PYTHONPATH": path(FOLDER, senders)})
    assert there.returncode == 0
    assert here.stdout == there.stdout
    assert here.stderr == there.stderr
    arguments = "-c", SENDS, cluster.bootstrap_servers, "customized"
    assert run(RUN, *arguments, env={"PYTHONPATH": path(senders)}).stdout.startswith(
        "outlast.producer "
    )


def test_any_python_3_can_read_ours() -> None:
    """Child processes may be of an older one."""
    text = (Path(FOLDER) / "sitecustomize.py").read_text(encoding="utf-8")
    assert ast.parse(text, feature_version=(3, 6))
    assert "__future__" not in text


def test_inside_of_it_again(senders: Path, cluster: MockCluster) -> None:
    code = f"import subprocess, sys; subprocess.run({list(RUN)!r} + sys.argv[1:], check=True)"
    inner = "import os; print(os.environ['PYTHONPATH'])"
    shown = said(RUN, "-c", code, "-c", inner, env={"PYTHONPATH": path(senders)})
    assert shown.strip() == path(FOLDER, senders)


# --- what cannot be run ---------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    done = run(RUN, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_nothing() -> None:
    told = refused()
    assert told.startswith("outlast run: nothing to run\n\nUsage: outlast run")


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    command = tmp_path / "serve"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return command


def test_a_command(serve: Path) -> None:
    told = refused("-u", "-W", "error", "-Xdev", "serve", "app:app")
    assert told == (
        "outlast run: serve is a command and no Python file; if it is written in Python: "
        f"outlast run {serve}, or outlast run -m serve\n"
    )


@pytest.mark.parametrize("options", [("-E",), ("-I",), ("-uS",), ("-W", "error", "-bE")])
def test_options_with_which_nothing_would_be_swapped(options: tuple[str, ...]) -> None:
    told = refused(*options, "app.py")
    letter = options[-1][-1]
    assert told.startswith(f"outlast run: with -{letter} Python ignores ")
    assert "call outlast.install() in the application" in told


@pytest.mark.parametrize("asked", ["-h", "--help"])
def test_help(asked: str) -> None:
    assert said(RUN, asked).startswith("Usage: outlast run ")


def test_the_commands_are_listed() -> None:
    shown = said(OUTLAST, "--help", env={"COLUMNS": "200"})
    assert any(line.split()[1:2] == ["run"] for line in shown.splitlines())
    assert any(line.split()[1:2] == ["path"] for line in shown.splitlines())
