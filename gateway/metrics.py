"""`/metrics`: what happened and what is, for Prometheus. Names have the stems that dashboards of other servers know.

Gauges are read from the engine when they are asked for. Labels come from fixed lists: a path is named by its route, and what
matches none is `other`; a method that no route takes is `OTHER`; a tenant is one that the server was started with. Nothing that a
client writes ever becomes a label.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.core.ids import RequestId
from engine.requests import FinishReason
from gateway.engine import Engine
from gateway.streams import Exchange, OpenStreams
from gateway.tally import TokenTally

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
REASONS: Final = tuple(reason.value for reason in FinishReason)
SHED: Final = ("over_capacity", "shutting_down", "rate_limit_exceeded")
"""Why requests are turned away."""


class Metrics:
    """One server's metrics, in a registry of its own. Observes the engine and keeps account of exchanges."""

    def __init__(self, engine: Engine, streams: OpenStreams, tenants: Collection[str] = ()) -> None:
        """`tenants`: names that become labels; no other name ever does."""
        self.registry = CollectorRegistry()
        self._streams = streams
        self.registry.register(_Now(engine))

        def histogram(name: str, what: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"kilburn_{name}", what, registry=self.registry, buckets=buckets)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"kilburn_{name}", what, labels, registry=self.registry)

        self._prompt = counter("prompt_tokens", "Prompt tokens of requests that were taken in.")
        self._tally = TokenTally(_SECONDS)
        self.registry.register(self._tally)
        self._success = counter("request_success", "Requests that ended.", "finished_reason")
        self._shed = counter("requests_shed", "Requests turned away.", "reason")
        self._http = counter("http_requests", "HTTP requests.", "method", "path", "status")
        self._moved = counter("transfer_blocks", "Blocks moved between pools.", "direction")
        self._failed_moves = counter("transfer_failures", "Transfers between pools that failed.")
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to the first text.")
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean time a token after the first, a request."
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to the last text.")
        self._queue = histogram("request_queue_time_seconds", "Arrival to the first step.")
        self._prefill = histogram("request_prefill_time_seconds", "First step to the first text.")
        self._decode = histogram("request_decode_time_seconds", "First text to the last.")
        self._iteration = histogram("iteration_tokens_total", "Positions of a step.", _TOKENS)
        self._step = histogram("step_time_seconds", "Model time of a step.")
        self._move_time = histogram("transfer_time_seconds", "Time of a transfer between pools.")
        self._of_tenant = counter("tenant_requests", "Requests that were taken in.", "tenant")
        self._tokens_of_tenant = counter("tenant_tokens", "Tokens, by kind.", "tenant", "kind")
        self._shed_of_tenant = counter("tenant_shed", "Requests turned away.", "tenant", "reason")
        self._tenants: frozenset[str] = frozenset()
        self.renew(tenants)
        for reason in REASONS:
            self._success.labels(reason)
        for reason in SHED:
            self._shed.labels(reason)
        for direction in ("out", "in"):
            self._moved.labels(direction)

    # -- of the engine -----------------------------------------------------------------------------------------

    def admitted(self, request: RequestId) -> None:
        """A request begins to run."""
        self._streams.admitted(request)

    def stepped(self, num_tokens: int, seconds: float) -> None:
        """A step is over."""
        self._iteration.observe(num_tokens)
        self._step.observe(seconds)

    def moved(self, num_blocks: int, seconds: float, *, out: bool, ok: bool) -> None:
        """A transfer is over."""
        if ok:
            self._moved.labels("out" if out else "in").inc(num_blocks)
            self._move_time.observe(seconds)
        else:
            self._failed_moves.inc()

    def renew(self, tenants: Collection[str]) -> None:
        """Makes labels of these names, too. Who is gone keeps theirs, or counters would fall."""
        for tenant in tenants:
            self._of_tenant.labels(tenant)
            for kind in ("prompt", "generation"):
                self._tokens_of_tenant.labels(tenant, kind)
            for reason in SHED:
                self._shed_of_tenant.labels(tenant, reason)
        self._tenants |= frozenset(tenants)

    # -- of exchanges ------------------------------------------------------------------------------------------

    def opened(self, exchange: Exchange) -> None:
        """A request was taken in."""
        self._prompt.inc(exchange.stream.num_prompt)
        tenant = exchange.generation.tenant
        if tenant in self._tenants:
            self._of_tenant.labels(tenant).inc()
            self._tokens_of_tenant.labels(tenant, "prompt").inc(exchange.stream.num_prompt)

    def heard(self, exchange: Exchange, index: int, num_tokens: int, now: float) -> None:
        """Tokens were read; those that came together share the time since the ones before."""
        last = exchange.lasts.get(index)
        self._tally.count(num_tokens, None if last is None else now - last)
        if exchange.last is None:
            self._ttft.observe(now - exchange.arrived)
            if exchange.admitted is not None:
                self._queue.observe(exchange.admitted - exchange.arrived)
                self._prefill.observe(now - exchange.admitted)

    def closed(self, exchange: Exchange, now: float) -> None:
        """A request is over; one whose client left was aborted."""
        tenant = exchange.generation.tenant
        if tenant in self._tenants:
            self._tokens_of_tenant.labels(tenant, "generation").inc(exchange.num_generated)
        finish = exchange.finish or FinishReason.ABORT
        self._success.labels(finish.value).inc()
        if finish in (FinishReason.ERROR, FinishReason.ABORT):
            return
        self._e2e.observe(now - exchange.arrived)
        if exchange.first is not None and exchange.last is not None:
            self._decode.observe(exchange.last - exchange.first)
            gaps = exchange.num_generated / exchange.num_choices - 1
            if gaps > 0:
                self._tpot.observe((exchange.last - exchange.first) / gaps)

    def shed(self, reason: str, tenant: str = "") -> None:
        """A request was turned away; a reason that is not in `SHED` is not counted."""
        if reason not in SHED:
            return
        self._shed.labels(reason).inc()
        if tenant in self._tenants:
            self._shed_of_tenant.labels(tenant, reason).inc()

    # -- of HTTP -----------------------------------------------------------------------------------------------

    async def endpoint(self, request: Request) -> Response:
        """`/metrics`."""
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE})

    def counting(self, app: ASGIApp, paths: Mapping[Callable[..., Any], str]) -> ASGIApp:
        """`app`, with its exchanges counted; `paths` names the route of each endpoint."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = "none"

            async def noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, noted)
            except Exception:
                if status == "none":
                    status = "500"  # which is sent further out
                raise
            finally:
                method = scope["method"] if scope["method"] in METHODS else "OTHER"
                path = paths.get(scope["endpoint"], "other") if "endpoint" in scope else "other"
                self._http.labels(method, path, status).inc()

        return counted


class _Now(Collector):
    """Gauges and counters that the engine keeps itself, read at each scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        memory, counters = self._engine.memory(), self._engine.counters

        def gauge(name: str, what: str, value: float) -> Metric:
            return GaugeMetricFamily(f"kilburn_{name}", what, value=value)

        total = memory.total_blocks
        yield gauge("num_requests_running", "Sequences that run.", memory.num_running)
        yield gauge(
            "num_requests_waiting", "Requests that wait or were preempted.", memory.num_waiting
        )
        yield gauge("num_requests_swapped", "Requests that lie on the host.", memory.num_swapped)
        used = (memory.held_blocks + memory.moving_blocks) / total
        yield gauge("kv_cache_usage_perc", "Share of the frames in use, 0 to 1.", used)
        blocks = GaugeMetricFamily("kilburn_kv_blocks", "Frames by state.", labels=["state"])
        for state in ("free", "cached", "held", "moving"):
            blocks.add_metric([state], getattr(memory, f"{state}_blocks"))
        yield blocks
        yield gauge("recording", "1: decisions are being recorded.", self._engine.recording)
        yield gauge("kv_host_blocks_used", "Host blocks in use.", memory.host_used_blocks)
        preemptions = CounterMetricFamily(
            "kilburn_num_preemptions", "Preemptions.", labels=["mode"]
        )
        preemptions.add_metric(["swap"], counters.swaps)
        preemptions.add_metric(["recompute"], counters.preemptions - counters.swaps)
        yield preemptions

        def count(name: str, what: str, value: float) -> Metric:
            return CounterMetricFamily(f"kilburn_{name}", what, value=value)

        yield count(
            "prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries_tokens
        )
        yield count("prefix_cache_hits", "Of these, the cached.", counters.prefix_hits_tokens)
