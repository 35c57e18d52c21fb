"""`install()` and `uninstall()`: `kafka.KafkaProducer` becomes ours, in code that nobody edits.

kafka-python's class stays where it is, so that every name under which it was imported goes on to
mean the same; what changes is what it makes. Its `__init__` turns the new object into one of
`outlast.KafkaProducer`, which is a subclass: `isinstance` holds. An object of the application's own
subclass is turned into one of a *twin*, a class of both: the application's methods come first, and
what they call by `super()` is ours.

Rules:
* Only producers that are built while it is installed are ours, and they stay so afterwards.
* Nothing of kafka-python but the members of that one class is touched. `uninstall` puts back what
  was there, and leaves alone what somebody else has put there meanwhile.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

from outlast.producer import KafkaProducer

log = logging.getLogger(__name__)

Theirs: Any = KafkaProducer.__bases__[-1]  # kafka.KafkaProducer, whoever puts what under that name

_lock = threading.RLock()
_replaced: dict[str, tuple[Any, Any]] = {}  # member → (kafka-python's, what stands there instead)
_twins: WeakValueDictionary[type, type] = WeakValueDictionary()


def install() -> None:
    """From now on `kafka.KafkaProducer(...)` builds an `outlast.KafkaProducer`.

    So does every subclass of it. It does not matter whether the class was imported before, and
    under which name. Consumers, admin clients and producers that exist already stay what they are.
    Thread-safe. It is a switch and not a count: to install twice is to install once.
    """
    with _lock:
        if _replaced:
            return
        replacements: dict[str, Any] = {"DEFAULT_CONFIG": KafkaProducer.DEFAULT_CONFIG}
        for name, ours in vars(KafkaProducer).items():
            theirs = vars(Theirs).get(name)
            if isinstance(ours, FunctionType) and theirs is not None:
                replacements[name] = _told_apart(theirs, ours)
        replacements["__init__"] = _converting(vars(Theirs)["__init__"])
        for name, ours in replacements.items():
            _replaced[name] = vars(Theirs)[name], ours
            setattr(Theirs, name, ours)
    log.info("kafka.KafkaProducer is outlast's in this process from now on")


def uninstall() -> None:
    """From now on `kafka.KafkaProducer` is kafka-python's again. Without effect if it is.

    Producers that were built meanwhile stay ours. (Only a subclass that calls kafka-python's
    methods by its name and not by `super()` must be closed before.) Thread-safe.
    """
    with _lock:
        for name, (theirs, ours) in _replaced.items():
            if vars(Theirs).get(name) is ours:
                setattr(Theirs, name, theirs)
        _replaced.clear()


def _converting(theirs: Callable[..., None]) -> Callable[..., None]:
    """`__init__` of kafka-python's class: makes the object ours, however it was called."""

    @functools.wraps(theirs)
    def __init__(self: Any, *nothing: Any, **configs: Any) -> None:  # noqa: N807
        if not isinstance(self, KafkaProducer):
            # An application's own __setattr__ is for its attributes.
            object.__setattr__(self, "__class__", _ours_of(type(self)))
        KafkaProducer.__init__(self, *nothing, **configs)

    return __init__


def _told_apart(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A method of kafka-python's class. Objects of ours only come here where a subclass calls it
    by its class's name, `KafkaProducer.send(self, ...)`.
    """

    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        return (ours if isinstance(self, KafkaProducer) else theirs)(self, *args, **keywords)

    return method


def _ours_of(theirs: type) -> type:
    if theirs is Theirs:
        return KafkaProducer
    with _lock:
        twin = _twins.get(theirs)
        if twin is None:
            told = ("__module__", "__qualname__", "__doc__")
            twin = type(theirs)(
                theirs.__name__,
                (_Twin, theirs, KafkaProducer),
                {"_outlast_twin_of": theirs, **{name: getattr(theirs, name) for name in told}},
            )
            _twins[theirs] = twin
        return twin


class _Twin:
    """What all twins have: they are of the application's class to whoever makes subclasses or
    pickles. (It has no `__slots__`: objects may only change between classes of one layout.)
    """

    _outlast_twin_of: type

    def __init_subclass__(cls) -> None:
        """The application's own hook is for classes that it knows of."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As an object of the application's class, whose name leads to it in another process; there
        it is ours if that has outlast installed, too.
        """
        twin, theirs = type(self), self._outlast_twin_of
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, arguments, *state = reduced
        if getattr(make, "__name__", "") == "__newobj__":
            make = _new
        arguments = tuple(theirs if argument is twin else argument for argument in arguments)
        return (theirs if make is twin else make, arguments, *state)


def _new(theirs: type, *arguments: Any) -> Any:
    """What `copyreg.__newobj__` does; by another name, as pickle lets that one make an object of
    its own class only.
    """
    return theirs.__new__(theirs, *arguments)
