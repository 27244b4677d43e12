"""Rules over the scheduler, through the driver: requests of every kind, steps, failures, transfers, aborts."""

from engine.core.plan import Finish, Plan
from tests.engine.core.scheduler_driver import Driver, core_config
from tests.engine.core.worlds import Choose, World, rule

PREFIXES = [[0] * 40, [1, 0] * 20, [0] * 9 + [1] * 31, [2, 1, 0] * 13]
CHECK_EVERY = 4


class SchedulerWorld(World):
    def __init__(self, choose: Choose) -> None:
        budget = choose.between(4, 20)
        frames, size = choose.between(1, 8), choose.one_of([1, 2, 2, 8, 8, 16])
        self.capacity = frames * size
        config = core_config(
            frames,
            size,
            {
                "host_blocks": choose.one_of([0, 2, 8]),
                "watermark": choose.one_of([0.0, 0.2]),
                "prefix_cache": choose.between(0, 3) > 0,
            },
            token_budget=budget,
            max_batch=choose.between(1, 4),
            max_open_plans=choose.between(1, 2),
            preemption=choose.one_of(["recompute", "swap", "auto"]),
            swap_costs={
                "block_bytes": 1,
                "link_bytes_per_s": choose.one_of([1.0, 3.0]),
                "prefill_tokens_per_s": 8.0,
            },
            policy=choose.one_of(["fcfs", "priority", "fair"]),
            max_partial_prefills=choose.one_of([None, 1, 2]),
            aging_ns=choose.one_of([0, 20]),
        )
        self.trace_block = choose.one_of([0, 0, 3, 8])
        lazy = bool(choose.between(0, 1))
        self.driver = Driver(config, lazy=lazy, check_every=CHECK_EVERY)

    def busy(self) -> bool:
        return len(self.driver.ended) < len(self.driver.requests)

    @rule(weight=8)
    def submit(self, choose: Choose) -> None:
        """Mostly what fits; now and then what never can, or is not valid."""
        driver, tenant = self.driver, choose.one_of("xy")
        n = choose.one_of([1, 1, 1, 2, 3])
        deadline = driver.now + choose.between(1, 60) if choose.between(0, 2) == 0 else None
        fits = choose.between(0, 9) > 0
        length = (
            choose.between(1, min(39, -(-self.capacity // 2))) if fits else choose.between(0, 39)
        )
        most = max(1, (self.capacity - length) // n) if fits else 30
        driver.submit(
            choose.one_of(PREFIXES)[:length],
            None if choose.between(0, 3) == 0 else choose.between(fits, min(most, 60)),
            n,
            private=choose.between(0, 9) == 0,
            trace_block=self.trace_block,
            salt=choose.one_of(["", "", "b"]),
            tenant=tenant,
            weight=2.0 if tenant == "x" else 1.0,
            priority=choose.between(0, 2),
            deadline=deadline,
            beam=n > 1 and choose.between(0, 1) == 0,
        )

    @rule(when=lambda self: self.driver.requests)
    def abort(self, choose: Choose) -> None:
        self.driver.abort(choose.between(0, len(self.driver.requests) - 1))

    @rule()
    def expire(self, choose: Choose) -> None:
        self.driver.expire()

    @rule(when=lambda self: not self.busy())
    def schedule_nothing(self, choose: Choose) -> None:
        self.driver.schedule()

    @rule(weight=14, when=lambda self: self.busy())
    def schedule(self, choose: Choose) -> None:
        self.driver.schedule()

    @rule(weight=14, when=lambda self: self.driver.open)
    def commit(self, choose: Choose) -> None:
        self.driver.commit(pick=choose.between(0, 5))

    @rule(weight=2, when=lambda self: self.driver.open)
    def stop(self, choose: Choose) -> None:
        requests = sorted(set(self.driver.open[0].requests.tolist()))
        reason = choose.one_of([Finish.STOP, Finish.STOP, Finish.FAILED])
        self.driver.commit({choose.one_of(requests): reason}, pick=choose.between(0, 5))

    @rule(when=lambda self: self.driver.open)
    def fail(self, choose: Choose) -> None:
        self.driver.commit(fail=True)

    @rule(weight=5, when=lambda self: self.driver.transfers)
    def transfer(self, choose: Choose) -> None:
        self.driver.transfer(choose.between(0, 5), ok=choose.between(0, 4) > 0)

    @rule(weight=2, when=lambda self: self.busy())
    def several_steps(self, choose: Choose) -> None:
        """Undisturbed, so that requests get far."""
        for _ in range(choose.between(2, 8)):
            if not isinstance(self.driver.schedule(), Plan) and self.driver.open:
                self.driver.commit()

    def check(self) -> None:
        """The driver checks after each of its calls."""

    def finish(self, choose: Choose) -> None:
        self.driver.run_out()
