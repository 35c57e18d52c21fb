"""Put on PYTHONPATH by `outlast run`: a Python that starts imports it, and swaps when it is time.

Python imports a module `sitecustomize` at its start if it finds one; this is the first on the path.
It waits until the application imports kafka-python, then imports outlast and calls `install()`.

Rules:
* It is run by every Python below the application, whatever these are: one that never imports
  kafka-python pays for nothing, one without outlast goes on without it and is told so, and one that
  is too old for outlast can still read this file (hence no annotations).
* The application finds all as it would without: another `sitecustomize` runs too, and the folder of
  this one is not on `sys.path`. (PYTHONPATH keeps it, for child processes.)
"""

import importlib
import os
import sys


class AfterImport:
    """A finder on `sys.meta_path` that finds nothing itself: it has `swap` called when one of the
    two packages has been imported.
    """

    packages = ("kafka", "outlast")

    def find_spec(self, name, path=None, target=None):
        """What the other finders find, with a loader that tells."""
        if name not in self.packages:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if finder is self or find_spec is None else find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    tell_after(spec.loader, self.swap)
                return spec
        return None

    def swap(self):
        """Install, as soon as both packages are there. outlast imports kafka: if it is what the
        application imports first, this is called for `kafka` in the middle of that.
        """
        if "kafka.producer.kafka" not in sys.modules:
            return  # another package of that name
        if "outlast" not in sys.modules and not imported_outlast():
            return
        install = getattr(sys.modules["outlast"], "install", None)
        if install is not None:
            install()
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def imported_outlast():
    """Whether this Python has outlast; if not, that is told."""
    try:
        importlib.import_module("outlast")
    except ImportError as error:
        if getattr(error, "name", None) != "outlast":
            raise
        sys.stderr.write(
            f"outlast: not installed for {sys.executable}, where kafka.KafkaProducer stays "
            "kafka-python's\n"
        )
        return False
    return True


def tell_after(loader, tell):
    """Have the loader call `tell` when it has run the module."""
    run = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        run(module)
        tell()

    loader.exec_module = exec_module


def chain():
    """Import the `sitecustomize` that Python would have imported without ours, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


sys.meta_path.insert(0, AfterImport())
chain()
