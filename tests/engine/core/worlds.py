"""One set of rules, two drivers: Hypothesis, which shrinks what it finds, and a seeded walk, which is fast.

A *world* is a thing under test beside its slow model. Its rules draw their arguments from a `Choose`, so that the same
rules serve both drivers.
"""

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition
from hypothesis.stateful import rule as hypothesis_rule

T = TypeVar("T")


class Choose(Protocol):
    def between(self, low: int, high: int) -> int: ...
    def one_of(self, options: Sequence[T]) -> T: ...


class RandomChoice:
    """Draws from a seeded generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def between(self, low: int, high: int) -> int:
        return low + int(self._rng.random() * (high - low + 1))

    def one_of(self, options: Sequence[T]) -> T:
        return options[int(self._rng.random() * len(options))]


class DrawnChoice:
    """Draws from Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def between(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def one_of(self, options: Sequence[T]) -> T:
        return options[self._data.draw(st.integers(0, len(options) - 1))]


def rule(weight: int = 1, when: Callable[["World"], object] | None = None):
    """Marks a method `(self, choose)` as a rule; `weight` matters to the walk only."""

    def mark(function):
        function.rule = (weight, when)
        return function

    return mark


class World:
    """Built with a `Choose`; `check` runs after every rule, `finish` at the end."""

    def __init__(self, choose: Choose) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Compares with the model and checks the invariants."""
        raise NotImplementedError

    def finish(self, choose: Choose) -> None:
        """Ends everything; nothing may be left."""

    @classmethod
    def rules(cls) -> dict[str, tuple[int, Callable[["World"], object] | None]]:
        marked = {name: getattr(getattr(cls, name), "rule", None) for name in dir(cls)}
        return {name: mark for name, mark in marked.items() if mark is not None}


def walk(world_type: type[World], seed: int, steps: int, *, a_world: int = 250) -> None:
    """Takes `steps` rule steps, in a new world every `a_world` of them. A failure names the seed of its world."""
    rules = world_type.rules()
    names, weights = list(rules), [weight for weight, _ in rules.values()]
    picks = [name for name, weight in zip(names, weights, strict=True) for _ in range(weight)]
    guards = {name: when for name, (_, when) in rules.items()}
    for number in range(-(-steps // a_world)):
        rng = random.Random(seed * 1_000_003 + number)
        choose = RandomChoice(rng)
        try:
            world = world_type(choose)
            world.check()
            for _ in range(min(a_world, steps - number * a_world)):
                name = choose.one_of(picks)
                while (when := guards[name]) is not None and not when(world):
                    name = choose.one_of(picks)
                getattr(world, name)(choose)
                world.check()
            world.finish(choose)
        except BaseException as error:
            error.add_note(f"{world_type.__name__}, seed {seed}, world {number} of the walk")
            raise


def machine(world_type: type[World], *, examples: int, steps: int) -> type:
    """The same rules as a Hypothesis test case."""

    class Machine(RuleBasedStateMachine):
        @initialize(data=st.data())
        def begin(self, data: st.DataObject) -> None:
            self.choose = DrawnChoice(data)
            self.world = world_type(self.choose)
            self.world.check()

        def teardown(self) -> None:
            if hasattr(self, "world"):
                self.world.finish(RandomChoice(random.Random(0)))

    def as_rule(name: str, when: Callable[[World], object] | None):
        def step(self, data: st.DataObject) -> None:
            getattr(self.world, name)(DrawnChoice(data))
            self.world.check()

        step.__name__ = name
        marked = hypothesis_rule(data=st.data())(step)
        if when is not None:
            marked = precondition(lambda self: when(self.world))(marked)
        return marked

    for name, (_, when) in world_type.rules().items():
        setattr(Machine, name, as_rule(name, when))
    Machine.__name__ = Machine.__qualname__ = f"{world_type.__name__}Machine"
    case = Machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    return case
