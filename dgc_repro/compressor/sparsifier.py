"""What sparsifiers share: how many entries they keep, and how a selection is sent.

A sparsifier is a compressor that chooses entries (`select`) and sends their values and places. It
can choose again among the survivors of a weaker one (`refine`), which is what a `Ladder` of
sparsifiers does (GraVAC, multi-level compression); `exchange_selected` then sends what the ladder has
chosen.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import Sparse
from dgc_repro.exchange.payload.sparse import CODINGS, PLAIN
from dgc_repro.exchange.payload.values import VALUES
from dgc_repro.exchange.requests import Exchange, Gather, GatherRagged, Outcome
from dgc_repro.kernel import select
from dgc_repro.kernel.select import Scratch, Selection

DENSITY = 0.01  # where neither density nor factor is given


@runtime_checkable
class Sparsifier(Protocol):
    """``ragged``: whether workers may send different numbers of entries. One that sets ``refines`` to
    False is measured and chosen by itself in a ladder, not among a weaker rung's survivors."""

    @property
    def ragged(self) -> bool: ...

    def select(self, tensor: Tensor, context: Context) -> Selection:
        """The entries to send. tensor: f32, contiguous, any shape."""

    def refine(self, survivors: Selection, context: Context) -> Selection:
        """The entries to send, from those that a weaker setting has chosen (n is the tensor's)."""


@runtime_checkable
class Largest(Protocol):
    """A sparsifier that chooses the k largest magnitudes exactly: several are found in one pass."""

    def num_largest(self, n: int) -> int:
        """k, for a tensor of n values."""


def check_density(density: float | None, factor: float | None) -> float:
    """The share of entries to send, from whichever of the two is given (neither: `DENSITY`).
    Raises ValueError."""
    if density is None and factor is None:
        return DENSITY
    for name, value in (("density", density), ("factor", factor)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name}: a number, got {value!r}")
    if density is not None and not 0 < density <= 1:
        raise ValueError(f"density: above 0 and at most 1, got {density!r}; 0.01 sends 1 %")
    if factor is not None and not 1 <= factor < math.inf:
        raise ValueError(f"factor: at least 1, got {factor!r}; 100 sends one entry of 100")
    if density is not None and factor is not None and not math.isclose(density * factor, 1):
        raise ValueError(
            f"density: {density} is a factor of {1 / density:g}, and factor is {factor}; give one"
        )
    return density if density is not None else 1 / factor  # type: ignore[operator]


def num_kept(n: int, density: float) -> int:
    """k = max(1, round(n density)), and 0 of an empty tensor."""
    return min(n, max(1, round(n * density)))


def check_coding(indices: str, values: str) -> None:
    """The two settings of every sparsifier: how places and values travel. Raises ValueError."""
    for name, value, known in (("indices", indices, CODINGS), ("values", values, tuple(VALUES))):
        if value not in known:
            raise ValueError(f"{name}: one of {', '.join(known)}, got {value!r}")


def coded(sparsifier: object, chosen: Selection, scratch: Scratch | None = None) -> Sparse:
    """The payload of a selection, coded as the sparsifier's settings ``indices`` and ``values`` say
    (`check_coding`; the fields are ``indices: str = "auto"`` and ``values: str = "fp32"``). One that
    lacks them sends int32 and fp32. ``scratch``: where codes are kept."""
    indices, values = (getattr(sparsifier, "indices", PLAIN), getattr(sparsifier, "values", "fp32"))
    return Sparse.of(chosen, indices, values, scratch)


def explained_by(sparsifier: object, chosen: Selection) -> Tensor:
    """||x||^2 - ||x - C(x)||^2 where C sends this selection: f64[] (compressor/explained.py)."""
    whole = select.energy(chosen.values)
    if getattr(sparsifier, "values", "fp32") == "fp32":
        return whole
    return whole - select.energy(chosen.values - coded(sparsifier, chosen).values)


def check_exact(sparsifier: object) -> None:
    """Raise ValueError where values are rounded as they are sent: in a way of combining that sends
    sums on, that error would be in nobody's residual."""
    values = getattr(sparsifier, "values", "fp32")
    if values != "fp32":
        raise ValueError(
            f"values: sums are sent on, and {values} would round them where no residual sees it; use "
            "fp32, or gather what is sent"
        )


def exchange_selected(
    sparsifier: Sparsifier, tensor: Tensor, state: State, context: Context
) -> Exchange:
    """Select (where a ladder has not done it), send, average: the exchange of a sparsifier."""
    chosen = context.selection
    if chosen is None:
        chosen = sparsifier.select(tensor, context)
    own = coded(sparsifier, chosen, context.scratch)
    payloads = yield GatherRagged(own) if sparsifier.ragged else Gather(own)
    mean = payloads.mean(context.result(tensor))
    return Outcome(mean.view(tensor.shape), own, state)
