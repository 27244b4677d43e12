"""Writes a recording while a server runs, and never at the server's expense.

Knows the format in `recording.py`, one file and one thread; knows no engine. Lines are encoded by whoever calls and
written by the thread.
"""

import logging
import queue
import threading
import zlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.core.aliases import Aliases, DenseAliases, NoAliases
from engine.core.config import CoreConfig
from engine.core.errors import ConfigError
from engine.core.ids import RequestId
from engine.core.journal import Call
from engine.core.log import Record
from traces.recording import VERSION, End, Header, Line, Prompt, Tokens, config_hash

_CHUNK_BYTES: Final = 1 << 16
_GZIP: Final = 16 + zlib.MAX_WBITS

_NO_ALIASES: Final = NoAliases()

_LOG = logging.getLogger(__name__)


class RecordingWriter:
    """Writes a recording in a thread of its own, so that a slow disk never holds up whoever calls.

    When writing fails, or the disk falls behind by more than a bound and nobody may wait for it, recording ends there: that is logged once, `failure` says why,
    and later calls do nothing. Implements the live engine's recorder.
    """

    def __init__(
        self,
        path: Path,
        *,
        config: CoreConfig,
        model: str,
        record_tokens: bool = False,
        hash_block_tokens: int = 0,
        most_pending_bytes: int = 1 << 26,
        waits: bool = False,
    ) -> None:
        """Creates the file and writes its header.

        Args:
            path: gzip where it ends in `.gz`.
            config: of the core that is recorded.
            model: its name.
            record_tokens: keep prompts and sampled tokens, which are the clients' content.
            hash_block_tokens: as in `Header`.
            most_pending_bytes: how far the disk may fall behind.
            waits: for the disk, where it has fallen so far behind, instead of ending the recording.

        Raises:
            ConfigError: the file cannot be created.
        """
        self.path = path
        self.failure: str | None = None
        self._record_tokens = record_tokens
        self._aliases = DenseAliases(config.memory.block_size)
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._num_calls = 0
        self._pending = 0
        self._most_pending = most_pending_bytes
        self._lock = threading.Condition()
        self._waits = waits
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = False
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, _GZIP) if path.suffix == ".gz" else None
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"cannot create the recording {path}: {error.strerror}") from error
        self._put(
            Header(
                version=VERSION,
                model=model,
                config=config,
                config_hash=config_hash(config),
                has_tokens=record_tokens,
                hash_block_tokens=hash_block_tokens,
            )
        )
        self._thread = threading.Thread(target=self._write, name="kilburn-recording", daemon=True)
        self._thread.start()

    @property
    def aliases(self) -> Aliases:
        """Under what names content is recorded."""
        return self._aliases if self.failure is None else _NO_ALIASES

    def prompt(self, request: RequestId, tokens: NDArray[np.int32]) -> None:
        """Notes the tokens of a request that is about to be submitted, where tokens are kept."""
        if self._record_tokens and self.failure is None:
            self._put(Prompt(request, tuple(tokens.tolist())))

    def sampled(self, step: int, tokens: NDArray[np.int32]) -> None:
        """Notes what a step sampled, where tokens are kept."""
        if self._record_tokens and self.failure is None:
            self._put(Tokens(step, tuple(tokens.tolist())))

    def call(self, call: Call, decisions: list[Record]) -> None:
        """Notes a call and what was decided in it."""
        if self.failure is None:
            self._put(call, *decisions)
            self._num_calls += 1

    def close(self) -> None:
        """Writes the last line and closes the file; waits for the disk, unless recording has failed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self.failure is None:
            self._put(End(self._num_calls))
            self._flush()
        self._chunks.put(None)
        if self.failure is None:
            self._thread.join()

    def _put(self, *lines: Line) -> None:
        for line in lines:
            self._buffer += self._encoder.encode(line)
            self._buffer += b"\n"
        if len(self._buffer) >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if self._waits:
                self._lock.wait_for(self._has_room)
            self._pending += len(self._buffer)
            late = self._pending > self._most_pending and not self._waits
        if late:
            self._fail("the disk cannot keep up")
            return
        self._chunks.put(bytes(self._buffer))
        self._buffer.clear()

    def _has_room(self) -> bool:
        return self._pending <= self._most_pending or self.failure is not None

    def _write(self) -> None:
        """The thread: writes chunks until told to end; after a failure it only takes them away."""
        with self._file:
            while (chunk := self._chunks.get()) is not None:
                with self._lock:
                    self._pending -= len(chunk)
                    self._lock.notify()
                self._write_through(chunk, last=False)
            self._write_through(b"", last=True)

    def _write_through(self, chunk: bytes, *, last: bool) -> None:
        """Writes a chunk so that what is in the file can be read even if no other follows."""
        if self.failure is not None:
            return
        if self._deflate is not None:
            mode = zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
            chunk = self._deflate.compress(chunk) + self._deflate.flush(mode)
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._fail(error.strerror or str(error))

    def _fail(self, why: str) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = why
        _LOG.error("recording to %s ended early: %s; serving goes on", self.path, why)
