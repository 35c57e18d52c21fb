"""The compiled wheel is built, is imported and delivers. (`make test-compiled` runs all on it.)"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
HEADER = Path(sysconfig.get_path("include"), "Python.h")

DELIVERS = """
import pickle
import sys
from outlast import KafkaProducer
from outlast.engine import batch, sender
from outlast.io import door
from outlast.testing import MockCluster

for module in batch, sender, door:
    assert not module.__file__.endswith(".py"), module
    assert module.__file__.startswith(sys.argv[1]), module
with MockCluster(nodes=3, topics={"t": 3}) as cluster:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send("t", b"%d" % number, key=b"k") for number in range(500)]
        offsets = [future.get(20).offset for future in sent]
        cluster.kill(cluster.leader("t", sent[0].get(20).partition))
        sent = [producer.send("t", b"%d" % number, key=b"k") for number in range(500, 1000)]
        offsets += [future.get(20).offset for future in sent]
        assert offsets == list(range(1000))
        (gap,) = producer.gaps()
        assert gap.records_delivered > 0
        assert pickle.loads(pickle.dumps(gap)) == gap
    logs = [cluster.records("t", p) for p in range(3)]
    assert [int(r.value) for log in logs for r in log] == list(range(1000))
"""


def built(folder: Path, **environment: str) -> Path:
    """The wheel that a build with these variables gives."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | environment,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_without_being_asked_for_the_wheel_is_pure(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as files:
        assert not [name for name in files.namelist() if name.endswith((".so", ".pyd", ".c"))]


@pytest.mark.skipif(importlib.util.find_spec("mypyc") is None, reason="mypyc is not installed")
@pytest.mark.skipif(not (which(COMPILER) and HEADER.exists()), reason="no C compiler for Python")
@pytest.mark.timeout(600)
def test_the_compiled_wheel_delivers(tmp_path: Path) -> None:
    quickly = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1", "MYPYC_OPT_LEVEL": "0"}
    wheel = built(tmp_path, **quickly)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "library")
        names = set(files.namelist())
    assert {"outlast/engine/sender.py", "outlast/producer.py"} <= names  # tracebacks show it
    subprocess.run(
        [sys.executable, "-c", DELIVERS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "library")},
        check=True,
        timeout=120,
    )
