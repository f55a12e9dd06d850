"""What a compressor is: ``init`` and a generator ``exchange``. Wrappers are compressors too.

A new method is one class with these two functions (docs/adding-a-compressor.md).

Laws every compressor obeys (tests/compressor/test_laws.py): agreement, averaging, conservation,
bytes, purity, resume. Purity has one rule for authors: `exchange` reads its state and returns a new
one; it may reuse the storage of the old one only through `Context.spare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dgc_repro.exchange.requests import Exchange
from dgc_repro.kernel import counter
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.workspace import Finite, Workspace

State = dict[str, Any]
"""Nested dicts of tensors and numbers: it nests as the composition nests, and checkpoints as it is."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an exchange may know of its surroundings.

    ``name``: of the tensor; ``path``: where in the nest of wrappers; ``rung``: what the policy
    planned for this tensor, None where the policy must see energies first (`Choose`).
    ``own_is_read``: whether somebody looks at `Outcome.own`; where nobody does, a tensor that is sent
    whole may be averaged in its own storage. ``into``: where the mean may be written, see `result`.
    ``finite``: told of tensors that were found finite on the way, which saves a look at them.
    ``gradient_norm``: of this worker's whole gradient, measured when it is first asked for; None where
    nobody sees all of it. ``learning_rate``: of this step, or 1 throughout where nobody says.
    ``selection``: what a ladder's probe has chosen already for this very exchange of a sparsifier.
    ``raw_energy``: ||g||^2 of the gradient before any wrapper, f64[], where the plan asks for norms.
    ``tell_energies``: takes the energies that `Choose` would, where the plan asks for them and knows the
    rung all the same.
    """

    name: str
    step: int
    seed: int
    rank: int
    world_size: int
    rung: int | None
    candidates: tuple[int, int]
    workspace: Workspace
    path: tuple[str, ...] = ()
    own_is_read: bool = True
    into: Tensor | None = None
    finite: Finite | None = None
    gradient_norm: Callable[[], float] | None = None
    learning_rate: float = 1.0
    selection: Selection | None = None
    raw_energy: Tensor | None = None
    tell_energies: Callable[[Tensor], None] | None = None

    def within(
        self, label: str, *, reads_own: bool = False, reads_gradient: bool = False
    ) -> Context:
        """The context of a wrapped compressor: its buffers and random numbers are its own. A wrapper
        that reads the inner outcome's ``own`` says so, and one that reads its own ``tensor`` after
        the inner exchange has ended (the mean may lie there by then)."""
        return Context(
            self.name, self.step, self.seed, self.rank, self.world_size, self.rung, self.candidates,
            self.workspace, (*self.path, label), self.own_is_read or reads_own,
            None if reads_gradient else self.into, self.finite, self.gradient_norm,
            self.learning_rate, raw_energy=self.raw_energy, tell_energies=self.tell_energies,
        )  # fmt: skip  # dataclasses.replace costs 5 times as much, and this runs for each tensor

    def scratch(self, label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A reused 1-d buffer of ``size`` elements; content undefined; valid during this exchange."""
        return self.workspace.scratch((self.name, *self.path, label), size, dtype, device)

    def result(self, tensor: Tensor) -> Tensor:
        """A 1-d buffer for the mean of tensors like this one, f32; content undefined.

        It may be the storage of the gradient that the exchange began with: write when the last
        answer is there, and read no gradient afterwards. Simulated workers share it."""
        into = self.into
        if (
            into is None
            or into.numel() != tensor.numel()
            or into.dtype != torch.float32
            or into.device != tensor.device
            or not into.is_contiguous()
        ):
            return self.scratch("mean", tensor.numel(), torch.float32, tensor.device)
        return into.view(-1)

    def found_finite(self, tensor: Tensor) -> None:
        """A kernel has read all of this tensor and met neither NaN nor infinity."""
        if self.finite is not None:
            self.finite.add(tensor)

    def fed_with(self, total: Tensor, tensor: Tensor) -> None:
        """``total`` is a multiple of ``tensor``, and something added: who finds it finite has found the
        tensor finite."""
        if self.finite is not None:
            self.finite.add_with(total, (tensor,))

    def spare(self, label: str, current: Tensor) -> Tensor:
        """A reused buffer for the successor of ``current``, a tensor of the state."""
        return self.workspace.spare((self.name, *self.path, label), current)

    def key(self, *, shared: bool) -> int:
        """A 32-bit key for random numbers of this step and tensor: one for all workers, or one each."""
        return counter.key(self.seed, self.step, self.name, *self.path, -1 if shared else self.rank)


@runtime_checkable
class Compressor(Protocol):
    """A method of sending a gradient: the state it keeps for a tensor, and one exchange."""

    def init(self, tensor: Tensor) -> State:
        """The state before the first step of a tensor like this one (its values do not matter)."""

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        """Send this worker's ``tensor`` (contiguous, any shape) and return an `Outcome`.

        The tensor is read only, but for the answer that `Context.result` puts there, and it may hold
        NaN and infinities: the step is then discarded, when every exchange has been opened."""


def nested(compressor: object) -> Iterator[object]:
    """A compressor and all it is made of, outermost first."""
    yield compressor
    if is_dataclass(compressor):
        for part in fields(compressor):
            value = getattr(compressor, part.name)
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, Compressor):
                    yield from nested(inner)


def check_complete(compressor: object) -> None:
    """Raise ValueError where a part lacks what its exchange will ask for, before any rank has started."""
    for part in nested(compressor):
        needed = ["init", "exchange"]
        code = getattr(getattr(type(part), "exchange", None), "__code__", None)
        if code is not None and "exchange_selected" in code.co_names:  # compressor/sparsifier.py
            needed += ["select", "ragged"]
        for name in needed:
            if not hasattr(part, name):
                raise ValueError(
                    f"compressor: {type(part).__name__} has no attribute {name}; give it one "
                    "(docs/adding-a-compressor.md)"
                )


@runtime_checkable
class FitsModel(Protocol):
    """A compressor with a setting that not every model allows."""

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Raise ValueError, beginning with the bare field, where tensors of these shapes do not suit."""


@runtime_checkable
class Measurable(Protocol):
    """A compressor that can tell the energy of what it would send, as `Choose` needs."""

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        """||x||^2 - ||x - C(x)||^2, f64[], without changing anything (compressor/explained.py)."""
