"""The streams that clients are waiting on, so that a shutdown can end them with a reason.

Knows the engine's streams; knows nothing of HTTP.
"""

from engine.core.errors import ExecutorError, ServeError
from engine.core.ids import RequestId
from engine.requests import Delta, FinishReason, Generation
from gateway.engine import Engine, Stream
from gateway.errors import ShuttingDownError


class OpenStreams:
    """Every stream between its opening and its release. Used from the event loop's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: dict[RequestId, Stream] = {}
        self.draining = False

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, generation: Generation) -> Stream:
        """Starts a generation; the caller must `release` the stream.

        Raises:
            RequestError: it can never be served.
            CapacityError: not now; or not any more, because the server is ending.
        """
        if self.draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")
        stream = self._engine.open(generation)
        self._streams[stream.request_id] = stream
        return stream

    def release(self, stream: Stream) -> None:
        """Forgets a stream, and aborts what has not ended. Any number of times."""
        stream.abort()
        self._streams.pop(stream.request_id, None)

    def drain(self) -> None:
        """Takes no new requests from now on."""
        self.draining = True

    def cut(self) -> None:
        """Aborts all streams; their readers learn why from `failure`."""
        self.draining = True
        for stream in self._streams.values():
            stream.abort()

    def failure(self, delta: Delta) -> ServeError | None:
        """What went wrong, if this delta ends a stream that should have gone on."""
        match delta.finish:
            case FinishReason.ERROR:
                return ExecutorError(delta.error or "the model failed")
            case FinishReason.ABORT if self.draining:
                return ShuttingDownError("the server shut down before the answer was complete")
            case FinishReason.ABORT:
                return ServeError("the request was ended before the answer was complete")
            case _:
                return None
