"""Ctrl-C and SIGTERM where no other file of this folder has them: early, and beside workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

INTERRUPTED = 130

# its seeds take an hour, and a worker would go on to the last of them
SIMULATE = """
import sys
from outlast.cli import main, simulate
simulate.CHUNK = 50_000
sys.argv[1:] = ["simulate", "--seeds", "1:100000", "--jobs", "2"]
main()
"""

# the moment is the worst one: in the midst of an import
EARLY = """
import sys
import _outlast_command

class Finger:
    def find_spec(self, name, *_):
        if name == "outlast.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finger())
sys.argv[1:] = ["demo"]
_outlast_command.main()
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")
@pytest.mark.parametrize("how", ["ctrl-c", "sigint", "sigterm"])
def test_workers_of_a_simulation_end_with_it(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SIMULATE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        itself = psutil.Process(process.pid)
        deadline_s = time.monotonic() + 40
        while len(workers := itself.children()) < 2 or not all(map(busy, workers)):
            assert process.poll() is None
            assert time.monotonic() < deadline_s, "no workers"
            time.sleep(0.02)
        if how == "ctrl-c":  # a terminal tells all of them
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT if how == "sigint" else signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (INTERRUPTED, "")
        assert not [worker for worker in workers if worker.is_running()]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def busy(worker: psutil.Process) -> bool:
    return sum(worker.cpu_times()[:2]) > 0.1


def test_ctrl_c_while_it_is_still_being_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
