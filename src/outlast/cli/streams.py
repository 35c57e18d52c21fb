"""The standard streams as a command finds them: open, closed, full, or with no reader any more.

* If stdout cannot be written to, the command cleans up, says so in one line, and ends with a code
  of its own. If only the reader went away, as in `| head`, it says nothing.
* What cannot be written to stderr is lost, and changes nothing.
* A closed stdin is an empty one.

Streams that others have put in place, such as a test's, stay as they are.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

UNWRITTEN = 74  # EX_IOERR of sysexits.h; no command has it for a verdict


class UnwrittenError(Exception):
    """Stdout takes nothing. It is no OSError: whoever handles those means another file."""

    def __init__(self, reason: str, *, reader_gone: bool = False) -> None:
        super().__init__(f"stdout cannot be written to: {reason}")
        self.reader_gone = reader_gone


@contextmanager
def standard_streams() -> Iterator[None]:
    """A command runs in it.

    Raises:
        SystemExit: with `UNWRITTEN`.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = before[0] or _nothing("r")
    sys.stderr = _watched(before[2], telling=False)
    try:
        if before[1] is None:
            raise UnwrittenError("it is closed")
        sys.stdout = _watched(before[1], telling=True)
        try:
            yield
        finally:
            sys.stdout.flush()
    except UnwrittenError as error:
        if not error.reader_gone:
            print(f"outlast: {error}", file=sys.stderr)
        sys.exit(UNWRITTEN)
    finally:
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def _nothing(mode: str) -> TextIO:
    """Whoever opens the next file or socket would have this descriptor else."""
    return open(os.devnull, mode)  # type: ignore[return-value]  # open to the process's end


def _watched(stream: TextIO | None, *, telling: bool) -> TextIO:
    if stream is None:
        return _nothing("w")
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    raw: Any = _Watched(getattr(stream.buffer, "raw", stream.buffer), telling=telling)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Watched(io.RawIOBase):
    """A raw stream. What it cannot write is told, or lost."""

    def __init__(self, raw: Any, *, telling: bool) -> None:
        super().__init__()
        self._raw = raw
        self._telling = telling

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def fileno(self) -> int:
        """As before."""
        return int(self._raw.fileno())

    def isatty(self) -> bool:
        """As before."""
        return bool(self._raw.isatty())

    def write(self, data: Any) -> int:
        """What could be written of it.

        Raises:
            UnwrittenError: nothing could, and that is to be told.
        """
        try:
            return int(self._raw.write(data))
        except OSError as error:
            if not self._telling:
                return len(data)
            gone = isinstance(error, BrokenPipeError)
            raise UnwrittenError(error.strerror or str(error), reader_gone=gone) from None
