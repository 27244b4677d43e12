"""One line a request, as `name=value` pairs, so that people and programs can read it. No text of clients, no keys.

Knows exchanges; knows nothing of where logs go.
"""

import logging

from gateway.streams import Exchange

LOG = logging.getLogger("kilburn.requests")


class RequestLog:
    """Writes a line when an exchange is over."""

    def opened(self, exchange: Exchange) -> None:
        """Says nothing yet."""

    def heard(self, exchange: Exchange, index: int, num_tokens: int, now: float) -> None:
        """Says nothing yet."""

    def closed(self, exchange: Exchange, now: float) -> None:
        """Says how it went; times in milliseconds."""
        if not LOG.isEnabledFor(logging.INFO):
            return
        stream = exchange.stream
        queued = None if exchange.admitted is None else exchange.admitted - exchange.arrived
        LOG.info(
            "id=%s tenant=%s endpoint=%s finish=%s prompt=%d cached=%d generated=%d queue_ms=%s ttft_ms=%s total_ms=%s",
            exchange.label,
            exchange.generation.tenant or "-",
            exchange.endpoint,
            exchange.finish.value if exchange.finish else "left",
            stream.num_prompt,
            stream.num_cached,
            exchange.num_generated,
            _ms(queued),
            _ms(exchange.ttft_s),
            _ms(now - exchange.arrived),
        )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"
