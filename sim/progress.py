"""Progress of long work where no terminal shows it: a plain line now and then, for a log."""

import sys
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 30.0


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def seldom(
    say: Callable[[str], None] = _to_stderr, clock: Callable[[], float] = time.monotonic
) -> Callable[[str], None]:
    """Passes on to `say` what it is told, at most once in `PERIOD_S` seconds, and nothing in the first of them: short work stays quiet."""
    last = clock()

    def tell(line: str) -> None:
        nonlocal last
        now = clock()
        if now - last >= PERIOD_S:
            last = now
            say(line)

    return tell
