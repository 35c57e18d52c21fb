"""What would be published: all of src and no more, small, true about itself; and it delivers."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Distribution, build, unzipped

WHEEL_BYTES_MAX = 1_200_000  # twice what it was when this was written
SDIST_BYTES_MAX = 3_000_000
SERVES = """
import sys
from importlib.metadata import version
import outlast
from outlast.testing import MockCluster

assert outlast.__file__.startswith(sys.prefix), outlast.__file__
assert version("outlast") == sys.argv[1]
with MockCluster(topics=["t"]) as cluster:
    with outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        assert producer.send("t", b"from a wheel").get(timeout=20).offset == 0
    assert [record.value for record in cluster.records("t", 0)] == [b"from a wheel"]
"""


def information(wheel: Distribution, name: str) -> bytes:
    (folder,) = {name.partition("/")[0] for name in wheel.files if ".dist-info/" in name}
    return wheel.files[f"{folder}/{name}"]


@pytest.fixture(scope="session")
def metadata(wheel: Distribution) -> Message:
    return email.message_from_bytes(information(wheel, "METADATA"))


def test_the_wheel_is_all_of_src_and_nothing_else(wheel: Distribution, tree: set[str]) -> None:
    about = {name for name in wheel.files if ".dist-info/" in name}
    source = {name.removeprefix("src/") for name in tree if name.startswith("src/")}
    assert wheel.files.keys() - about == source
    assert {name.partition("/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert "outlast/py.typed" in wheel.files
    assert wheel.path.stat().st_size < WHEEL_BYTES_MAX


def test_the_sdist_is_the_tree_and_makes_the_same_wheel(
    sdist: Distribution, wheel: Distribution, tree: set[str], tmp_path: Path
) -> None:
    assert sdist.files.keys() - {"PKG-INFO"} == tree
    assert sdist.path.stat().st_size < SDIST_BYTES_MAX
    with tarfile.open(sdist.path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = unzipped(build("wheel", source, tmp_path / "wheel"))
    assert again.path.name == wheel.path.name
    assert again.files == wheel.files


def test_the_installed_wheel_delivers(
    wheel: Distribution, metadata: Message, tmp_path: Path
) -> None:
    """In a venv with nothing of ours but the wheel. The dependencies it finds by a .pth file."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    library = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(library.stdout.strip()) / "dependencies.pth").write_text("\n".join(ours))
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--python", python, "install"]
    # the folder may hold an outlast, too: that with which these tests are run
    options = ["--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip, *options, wheel.path], check=True)
    subprocess.run([python, "-I", "-c", SERVES, metadata["Version"]], check=True, timeout=60)
    command = [python.parent / "outlast", "path"]
    site = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert (Path(site) / "sitecustomize.py").is_file()
    assert Path(site).is_relative_to(tmp_path)


def test_it_says_what_it_is(metadata: Message, wheel: Distribution) -> None:
    assert f'\nversion = "{metadata["Version"]}"\n' in (ROOT / "pyproject.toml").read_text()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert information(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert metadata["Description-Content-Type"] == "text/markdown"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    oldest = metadata["Requires-Python"].removeprefix(">=")
    versions = [c.rpartition(" ")[2] for c in classifiers if "Python :: 3." in c]
    assert versions[0] == oldest
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in versions


def test_it_needs_four_libraries_and_no_more(metadata: Message) -> None:
    needed = [r for r in metadata.get_all("Requires-Dist") or [] if "extra ==" not in r]
    names = {requirement.partition(">")[0].partition("<")[0] for requirement in needed}
    assert names == {
        "kafka-python[crc32c]",
        "opentelemetry-api",
        "prometheus-client",
        "tenacity",
    }
