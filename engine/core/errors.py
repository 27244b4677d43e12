"""The one error tree. Expected outcomes are values; these are faults of a caller, a device or ours.

`code` is stable and machine-readable; `gateway/errors.py` maps it to an HTTP status. The core knows no HTTP.
"""

from typing import ClassVar


class ServeError(Exception):
    """Base of every error that Kilburn raises on purpose."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(ServeError):
    """The client's fault. `param` is the path of the field at fault, as the client wrote it."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.reason = code or self.code


class CapacityError(ServeError):
    """The server cannot take the request now; trying again later may work."""

    code: ClassVar[str] = "over_capacity"

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class ConfigError(ServeError):
    """A setting is wrong; the message names the setting and what would be right."""

    code: ClassVar[str] = "bad_config"


class WeightsError(ConfigError):
    """A model file is missing, corrupt, or of an unsupported kind."""

    code: ClassVar[str] = "bad_weights"


class TraceError(ServeError):
    """A trace or recording is broken at a line of a file."""

    code: ClassVar[str] = "bad_trace"

    def __init__(self, message: str, *, file: str, line: int | None = None) -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {message}")
        self.reason = message
        self.file = file
        self.line = line


class ExecutorError(ServeError):
    """The device or the model failed; the requests of that step end with this error."""

    code: ClassVar[str] = "executor_failed"


class InvariantError(ServeError):
    """Our bug: a stated invariant does not hold. The driver fails open requests and exits."""

    code: ClassVar[str] = "invariant_broken"
