"""What the tests give to worker processes."""

import os
import signal
import sys
import time

from engine.core.errors import ConfigError


def square(number):
    return number * number


def slow_if_even(number):
    time.sleep(0.05 if number % 2 == 0 else 0)
    return number


def process_id(_):
    return os.getpid()


def heavy_modules():
    import sim.plan.result
    import sim.sweep.runner  # noqa: F401

    return [name for name in ("torch", "triton", "starlette", "plotly") if name in sys.modules]


def refuse(message):
    raise ConfigError(message)


def divide(number):
    return 1 // number


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_me():
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def interrupts_wait():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
