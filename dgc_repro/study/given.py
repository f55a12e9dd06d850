"""What a study may be handed besides its settings: a model's tensors, gradients, compress times.

Letters: N = workers, n = values of the whole gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Row = dict[str, float | int | str]
"""One line of a study's table. All rows of a study have the same keys."""

NOTHING, TENSORS, GRADIENTS, TIMES = "nothing", "tensors", "gradients", "times"


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


def whole_numbers(field: str, values: object, least: int = 1) -> None:
    """Raise ValueError unless ``values`` are whole numbers from ``least``, ascending."""
    fits = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
    if not fits or any(
        isinstance(v, bool) or not isinstance(v, int) or v < least
        for v in values  # type: ignore[attr-defined]
    ):
        raise ValueError(f"{field}: a list of whole numbers from {least}, got {values!r}")
    if list(values) != sorted(set(values)):  # type: ignore[call-overload]
        raise ValueError(f"{field}: ascending, each once, got {values!r}")


def number(field: str, value: object, least: float = 0.0, *, above: bool = False) -> None:
    """Raise ValueError unless ``value`` is a number from (or above) ``least``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < least or (above and value == least):  # type: ignore[operator]
        raise ValueError(
            f"{field}: a number {'above' if above else 'from'} {least:g}, got {value!r}"
        )
