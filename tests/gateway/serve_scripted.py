"""A process that serves a scripted model until it is told to stop: `python -m tests.gateway.serve_scripted DRAIN_S CRASH_AT_ROWS PIECE_BYTES [KEY_FILE]`.

Says its address on standard output once it takes requests. Each step of the model takes ten milliseconds, and with `--stand-still` those who have
begun stay where they are until another comes; the model dies in the first step of so many rows, if any.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import gateway.server
from engine.core.plan import Plan
from gateway.renewal import reread
from gateway.server import bind, run, serve, url_of
from gateway.tenants import load_tenants
from tests.gateway.live import gateway_config, scripted
from tests.gateway.standstill import StandStill
from traces.terminal import exit_on_error


def main(
    drain_s: float,
    crash_at_rows: int,
    piece_bytes: int,
    key_file: Annotated[Path | None, typer.Argument()] = None,
    max_queue: int = 1024,
    stand_still: bool = False,
    last_words_s: int = gateway.server.LAST_WORDS_S,
) -> None:
    gateway.server.LAST_WORDS_S = last_words_s  # type: ignore[misc]

    def crash(plan: Plan) -> Exception | None:
        return RuntimeError("the worker died") if 0 < crash_at_rows <= len(plan.rows) else None

    pace = StandStill(step_s=0.01)
    config = gateway_config(drain_s=drain_s)
    listener = bind(config)
    pieces = [b"x" * piece_bytes] * 300 if piece_bytes else None
    load = partial(load_tenants, key_file, "")
    tenants = load()
    served = scripted(
        pieces, pace=pace, step_fault=crash, num_blocks=1024, max_queue=max_queue, tenants=tenants
    )
    if stand_still:
        pace.attend(served.engine)
    on_hangup = None if key_file is None else partial(reread, tenants, load)
    with exit_on_error():
        run(serve, config, served, listener, lambda: print(url_of(listener), flush=True), on_hangup)


if __name__ == "__main__":
    typer.run(main)
