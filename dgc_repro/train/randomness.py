"""Keeps simulated workers apart: each has its own random numbers, batch-norm buffers follow worker 0.

A real process hosts one worker and needs none of this; `Workers` then does nothing but seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dgc_repro.dataset.batches import mixed_seed

_MODEL_STREAM = 3  # apart from the dataset's streams


class Workers:
    """The workers hosted here, global ranks ``first`` to ``first + number - 1``."""

    def __init__(self, first: int, number: int, seed: int, module: nn.Module) -> None:
        self.ranks = range(first, first + number)
        self.buffers = list(module.buffers())
        self._states = []
        for rank in self.ranks:
            torch.manual_seed(mixed_seed(_MODEL_STREAM, seed, rank))
            self._states.append(torch.get_rng_state())
        self._kept: list[Tensor] = []  # worker 0's buffers

    @contextmanager
    def turn_of(self, index: int) -> Iterator[None]:
        """Worker ``index`` (of those hosted here) computes its gradient inside."""
        if len(self.ranks) == 1:
            yield
            return
        torch.set_rng_state(self._states[index])
        yield
        self._states[index] = torch.get_rng_state()
        if index == 0:
            self._kept = [buffer.clone() for buffer in self.buffers]
        elif self.buffers:
            torch._foreach_copy_(self.buffers, self._kept)

    def state_dict(self, index: int) -> dict[str, Tensor]:
        """The random state of one worker."""
        alone = len(self.ranks) == 1
        state = {"cpu": torch.get_rng_state() if alone else self._states[index]}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, index: int, state: dict[str, Tensor]) -> None:
        self._states[index] = state["cpu"]
        if len(self.ranks) == 1:
            torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
