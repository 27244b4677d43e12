"""Runs plans on a model: block tables and token rows in, sampled tokens out. Knows plans, rows and tensors; knows no queue,
no client, no clock.

Each row keeps its tokens (prompt, then what was sampled for it here), so that plan n + 1 can run before anyone has seen what
plan n sampled. A row whose later results the core discards is rewound by its next plan's `starts`: the same positions are
computed again and the same counter-based draws fall.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adjust import Drawn, SpecialRow, draw_rows
from engine.beam_rows import BeamRows
from engine.core.errors import ConfigError, ExecutorError
from engine.core.plan import Plan
from engine.executor import NewSequence, Sampled, SamplingParams
from engine.models.build import build_decoder
from engine.models.decoder import Decoder
from engine.models.pool import DEFAULT_SHARE, pool_blocks
from engine.models.step import Step, slot_mapping
from engine.sampling import SamplingRows
from engine.transfers import BlockCopies, HostPool
from engine.weights.load import LoadedModel

I32 = NDArray[np.int32]
T = TypeVar("T", bound=np.generic)
Sample = Callable[[torch.Tensor, SamplingRows, NDArray[np.int64], Sequence[SpecialRow]], Drawn]
"""`engine.adjust.draw_rows`, or the same where the logits are."""


class RowState:
    """Arrays by row: block tables, token ids, sampling parameters. They grow as rows and sequences do.

    Invariant: `tokens[row, :known]` are the row's prompt and samples up to its last plan; what lies after is stale.
    """

    def __init__(self) -> None:
        self.tables: I32 = np.zeros((8, 16), np.int32)
        self.tokens: I32 = np.zeros((8, 256), np.int32)
        self.temperature: NDArray[np.float32] = np.zeros(8, np.float32)
        self.top_p: NDArray[np.float32] = np.zeros(8, np.float32)
        self.top_k: I32 = np.zeros(8, np.int32)
        self.seed: NDArray[np.uint64] = np.zeros(8, np.uint64)
        self.min_p: NDArray[np.float32] = np.zeros(8, np.float32)
        self.special: dict[int, tuple[SamplingParams, int]] = {}
        """Parameters and prompt lengths of rows whose logits are changed or reported."""
        self.index: NDArray[np.int64] = np.zeros(8, np.int64)

    def take_in(self, sequence: NewSequence) -> None:
        """Gives the sequence its row, whatever was there before."""
        row, prompt, params = sequence.row, sequence.prompt, sequence.sampling
        self.reserve(row + 1, len(prompt) + 1)
        self.tokens[row, : len(prompt)] = prompt
        self.index[row] = sequence.index
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.top_k[row] = params.top_k
        self.min_p[row] = params.min_p
        if params.adjusts or params.logprobs is not None:
            self.special[row] = (params, len(prompt))
        else:
            self.special.pop(row, None)
        self.seed[row] = params.seed & 0xFFFFFFFFFFFFFFFF

    def apply(self, rows: I32, columns: I32, blocks: I32) -> None:
        """Changes block-table entries."""
        if len(rows):
            self.tables = _grown(self.tables, int(rows.max()) + 1, int(columns.max()) + 1)
            self.tables[rows, columns] = blocks

    def reserve(self, rows: int, length: int) -> None:
        """Makes room for `rows` rows of `length` tokens."""
        self.tokens = _grown(self.tokens, rows, length)
        if rows > len(self.seed):
            self.temperature = _grown(self.temperature, rows)
            self.top_p = _grown(self.top_p, rows)
            self.top_k = _grown(self.top_k, rows)
            self.seed = _grown(self.seed, rows)
            self.min_p = _grown(self.min_p, rows)
            self.index = _grown(self.index, rows)

    def move(self, rows: I32, parents: I32, lasts: list[int]) -> None:
        """Each of `rows` goes on with the tokens of its parent before position lasts[i], and keeps its own from there."""
        histories = self.tokens[parents]
        for row, last, history in zip(rows.tolist(), lasts, histories, strict=True):
            self.tokens[row, :last] = history[:last]

    def counters(self, rows: I32, positions: I32) -> NDArray[np.int64]:
        """What `sample` counts by: the position, and above its 32 bits the index of the sequence in its request."""
        counters: NDArray[np.int64] = (self.index[rows] << 32) + positions
        return counters

    def sampling(self, rows: I32) -> SamplingRows:
        """Parameters of `rows`."""
        return SamplingRows(
            self.temperature[rows],
            self.top_p[rows],
            self.top_k[rows],
            self.seed[rows],
            self.min_p[rows],
        )

    def special_rows(self, rows: I32, positions: I32) -> list[SpecialRow]:
        """Those of `rows` whose logits are changed or reported, with what is known of them below `positions`."""
        if not self.special:
            return []
        found = []
        for i, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            if row in self.special:
                params, num_prompt = self.special[row]
                found.append(SpecialRow(i, params, self.tokens[row, :position], num_prompt))
        return found


class TorchRunner:
    """A decoder over a paged pool; implements `engine.executor.Executor`."""

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int,
        block_size: int,
        max_context: int,
        vocab_size: int,
        host_blocks: int = 0,
        sample: Sample = draw_rows,
        blocks: BlockCopies | None = None,
    ) -> None:
        """`num_blocks` and `block_size` are those of the pool that the model's attention owns; `sample` draws where the logits
        are, and `blocks` copies where the pool is, with `host_blocks` beside it.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.host_blocks = host_blocks
        self.max_context = max_context
        self.vocab_size = vocab_size
        self._model: Decoder | None = model
        self._rows = RowState()
        self._beams = BeamRows()
        self._sample = sample
        self._blocks = blocks or HostPool(model.frames, host_blocks)

    @torch.inference_mode()
    def execute(self, plan: Plan, new: Sequence[NewSequence]) -> Sampled:
        """Takes in `new`, applies the plan's table deltas, copies blocks, computes positions, samples, forks.

        Raises:
            ExecutorError: torch failed, or the runner is closed; state of the named rows is unknown.
        """
        if self._model is None:
            raise ExecutorError("the model runner is closed")
        if len(plan.move_rows):
            self._rows.move(plan.move_rows, plan.move_parents, self._beams.lasts(plan.move_rows))
        for sequence in new:
            self._rows.take_in(sequence)
            self._beams.take_in(sequence)
        self._rows.apply(plan.delta_rows, plan.delta_cols, plan.delta_blocks)
        with _failing(f"step {plan.step} failed in the model"):
            self._blocks.copy(plan.copy_sources, plan.copy_targets)
            logits = self._model.forward(self._step(plan))
            rows = plan.sampling
            positions = plan.sampled_positions
            if len(plan.fork_rows):
                logits = logits[torch.from_numpy(_logits_of(plan)).to(logits.device)]
            counters = self._rows.counters(rows, positions)
            drawn = self._sample(
                logits,
                self._rows.sampling(rows),
                counters,
                self._rows.special_rows(rows, positions),
            )
            tokens = drawn.tokens
            bad = {int(at) for at in drawn.bad}
            beams, parents = self._beams.choose(rows, positions, logits, tokens, bad)
        if len(rows):
            self._rows.reserve(int(rows.max()) + 1, int(positions.max()) + 1)
            self._rows.tokens[rows, positions] = tokens
        tokens.setflags(write=False)
        failures = tuple((at, "the model's output was not finite") for at in sorted(bad))
        return Sampled(tokens, failures, drawn.logprobs, beams, parents)

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """Copies frames[i] to host block hosts[i].

        Raises:
            ExecutorError: torch failed; the host blocks hold anything.
        """
        with _failing("blocks could not be copied to the host"):
            self._blocks.copy_out(frames, hosts)

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """Copies host block hosts[i] to frames[i].

        Raises:
            ExecutorError: torch failed; the frames hold anything.
        """
        with _failing("blocks could not be copied from the host"):
            self._blocks.copy_in(frames, hosts)

    def close(self) -> None:
        """Lets go of weights, pool and threads; later plans fail."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._rows = RowState()

    def _step(self, plan: Plan) -> Step:
        """The plan's positions, flattened."""
        counts = plan.counts.astype(np.int64)
        ends = counts.cumsum()
        offsets = ends - counts
        row_of = np.repeat(plan.rows, counts)
        positions = np.arange(ends[-1]) + np.repeat(plan.starts - offsets, counts)
        state = self._rows
        return Step(
            ids=torch.from_numpy(state.tokens[row_of, positions].astype(np.int64)),
            positions=positions,
            slots=slot_mapping(state.tables, row_of, positions, self.block_size),
            rows=plan.rows,
            starts=plan.starts,
            counts=plan.counts,
            offsets=offsets,
            num_decodes=plan.num_decodes,
            tables=state.tables,
            sampled=torch.from_numpy((ends - 1)[plan.samples]),
            changes=(plan.delta_rows, plan.delta_cols, plan.delta_blocks),
        )


def build_runner(
    model: LoadedModel,
    *,
    num_blocks: int | None = None,
    block_size: int = 16,
    pool_bytes: int | None = None,
    pool_share: float = DEFAULT_SHARE,
    max_context: int | None = None,
    max_batch: int = 256,
    threads: int | None = None,
    host_blocks: int = 0,
    device: Literal["cpu", "cuda"] = "cpu",
    step_tokens: int = 2048,
) -> TorchRunner:
    """A runner for `model` with its own pool.

    Args:
        model: as loaded; its matrices are packed anew where that is faster, so the caller may drop it.
        num_blocks: frames of the pool; None: as many as `pool_bytes`, or `pool_share` of the available memory, holds,
            up to what `max_batch` sequences of `max_context` can use.
        block_size: token positions of a frame.
        pool_bytes: bytes of keys and values.
        pool_share: share of the available memory, where neither of the above is given.
        max_context: most tokens of a sequence; None: what the model was trained for.
        max_batch: most sequences that run at once.
        threads: that compute; None: one for each physical core.
        host_blocks: blocks of host memory to swap to, beside the pool.
        device: where the model runs; on `cuda` the pool takes what weights and the largest step leave of the device's memory.
        step_tokens: most positions of a step, for that measurement.

    Raises:
        ConfigError: a setting is out of range, the device is not there or cannot run the model, or the pool has no room for one block.
    """
    shape = model.shape
    context = shape.max_context if max_context is None else max_context
    if not 1 <= context <= shape.max_context:
        raise ConfigError(f"max_context is {context}; {model.name} allows 1 to {shape.max_context}")
    if device == "cuda":
        return _build_accelerated(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=context,
            max_batch=max_batch,
            step_tokens=step_tokens,
            pool_bytes=pool_bytes,
            host_blocks=host_blocks,
        )
    if num_blocks is None:
        num_blocks = pool_blocks(
            block_size * shape.kv_bytes_per_token(getattr(torch, model.dtype).itemsize),
            block_size,
            limit_bytes=pool_bytes,
            share=pool_share,
            most_tokens=max_batch * context,
        )
    decoder = build_decoder(
        model,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=context,
        threads=threads,
    )
    return TorchRunner(
        decoder,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=context,
        vocab_size=shape.vocab_size,
        host_blocks=host_blocks,
    )


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """What torch raises within fails this step or transfer, not the thread that it runs in."""
    try:
        yield
    except RuntimeError as error:
        raise ExecutorError(f"{what}: {error}") from error


def _logits_of(plan: Plan) -> NDArray[np.int64]:
    """Which of the step's logits each entry of `plan.sampling` samples from."""
    place = plan.samples.cumsum() - 1
    of: NDArray[np.int64] = np.concatenate([place[plan.samples], place[plan.fork_from]])
    return of


def _build_accelerated(
    model: LoadedModel,
    *,
    num_blocks: int | None,
    block_size: int,
    max_context: int,
    max_batch: int,
    step_tokens: int,
    pool_bytes: int | None,
    host_blocks: int,
) -> TorchRunner:
    """A runner on the accelerator. Triton is imported here, where it is wanted: it is not on every system."""
    from engine.device_sampling import DeviceSampler
    from engine.models.accelerated import build_accelerated
    from engine.models.device import find_accelerator

    accelerator = find_accelerator()
    decoder, num_blocks = build_accelerated(
        model,
        accelerator,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=max_context,
        max_batch=max_batch,
        step_tokens=step_tokens,
        pool_bytes=pool_bytes,
    )
    return TorchRunner(
        decoder,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=max_context,
        vocab_size=model.shape.vocab_size,
        host_blocks=host_blocks,
        sample=DeviceSampler(accelerator).sample,
        blocks=decoder.copies(host_blocks),
    )


def _grown(array: NDArray[T], *needed: int) -> NDArray[T]:
    """`array` or a larger copy: each dimension that is too small at least doubles."""
    if all(n <= have for n, have in zip(needed, array.shape, strict=True)):
        return array
    shape = tuple(
        have if n <= have else max(n, 2 * have) for n, have in zip(needed, array.shape, strict=True)
    )
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(have) for have in array.shape)] = array
    return larger
