"""On what terms one request is read: what is served, the server's limits, and whose request it is."""

from msgspec import Struct

from engine.core.errors import RequestError
from gateway.config import GatewayConfig
from gateway.engine import Engine, Served
from gateway.tenants import ANYONE, Tenant


class Terms(Struct, frozen=True, eq=False):
    """Of one request."""

    served: Served
    config: GatewayConfig
    tenant: Tenant = ANYONE

    @property
    def engine(self) -> Engine:
        """Where generations go."""
        return self.served.engine

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and answer together: the model's, or the tenant's where that is less."""
        own = self.tenant.max_context
        return self.engine.max_context if own is None else min(own, self.engine.max_context)

    @property
    def context_words(self) -> str:
        """Whose `max_context` is, as refusals say it."""
        limited = self.max_context < self.engine.max_context
        return (
            f"the context of this key is {self.max_context} tokens"
            if limited
            else (f"the model's context is {self.max_context} tokens")
        )

    def answer_room(self, num_prompt: int, sequences: int) -> int | None:
        """Most tokens of an answer for which the client sets no limit; None: what the engine's own limits leave.

        Where the tenant has a limit, the pool's is put beside it, because the engine holds explicit limits against its pool. Each
        sequence is counted as if it shared no block.
        """
        if self.max_context == self.engine.max_context:
            return None
        memory = self.engine.memory()
        alone = memory.total_blocks // sequences * memory.block_size + 1
        return max(1, min(self.max_context, alone) - num_prompt)

    def check_model(self, name: str | None) -> None:
        """Raises `RequestError` unless `name` is what is served, or absent."""
        model = self.engine.model_name
        if name is not None and name != model:
            raise RequestError(
                f"the model `{name[:200]}` is not served here; `{model}` is",
                param="model",
                code="model_not_found",
            )
