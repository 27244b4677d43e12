"""The runner's side of beam search: which rows are hypotheses of one beam, and their scores. Knows logits; knows no model.

A step's scores count only if the core accepts the step, which the runner learns from what it samples next: the position
after, or the same position again.
"""

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.beams import BeamStep, next_beam
from engine.core.ids import RequestId
from engine.executor import NewSequence

I32 = NDArray[np.int32]


class _Row(Struct):
    """A hypothesis. `before` is its score without, `score` with the token sampled at `position`."""

    request: RequestId
    index: int
    ends: frozenset[int]
    num_prompt: int
    position: int = -1
    before: float = 0.0
    score: float = 0.0

    def standing(self, position: int) -> float:
        """Its score when a token at `position` is to be sampled."""
        return self.before if position == self.position else self.score


class BeamRows:
    """Hypotheses by row."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def take_in(self, sequence: NewSequence) -> None:
        """`sequence` has its row now, whatever was there before."""
        self._rows.pop(sequence.row, None)
        if sequence.beam is not None:
            self._rows[sequence.row] = _Row(
                sequence.request, sequence.index, sequence.beam.ends, len(sequence.prompt)
            )

    def lasts(self, rows: I32) -> list[int]:
        """Position of the last token that was sampled for each of `rows`."""
        return [self._rows[row].position for row in rows.tolist()]

    def choose(
        self,
        rows: I32,
        positions: NDArray[np.integer],
        logits: torch.Tensor,
        tokens: I32,
        bad: set[int],
    ) -> tuple[tuple[tuple[RequestId, BeamStep], ...], I32 | None]:
        """Continues the beams among sampling `rows`; writes their tokens into `tokens`.

        (the steps, each row's parent); (), None where no row is a hypothesis. `logits`: [rows, vocabulary]. Places in
        `bad` have logits that are not finite: a beam with one fails as a whole, and all its places are added.
        """
        if not self._rows:
            return (), None
        beams: dict[RequestId, list[int]] = {}
        for at, row in enumerate(rows.tolist()):
            if row in self._rows:
                beams.setdefault(self._rows[row].request, []).append(at)
        if not beams:
            return (), None
        parents = rows.copy()
        steps = []
        for request, places in beams.items():
            if bad.intersection(places):
                bad.update(places)
                continue
            places.sort(key=lambda at: self._rows[int(rows[at])].index)
            step = self._step(rows[places], int(positions[places[0]]), logits[places])
            tokens[places] = step.tokens
            parents[places] = rows[places][step.parents]
            steps.append((request, step))
        return tuple(steps), parents

    def _step(self, rows: I32, position: int, logits: torch.Tensor) -> BeamStep:
        members = [self._rows[row] for row in rows.tolist()]
        log_probs = torch.log_softmax(logits.float(), dim=-1).numpy()
        standing = np.array([member.standing(position) for member in members])
        first = position == members[0].num_prompt
        step = next_beam(log_probs, standing, members[0].ends, first=first)
        for member, before, score in zip(
            members, standing.tolist(), step.scores.tolist(), strict=True
        ):
            member.position, member.before, member.score = position, before, score
        return step
