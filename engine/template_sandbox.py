"""A Jinja environment for templates that nobody here has read: no way out, and bounds on how long they run and how much they make.

Jinja's own sandbox keeps templates from attributes that lead out of it. What it leaves open is work without end: nested loops, recursion,
text that doubles. Here each turn of a loop and each call of a macro counts as a step, and each operation that can make something
larger than what it was given is measured before and after. Knows templates; knows no chats.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS: Final = 200_000
"""Turns of loops and calls of macros in one rendering."""
MAX_MADE: Final = 1 << 25
"""Characters that all operations of one rendering may make together; an item of a list counts as eight."""
MAX_AT_ONCE: Final = 1 << 28
"""What sizes and numbers that one operation is given may multiply to, as it may repeat one for each of the other."""
_WIDE: Final = re.compile(r"[0-9]{6,}|\*")
"""A width in a format string, too wide or given elsewhere."""


class TooMuchWorkError(jinja2.TemplateError):
    """The template went on for too long, or made too much."""


class _Budget(threading.local):
    """What is left to the rendering of this thread."""

    steps = MAX_STEPS
    made = MAX_MADE


class _Generator(CodeGenerator):
    """Python code in which steps are counted and `~` can be measured."""

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:  # noqa: N802
        """A step is a plain call; other statements are as they were."""
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.newline(node)
            self.write(f"environment.{node.node.name}()")
        else:
            super().visit_ExprStmt(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """A call, with the parts as a tuple."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates render within `bounds()`. May be used by several threads."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=self._written, **options)
        self._budget = _Budget()
        del self.globals["lipsum"]
        for name, work in self.filters.items():
            self.filters[name] = self._measured(work)

    def template_of(self, source: str) -> jinja2.Template:
        """`source`, compiled.

        Raises:
            TemplateSyntaxError: it is not Jinja.
        """
        tree = self.parse(source)
        node: Any  # each of these kinds has a body, their common base has none
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            step = nodes.ExprStmt(nodes.EnvironmentAttribute("count_step"))
            node.body.insert(0, step.set_lineno(node.lineno).set_environment(self))
        return self.from_string(tree)

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """Renders within this thread have one budget.

        Raises:
            TooMuchWorkError: from within, where it is spent.
        """
        self._budget.steps, self._budget.made = MAX_STEPS, MAX_MADE
        yield

    # -- what compiled templates call --------------------------------------------------------------------------

    def count_step(self) -> None:
        """A loop turns, or a macro begins."""
        self._budget.steps -= 1
        if self._budget.steps < 0:
            raise TooMuchWorkError(f"it takes more than {MAX_STEPS} steps")

    def joined(self, parts: Sequence[Any]) -> str:
        """What `~` makes."""
        text = "".join(map(str, parts))
        self._made(text)
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation that may make much of little."""
        if operator == "**":
            if not (isinstance(right, int) and abs(right) <= 64):
                raise TooMuchWorkError("it has an exponent over 64")
        elif operator == "%" and isinstance(left, str):
            self._check_format(left)
        elif operator == "*":
            self._check(left, right)
        return self._made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call of a function or a method."""
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        __self._check(owner, *args, *kwargs.values())
        if isinstance(owner, str) and __obj.__name__ in ("format", "format_map"):
            __self._check_format(owner)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def _measured(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._check(*args, *kwargs.values())
            if work.__name__ == "do_format":
                self._check_format(str(args[0]))
            return self._made(work(*args, **kwargs))

        return measured

    def _written(self, value: Any) -> Any:
        return self._made(value)

    def _made(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple, dict)):
            self._budget.made -= len(value) * (1 if isinstance(value, str) else 8)
            if self._budget.made < 0:
                raise TooMuchWorkError(f"it makes more than {MAX_MADE} characters")
        return value

    def _check(self, *given: Any) -> None:
        sizes = [abs(each) if isinstance(each, int) else _size(each) for each in given]
        if math.prod(max(1, size) for size in sizes) > MAX_AT_ONCE:
            raise TooMuchWorkError("it asks for too much in one operation")

    def _check_format(self, text: str) -> None:
        if _WIDE.search(text):
            raise TooMuchWorkError("it formats with a width over 99999")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 1
