"""llama.cpp as a peer for benchmarks, by the low-level calls of `llama-cpp-python` where that is installed.

Many sequences share a context and each step decodes one token of each, greedily, as llama.cpp's own `batched-bench` does. Knows
llama.cpp; knows nothing of our engine.
"""

import ctypes
import time
from pathlib import Path

import llama_cpp
import numpy as np

_QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """A model in llama.cpp, with room for `streams` sequences of `context` tokens."""

    def __init__(self, path: Path, threads: int, streams: int, context: int) -> None:
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_load_model_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = streams * context
        params.n_seq_max = streams
        params.n_batch = max(2048, context)
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_new_context_with_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context")
        self._vocabulary = llama_cpp.llama_n_vocab(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def prefill(self, prompt: np.ndarray) -> float:
        """Seconds to the first token of a prompt, alone."""
        self._clear()
        begin = time.perf_counter()
        self._step([(0, i, int(t)) for i, t in enumerate(prompt)], wanted=[len(prompt) - 1])
        return time.perf_counter() - begin

    def decode(self, prompts: list[np.ndarray], new_tokens: int) -> list[float]:
        """Seconds of each step that decodes a token of every stream, after the prompts."""
        self._clear()
        last, seconds = [], []
        for stream, prompt in enumerate(prompts):
            rows = [(stream, i, int(t)) for i, t in enumerate(prompt)]
            last += self._step(rows, wanted=[len(prompt) - 1])
        for k in range(new_tokens - 1):
            begin = time.perf_counter()
            rows = [(s, len(p) + k, t) for s, (p, t) in enumerate(zip(prompts, last, strict=True))]
            last = self._step(rows, wanted=range(len(rows)))
            seconds.append(time.perf_counter() - begin)
        return seconds

    def close(self) -> None:
        """Frees the context and the model."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_free_model(self._model)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _step(self, rows: list[tuple[int, int, int]], wanted: list[int] | range) -> list[int]:
        """Decodes (stream, position, token) rows; the best next token after each of `wanted`."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (stream, position, token) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, stream
            batch.logits[i] = False
        for i in wanted:
            batch.logits[i] = True
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp failed to decode: {status}")
        best = []
        for i in wanted:
            logits = llama_cpp.llama_get_logits_ith(self._context, i)
            best.append(int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax()))
        return best
