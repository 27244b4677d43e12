"""What a server holds is given back where it cannot start."""

import socket
from pathlib import Path

import pytest

from engine.core.errors import WeightsError
from engine.runner import TorchRunner
from gateway.serving import ServeOptions, serve_model
from tests.engine.tiny import Tiny, own_model_cache, write_tiny


def test_a_model_whose_merges_fit_nothing_gives_back_runner_and_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_model_cache(monkeypatch, tmp_path)
    tiny = Tiny(layers=1)
    closed: list[TorchRunner] = []
    close = TorchRunner.close
    monkeypatch.setattr(TorchRunner, "close", lambda self: (closed.append(self), close(self)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with pytest.raises(WeightsError, match="do not fit its vocabulary"):
        serve_model(
            ServeOptions(
                model=write_tiny(tmp_path / "t.gguf", tiny),
                port=port,
                num_blocks=8,
                threads=1,
                dtype="float32",
            )
        )

    assert len(closed) == 1
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))
