"""How much each tenant may still use: requests and tokens a minute, as token buckets on a monotonic clock.

A bucket holds a minute's worth and fills evenly. Tokens are charged at admission, for the prompt and for what the answer may
become; when the answer has ended, the difference to what it really took is given back, or charged. So a bucket can be in debt, never
over its size. Knows tenants and generations; knows no HTTP but the names of its headers.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from engine.core.errors import CapacityError, RequestError
from engine.requests import Generation
from gateway.streams import Exchange
from gateway.tenants import Tenant

ASSUMED_TOKENS: Final = 256
"""What an answer without a limit is charged at admission."""
_MINUTE: Final = 60.0

Clock = Callable[[], float]
"""Seconds that never go back."""


class RateLimitError(CapacityError):
    """The tenant has used what it may for now."""

    code: ClassVar[str] = "rate_limit_exceeded"


class Bucket:
    """`size` units a minute. Used from one thread."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._at = clock()

    @property
    def level(self) -> float:
        """Units that can be taken now; below 0 in debt."""
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self.size / _MINUTE, float(self.size))
        self._at = now
        return self._level

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount`, at most `size`, can be taken; 0: now."""
        return max(0.0, amount - self.level) * _MINUTE / self.size

    def charge(self, amount: float) -> None:
        """Takes `amount`, and goes into debt if it must; gives back where it is negative."""
        self._level = min(self.level - amount, float(self.size))


class Allowance:
    """What one tenant may still use."""

    def __init__(self, tenant: Tenant, clock: Clock = time.monotonic) -> None:
        self.tenant = tenant
        requests, tokens = tenant.requests_per_minute, tenant.tokens_per_minute
        self._requests = None if requests is None else Bucket(requests, clock)
        self._tokens = None if tokens is None else Bucket(tokens, clock)

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._requests is not None or self._tokens is not None

    def take_request(self) -> None:
        """Counts a request.

        Raises:
            RateLimitError: there were too many in the last minute.
        """
        if self._requests is None:
            return
        wait = self._requests.wait_s(1)
        if wait > 0:
            raise RateLimitError(
                f"the key of `{self.tenant.name}` may send {self._requests.size} requests a minute; "
                f"send the next one in {_duration(wait)}",
                retry_after_ms=math.ceil(1000 * wait),
            )
        self._requests.charge(1)

    def take_tokens(self, generations: Sequence[Generation]) -> None:
        """Charges what `generations` may take, all or nothing.

        Raises:
            RateLimitError: that is more than is left.
            RequestError: it is more than there ever is.
        """
        if self._tokens is None:
            return
        cost = sum(map(cost_of, generations))
        if cost > self._tokens.size:
            raise RequestError(
                f"`max_tokens` and the prompt ask for {cost} tokens, but the key of `{self.tenant.name}` may use "
                f"{self._tokens.size} a minute; ask for less",
                param="max_tokens",
                code="tokens_per_minute_exceeded",
            )
        wait = self._tokens.wait_s(cost)
        if wait > 0:
            raise RateLimitError(
                f"the key of `{self.tenant.name}` may use {self._tokens.size} tokens a minute and this request asks "
                f"for {cost}; send it in {_duration(wait)}",
                retry_after_ms=math.ceil(1000 * wait),
            )
        self._tokens.charge(cost)

    def give_back(self, generations: Sequence[Generation]) -> None:
        """Takes back the charge for generations that were never opened."""
        self.settle(sum(map(cost_of, generations)), 0)

    def settle(self, charged: int, used: int) -> None:
        """Gives back what was charged and not used, or charges what was used beyond that."""
        if self._tokens is not None:
            self._tokens.charge(used - charged)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's `x-ratelimit-` headers, for what is limited."""
        said = []
        for what, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.level))
                reset = _duration(bucket.wait_s(bucket.size))
                said += [
                    (b"x-ratelimit-limit-" + what, b"%d" % bucket.size),
                    (b"x-ratelimit-remaining-" + what, b"%d" % left),
                    (b"x-ratelimit-reset-" + what, reset.encode()),
                ]
        return said


class Allowances:
    """Of all tenants. As a ledger of exchanges it settles what each really took."""

    def __init__(self, tenants: Iterable[Tenant], clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, Allowance] = {}
        self.renew(tenants)

    def renew(self, tenants: Iterable[Tenant]) -> None:
        """Makes room for these. Who has new limits begins with all of them; who is gone is kept, since requests may still be open."""
        for tenant in tenants:
            known = self._of.get(tenant.name)
            if known is None or known.tenant != tenant:
                self._of[tenant.name] = Allowance(tenant, self._clock)

    def of(self, tenant: Tenant) -> Allowance:
        """What is left to `tenant`, one of those that this was made for."""
        return self._of[tenant.name]

    def opened(self, exchange: Exchange) -> None:
        """It was charged before."""

    def heard(self, exchange: Exchange, index: int, num_tokens: int, now: float) -> None:
        """The end will tell."""

    def closed(self, exchange: Exchange, now: float) -> None:
        """Settles; what never ran costs nothing."""
        used = 0
        if exchange.admitted is not None or exchange.num_generated:
            used = exchange.stream.num_prompt + exchange.num_generated
        self._of[exchange.generation.tenant].settle(cost_of(exchange.generation), used)


def cost_of(generation: Generation) -> int:
    """Tokens that `generation` is charged at admission."""
    answer = ASSUMED_TOKENS if generation.max_tokens is None else generation.max_tokens
    return len(generation.prompt) + generation.num_rows * answer


def _duration(seconds: float) -> str:
    """As OpenAI writes it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    if seconds < _MINUTE:
        return f"{math.ceil(10 * seconds) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
