"""The exchange of a model's gradients: every tensor's state, for all workers hosted here.

The states of a step are values: `finish` computes the next ones and `commit` makes them current.
Until then `discard` returns to the step before (a non-finite gradient, skipped).

State is keyed by parameter name, never by bucket: DDP rebuilds its buckets after the first
iteration. Compressors get contiguous float32 tensors. A channels-last weight [O, I, H, W] is handed over
as the [O, H, W, I] it is in memory, without a copy; a complex one as its real view, real and imaginary
parts side by side. Gradients of other types are converted to float32 once, on entry; states are float32.
Only a tensor that goes uncompressed is averaged in its own type, as DDP does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import (
    EXCHANGES,
    Compressor,
    Context,
    FitsModel,
    State,
    exchange_all,
    nested,
)
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.sharded import OWNER
from dgc_repro.errors import UserError
from dgc_repro.exchange.drive import Chooser, Lockstep
from dgc_repro.exchange.signals import check, first_non_finite
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import INFINITE, Batch, Peaks
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan

UNITS = ("layer", "model")
MODEL = "model"  # the name of the one vector of unit=model


def in_memory_order(tensor: Tensor) -> Tensor:
    """A contiguous real view of a dense tensor, dimensions ordered as they lie in memory; else a copy.

    Complex [..., n] becomes [..., 2 n], so that a vector stays a vector."""
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride()[d], d))
        tensor = tensor.permute(order).contiguous()
    if tensor.is_complex():
        real = torch.view_as_real(tensor)
        return real.flatten(-2) if tensor.dim() else real
    return tensor


def is_uncompressed(compressor: Compressor, tensor: Tensor, name: str) -> bool:
    """Whether a nest sends this tensor as it is, whatever the step."""
    if isinstance(compressor, PerLayer):
        return compressor.exempt(tensor, name) or is_uncompressed(compressor.inner, tensor, name)
    return isinstance(compressor, Dense)


class GradientExchange:
    """All states of a compressor for one model.

    ``parameters``: name to tensor, in the order of registration, the same on all ranks; kept as they are
    handed over, see `in_memory_order`.
    ``unit``: ``layer`` for each tensor by itself, ``model`` for everything in one vector.
    ``non_finite``: workers hosted here that opened, in this step, a gradient with a NaN or an
    infinity, and the first such tensor. A quantizer makes finite numbers of a NaN, so it cannot be
    seen afterwards: agree on it before `commit`, and `discard` instead.
    ``peaks``: the same for gradients on a GPU, by worker and part, not read yet: see `doubt` and `named`.
    ``missing``: parameters that had no gradient here in the last step; ``absent``: on no rank
    (exchange/settle.py). The states of absent parameters do not change.
    """

    def __init__(
        self,
        compressor: Compressor,
        parameters: Mapping[str, Tensor],
        link: Link,
        *,
        seed: int = 0,
        unit: str = "layer",
        choose: Chooser | None = None,
    ) -> None:
        self.compressor = compressor
        self.link = link
        self.seed = seed
        self.unit = unit
        self.step = 0
        self.learning_rate = 1.0  # of the step that is opened next
        self.names = list(parameters)
        self.missing: frozenset[str] = frozenset()
        self.absent: frozenset[str] = frozenset()
        self.choose = choose
        self.parameters = {name: in_memory_order(p.detach()) for name, p in parameters.items()}
        self._as_they_are = {
            name for name, p in self.parameters.items() if is_uncompressed(compressor, p, name)
        }
        self._workspaces = [Workspace() for _ in range(link.wire.local_workers)]
        self.buffers = Workspace()  # of all tensors together: overwritten in the next step
        self.states = [self._initial() for _ in self._workspaces]
        self._next: list[dict[str, State]] = [{} for _ in self._workspaces]
        self._under_way: dict[int, Lockstep] = {}
        self.non_finite: dict[int, str] = {}
        self.peaks: dict[tuple[int, int], list[Peaks]] = {}
        self._last_peaks = self.peaks  # of the step before
        # The first worker's gradients of this step: where the means may be written.
        self._means: dict[int, Sequence[Tensor]] = {}  # by part
        self._opened: dict[int, tuple[str, ...]] = {}  # the names in a part
        # By worker hosted here: of this step's tensors, where the plan measures them.
        self._energies: list[dict[str, Tensor]] = [{} for _ in self._workspaces]

    def open(
        self, worker: int, gradients: Mapping[str, Tensor], plan: Plan, *, part: int = 0
    ) -> None:
        """Start the exchange of one worker hosted here: compress up to the first request.

        The gradients are given up: the means may be written into them. ``part``: several may be
        under way at once (DDP's buckets); all ranks send and finish them in one order."""
        if self.link.check and worker == 0 and not self._under_way:
            self.link.agree(_in_words(plan))
        if part not in self._under_way:
            self.restart(part)
        gradients = self._converted(worker, gradients)
        tensors: Mapping[str, Tensor] = gradients
        if self.unit == MODEL:
            tensors = {MODEL: self._joined(worker, gradients)}
        batch = Batch(tuple(tensors), list(tensors.values()))
        self._opened[part] = batch.names
        if worker == 0:
            self._means[part] = batch.tensors
        norm = functools.cache(functools.partial(_norm, gradients, batch))
        context = self._context(worker, batch, plan, norm, part)
        states = [self.states[worker][name] for name in batch.names]
        unchecked = batch.unchecked
        exchange = exchange_all(self.compressor, batch, states, context)
        del batch, context
        self._under_way[part].open(exchange)
        seen = [] if self.unit == MODEL else unchecked.peaks  # one vector cannot tell the tensor
        whole = self.unit == MODEL and bool(unchecked or unchecked.peaks)
        bad: str | None = None
        peaks: list[Peaks] = []
        if whole or unchecked:
            bad, peaks = check({n: g for n, g in gradients.items() if whole or n in unchecked})
        self.peaks[worker, part] = seen + peaks
        if bad:
            self.non_finite.setdefault(worker, bad)

    def open_any(
        self, worker: int, gradients: Mapping[str, Tensor], plan: Plan, *, part: int = 0
    ) -> str | None:
        """`open` gradients of which some may not be finite. Returns the name of one of which that is known.

        A compressor may fail on a NaN. A real process then opens zeros in place of the gradients, because
        other ranks may be about to receive its payload. (On a GPU a NaN that no compressor has met
        travels.)"""
        try:
            self.open(worker, gradients, plan, part=part)
        except Exception:
            bad = first_non_finite(gradients)
            if bad is None:
                raise
            self.non_finite.setdefault(worker, bad)
        if self.non_finite and self.link.wire.local_workers == 1:
            self.restart(part)
            zeros = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
            self.open(worker, zeros, plan, part=part)
        return self.non_finite.get(worker)

    def restart(self, part: int = 0) -> None:
        """Begin a part. One that was opened, but not sent, is given up: it may be opened again."""
        if part in self._under_way:
            self._under_way[part].close()
        self._under_way[part] = Lockstep(
            self.link, self.buffers, self.choose, part=part, absent=lambda: self.absent
        )

    def send(self, part: int = 0) -> None:
        """Begin the first collectives of what was opened, and return."""
        self._under_way[part].send()

    def receive(self, part: int = 0) -> None:
        """Wait for the collectives that were sent and decompress; begins no others."""
        self._under_way[part].receive()

    def landed(self, part: int = 0) -> bool:
        """Whether `receive` would not wait."""
        return self._under_way[part].landed

    def finish(self, part: int = 0) -> dict[str, Tensor]:
        """Serve all requests; the means by parameter name, valid until the next step."""
        outcomes = self._under_way[part].finish()
        del self._under_way[part]
        names = self._opened[part]
        for following, outcome in zip(self._next, outcomes, strict=True):
            following.update(zip(names, outcome.state, strict=True))
        means = outcomes[0].mean
        if self.unit == MODEL:
            return self._parted(means[0])
        return dict(zip(names, means, strict=True))

    def owe(self, name: str, rest: Tensor) -> None:
        """Add to the residual of a parameter, where it has one, a part of its mean that was not applied, the
        same on all workers. Call it after `finish` and before `commit`."""
        for states, following in zip(self.states, self._next, strict=True):
            residual = _new_residual(following[name], states[name])
            if residual is not None:
                residual.add_(rest)

    def unread(self) -> list[Any]:
        """Sizes of payloads that are still on a GPU (`Later.unread`). They can be read with the signals."""
        return [one for lockstep in self._under_way.values() for one in lockstep.unread()]

    def doubt(self) -> Tensor | None:
        """1 where `peaks` hold a NaN or an infinity, else 0: f64[]. None where there are none."""
        bits = [one.bits for every in self.peaks.values() for one in every]
        return torch.cat(bits).ge(INFINITE).any().double() if bits else None

    def named(self, bad: Sequence[str | None]) -> list[str | None]:
        """A tensor that was not finite in the last step, for each worker hosted here, where ``bad`` has those
        that were known before `settle`. This waits for the GPU."""
        found = list(bad)
        for (worker, _), every in sorted(self._last_peaks.items()):
            for one in every:
                found[worker] = found[worker] or one.first_non_finite()
        return found

    def energies(self, plan: Plan) -> Tensor:
        """What the plan measures of the gradients that were opened (see `requests.Choose`): summed over
        tensors but the absent ones, averaged over the workers hosted here: f64[3 or 6]. Empty where nothing
        is measured."""
        size = (6 if plan.norms else 3) if plan.measures else 0
        total = torch.zeros(size, dtype=torch.float64, device=self.link.wire.device)
        for told in self._energies:
            names = sorted(told.keys() - self.absent)  # by name: buckets come in another order
            if names:
                total += torch.stack([told[name] for name in names]).sum(0)
        return total / len(self._energies)

    def commit(self) -> None:
        """Make the states of the finished exchange current: the step has happened."""
        for states, following in zip(self.states, self._next, strict=True):
            happened = following
            if self.absent:
                happened = {n: s for n, s in following.items() if n not in self.absent}
            states.update(happened)
        self._forget_step()

    def discard(self) -> None:
        """Forget an exchange that was opened or finished: the step has not happened."""
        for lockstep in self._under_way.values():
            lockstep.close()
        self._under_way.clear()
        self._forget_step()

    def state_bytes(self) -> int:
        """Bytes one worker's compressor keeps between steps."""
        return sum(tensor.nbytes for tensor in tensors_of(self.states[0]))

    def state_dict(self, worker: int = 0) -> State:
        """The states of one worker hosted here."""
        return {"step": self.step, "tensors": self.states[worker]}

    def load_state_dict(self, state: State, worker: int = 0) -> None:
        """Take over a worker's states. Raises ValueError when they are another compressor's."""
        current = self.states[worker]
        saved = _counted(state["tensors"], current, state["step"])
        if not fits(structure(saved), structure(current)):
            raise ValueError(
                "the saved compressor state is of another model, compressor or wrap list, or of another "
                "version of this package"
            )
        self.step = state["step"]
        device = self.link.wire.device
        # Copies: the state's storage is written to in turn, and what was saved stays the caller's.
        self.states[worker] = map_tensors(saved, lambda tensor: tensor.to(device, copy=True))

    def _forget_step(self) -> None:
        for following, energies in zip(self._next, self._energies, strict=True):
            following.clear()
            energies.clear()
        self._means.clear()
        self.non_finite.clear()
        self._last_peaks, self.peaks = self.peaks, {}
        self.step += 1

    def _initial(self) -> dict[str, State]:
        tensors = {
            name: p if p.dtype == torch.float32 else torch.empty_like(p, dtype=torch.float32)
            for name, p in self.parameters.items()
        }
        if self.unit == MODEL:
            size = sum(p.numel() for p in self.parameters.values())
            tensors = {MODEL: torch.empty(size, device=self.link.wire.device)}
        for part in nested(self.compressor):
            if isinstance(part, FitsModel):
                try:
                    part.check_fits([tensor.shape for tensor in tensors.values()])
                except ValueError as error:
                    raise UserError(f"compressor.{error}") from error
        return {name: self.compressor.init(tensor) for name, tensor in tensors.items()}

    def _context(
        self, worker: int, batch: Batch, plan: Plan, norm: Callable[[], float | Tensor], part: int
    ) -> Context:
        energies = self._energies[worker]

        def tell(names: Sequence[str], measured: Tensor) -> None:
            energies.update(zip(names, measured, strict=True))

        rungs = [plan.for_tensor(name) for name in batch.names] if plan.by_tensor else None
        return Context(
            name=f"batch {part}",
            step=self.step,
            seed=self.seed,
            rank=self.link.wire.rank + worker,
            world_size=self.link.wire.world_size,
            rung=plan.rung,
            candidates=plan.candidates,
            workspace=self._workspaces[worker],
            own_is_read=False,
            into=self._means[part],
            gradient_norm=norm,
            learning_rate=self.learning_rate,
            raw_energy=kernels.energies(batch) if plan.norms else None,
            tell_energies=tell if plan.measures else None,
            rungs=rungs,
        )

    def _converted(self, worker: int, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The gradients in float32, but for those that go uncompressed: in one launch on a GPU."""
        others = {
            name: gradient
            for name, gradient in gradients.items()
            if gradient.dtype != torch.float32 and name not in self._as_they_are
        }
        if not others:
            return gradients
        scratch = self._workspaces[worker].scratch
        wide = {
            name: scratch(("float32", name), g.numel(), torch.float32, g.device).view(g.shape)
            for name, g in others.items()
        }
        torch._foreach_copy_(list(wide.values()), list(others.values()))
        return {name: wide.get(name, gradient) for name, gradient in gradients.items()}

    def _joined(self, worker: int, gradients: Mapping[str, Tensor]) -> Tensor:
        """All gradients in one vector, in the order of registration and of the widest type."""
        parts = [gradients[name].reshape(-1) for name in self.names]
        size = sum(part.numel() for part in parts)
        dtype = functools.reduce(torch.promote_types, {part.dtype for part in parts})
        vector = self._workspaces[worker].scratch((MODEL,), size, dtype, parts[0].device)
        return torch.cat(parts, out=vector)

    def _parted(self, vector: Tensor) -> dict[str, Tensor]:
        sizes = [self.parameters[name].numel() for name in self.names]
        pieces = zip(self.names, vector.view(-1).split(sizes), strict=True)
        return {name: piece.view(self.parameters[name].shape) for name, piece in pieces}


def _norm(gradients: Mapping[str, Tensor], batch: Batch) -> float | Tensor:
    """||g|| of one worker's whole gradient, of which the batch is made. On a CPU in f64 only where f32
    overflows: 10 times the cost."""
    if batch.on_gpu:
        return kernels.energies(batch).sum().sqrt()
    found = list(gradients.values())
    norm = float(torch.stack(torch._foreach_norm(found)).double().norm())
    if not math.isfinite(norm):
        norms = torch._foreach_norm(found, 2, torch.float64)
        norm = float(torch.stack(norms).norm())
    if math.isfinite(norm):
        batch.found_finite()
    return norm


def _in_words(plan: Plan) -> str:
    """A plan as ranks compare it (exchange.check)."""
    text = "a choice" if plan.rung is None else f"rung {plan.rung} as planned"
    if plan.rung is None or plan.measures:
        text += f" (candidates {plan.candidates[0]} and {plan.candidates[1]})"
    text += " with norms" if plan.norms else ""
    exceptions = ", ".join(f"{name} {rung}" for name, rung in sorted(plan.by_tensor.items()))
    return f"{text}: {exceptions}" if exceptions else text


def map_tensors(state: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same nest with ``function`` applied to every tensor."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, Mapping):
        return {key: map_tensors(value, function) for key, value in state.items()}
    if isinstance(state, Sequence) and not isinstance(state, str):
        return [map_tensors(value, function) for value in state]
    return state


def _new_residual(after: Any, before: Any) -> Tensor | None:
    """The outermost residual of a state that an exchange has written, and not taken over from the state
    before: of a ladder with a residual for each rung, that of its rung."""
    if isinstance(after, Mapping):
        if "residual" in after:
            residual: Tensor = after["residual"]
            return None if residual is before["residual"] else residual
        pairs = [(value, before[key]) for key, value in after.items()]
    elif isinstance(after, list):
        pairs = list(zip(after, before, strict=True))
    else:
        return None
    return next((r for pair in pairs if (r := _new_residual(*pair)) is not None), None)


def _counted(saved: Any, current: object, steps: int) -> Any:
    """A saved nest, with the counts of exchanges that an older version did not save: it counted all steps."""
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        lacks = EXCHANGES in current and EXCHANGES not in saved
        nest = {key: _counted(value, current.get(key), steps) for key, value in saved.items()}
        return nest | {EXCHANGES: steps} if lacks else nest
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        return [_counted(*pair, steps) for pair in zip(saved, current, strict=True)]
    return saved


def tensors_of(state: object) -> list[Tensor]:
    """All tensors in a nest, in order."""
    found: list[Tensor] = []
    map_tensors(state, found.append)
    return found


def fits(saved: object, current: object) -> bool:
    """Whether two `structure`s are of one nest. An owner's residual (compressor/sharded.py) is made on first
    use: an empty one fits any."""
    if isinstance(saved, dict) and isinstance(current, dict):
        return saved.keys() == current.keys() and all(
            fits(saved[k], current[k]) or (k == OWNER and (0,) in (saved[k], current[k]))
            for k in saved
        )
    if isinstance(saved, list) and isinstance(current, list):
        return len(saved) == len(current) and all(map(fits, saved, current))
    return saved == current


def structure(state: object) -> object:
    """The nest with shapes in place of tensors and types in place of numbers, which may change."""
    if isinstance(state, Tensor):
        return tuple(state.shape)
    if isinstance(state, Mapping):
        return {key: structure(value) for key, value in state.items()}
    if isinstance(state, Sequence) and not isinstance(state, str):
        return [structure(value) for value in state]
    return type(state).__name__
