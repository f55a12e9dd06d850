"""What a study may be handed besides its settings: a model's tensors, gradients, compress times.

Letters: N = workers, n = values of the whole gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dgc_repro.checked import Count, Rule, within

Row = dict[str, float | int | str]
"""One line of a study's table. All rows of a study have the same keys."""

ASCENDING = Rule(
    "{}, ascending, each once", lambda v: 0 < len(v) == len(set(v)) and list(v) == sorted(v)
)
Counts = Annotated[Sequence[Count], ASCENDING]
FromTwo = Annotated[Sequence[Annotated[int, within(2)]], ASCENDING]
"""Numbers of workers, factors, sizes: what a study goes through."""

NOTHING, TENSORS, GRADIENTS, TIMES = "nothing", "tensors", "gradients", "times"
HISTORY, SNAPSHOTS = "history", "snapshots"

History = Iterator[tuple[int, Mapping[str, NDArray[np.float32]]]]
"""The steps of a training run, from 1: by parameter name, the mean over workers of what each one compresses,
in the parameter's shape with its dimensions in memory order."""


class Study(Protocol):
    """``takes``: one of the words above. Random numbers come from ``seed`` alone."""

    takes: str

    def run(self, seed: int, *given: Any) -> list[Row]:
        """The rows; what is ``given`` is of the type that ``takes`` names."""


@dataclass(frozen=True)
class Tensors:
    """``name``: of the model; ``sizes``: values of each tensor, in the order of registration; ``layers``:
    as papers count them, 0 where nobody has."""

    name: str
    sizes: tuple[int, ...]
    layers: int = 0


@dataclass(frozen=True)
class Gradients:
    """Gradients of all workers at one step. ``values``: f32[N, n], tensors one after another, whose
    ``sizes`` add up to n. ``fed``: whether each worker's residual has been added (error feedback)."""

    sizes: tuple[int, ...]
    values: NDArray[np.float32]
    fed: bool

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != sum(self.sizes):
            raise ValueError(
                f"values: f32[workers, {sum(self.sizes)}], got shape {self.values.shape}"
            )


@dataclass(frozen=True)
class Times:
    """A model's tensors, and measured milliseconds of compressing all of them one by one, every
    repeat, by compression factor."""

    tensors: Tensors
    compress_ms: Mapping[float, Sequence[float]]


Snapshots = Iterator[tuple[int, Gradients]]
"""Gradients of all workers at some steps of a training run, from 1."""
