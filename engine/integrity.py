"""The last calls to the core, kept at hand so that a broken invariant leaves evidence. Knows records and one file; no engine."""

import logging
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from engine.core.aliases import Aliases, NoAliases
from engine.core.journal import Call
from engine.core.log import Record
from engine.desk import CallRecorder

_MOST_LINES: Final = 100_000

_LOG = logging.getLogger(__name__)


class LastCalls:
    """A recorder that keeps the last calls and decisions, and passes them on to another where there is one."""

    def __init__(self, path: Path, recorder: CallRecorder | None = None) -> None:
        """`path`: where `dump` writes. Without `recorder` nothing is kept of clients' content."""
        self.path = path
        self._recorder = recorder
        self._lines: deque[Call | Record] = deque(maxlen=_MOST_LINES)
        self._aliases: Aliases = NoAliases()

    @property
    def aliases(self) -> Aliases:
        """Those of the recorder behind it."""
        return self._aliases if self._recorder is None else self._recorder.aliases

    def call(self, call: Call, decisions: list[Record]) -> None:
        """Keeps a call and its decisions."""
        self._lines.append(call)
        self._lines.extend(decisions)
        if self._recorder is not None:
            self._recorder.call(call, decisions)

    def dump(self) -> None:
        """Writes what is kept, one JSON object a line as in recordings; says so in the log, and whether it failed."""
        encoder = msgspec.json.Encoder()
        try:
            with self.path.open("wb") as file:
                file.writelines(encoder.encode(line) + b"\n" for line in self._lines)
        except OSError as error:
            _LOG.error("the decision log cannot be written to %s: %s", self.path, error.strerror)
        else:
            _LOG.error(
                "the last %d lines of the decision log are in %s", len(self._lines), self.path
            )
