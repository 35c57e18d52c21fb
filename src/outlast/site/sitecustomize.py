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


class AfterKafka:
    """A finder on `sys.meta_path` that finds nothing itself: it has `swap` called when kafka has
    been imported, and then it goes.
    """

    def find_spec(self, name, path=None, target=None):
        """What the other finders find, with a loader that tells."""
        if name != "kafka":
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
        """Install, if this is kafka-python and there is an outlast. Where outlast is what imports
        kafka, this is called in the middle of that; so outlast imports kafka first of all.
        """
        if "kafka.producer.kafka" not in sys.modules:
            return  # another package of that name
        sys.meta_path.remove(self)
        try:
            ours = importlib.import_module("outlast.swap")
        except ImportError as error:
            if getattr(error, "name", None) != "outlast":
                raise
            sys.stderr.write(
                f"outlast: not installed for {sys.executable}, where kafka.KafkaProducer stays "
                "kafka-python's\n"
            )
        else:
            ours.install()


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


sys.meta_path.insert(0, AfterKafka())
chain()
