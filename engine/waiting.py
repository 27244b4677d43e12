"""How much may wait for admission. Knows prompt lengths; knows no streams and no core."""

from engine.core.errors import CapacityError


class WaitingRoom:
    """Requests that were taken in and never admitted, bounded in number and in prompt tokens."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._lengths: dict[int, int] = {}
        self._num_tokens = 0

    def check(self, num_prompt: int) -> None:
        """Whether a prompt of this length may come in; a single one may, however long.

        Raises:
            CapacityError: too much is waiting already.
        """
        if len(self._lengths) >= self._max_requests:
            raise CapacityError(
                f"{len(self._lengths)} requests are waiting already; try again later"
            )
        if self._lengths and self._num_tokens + num_prompt > self._max_tokens:
            raise CapacityError(
                f"{self._num_tokens} prompt tokens are waiting already; try again later"
            )

    def enter(self, request: int, num_prompt: int) -> None:
        """`request` waits."""
        self._lengths[request] = num_prompt
        self._num_tokens += num_prompt

    def leave(self, request: int) -> None:
        """`request` waits no more, if it did."""
        self._num_tokens -= self._lengths.pop(request, 0)

    def clear(self) -> None:
        """Nobody waits."""
        self._lengths.clear()
        self._num_tokens = 0
