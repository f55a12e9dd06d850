"""The exchange of a model's gradients: groups of parameters, as an optimizer has them, each with a method.

The steps of all groups begin before any is waited for (`Running`). States change in place, so that ranks
agree first: `run` is called where all gradients of all ranks are finite. Where gradients travel before all
are known (buckets of DDP, units of FSDP), `hold` has the states of before, and `undo` puts them back.

Methods get contiguous float32 tensors. A channels-last weight [O, I, H, W] is handed over as the [O, H, W, I]
that it is in memory, without a copy; a complex one as its real view, real and imaginary parts side by side.
Gradients of other types are converted to float32 once. Only a tensor that goes uncompressed is averaged in
its own type, as DDP does. Everything is keyed by the name of a parameter: DDP cuts its buckets anew after the
first step.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor, Context, FitsModel, Step, nested
from dgc_repro.compressor.joined import MODEL, Joined
from dgc_repro.compressor.kept import Kept
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer, Rest
from dgc_repro.errors import UserError
from dgc_repro.exchange.world import LARGE_BYTES, Wait, World
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan

Gradients = Mapping[str, Tensor]
"""Of one worker, by the names of parameters, contiguous (`in_memory_order`)."""
Chooser = Callable[[Tensor], int]
"""From the energies that all workers share to the rung of a `Ladder`: f32[3 or 6]."""


@dataclass
class Group:
    """Parameters that one method serves."""

    names: tuple[str, ...]
    method: Compressor

    def __post_init__(self) -> None:
        self.members = frozenset(self.names)

    @property
    def exact(self) -> bool:
        """Whether tensors travel in their own type."""
        return self.method.exact


class Running:
    """The steps of all groups for one set of gradients. All have begun. ``given``: what they were given, by
    worker hosted here."""

    def __init__(
        self, steps: Sequence[Step], world: World, given: Sequence[tuple[int, Batch]]
    ) -> None:
        self._world, self.given = world, given
        self._live: list[tuple[Step, Wait]] = []
        with self._forgetting():
            with world.clock.span("compress"):
                for step in steps:
                    _advance(step, self._live)
            world.begin()

    def finish(self) -> None:
        """Serve all collectives. The means are where `Exchange.run` says."""
        with self._forgetting():
            self._serve()

    def _serve(self) -> None:
        while self._live:
            following: list[tuple[Step, Wait]] = []
            for step, wait in self._live:
                wait()
                with self._world.clock.span("decompress") as span:
                    _advance(step, following)
                    if following:
                        span.name = "compress"
            self._world.begin()
            self._live = following

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Where a method fails, what it and others have asked for does not travel with the next step."""
        try:
            yield
        except BaseException:
            self._world.forget()
            raise


def _advance(step: Step, live: list[tuple[Step, Wait]]) -> None:
    """Resume a step, and note what it waits for."""
    try:
        live.append((step, next(step)))
    except StopIteration:
        return


class Exchange:
    """The methods of a model and their states, for the workers hosted here.

    ``step``: of the run, for random numbers. ``learning_rate``: of the step that comes next. ``choose``: a
    policy's answer to energies; ``told``: energies that all workers share of the parts of a step, where the
    plan measures them although its rung is known."""

    def __init__(
        self,
        compressor: Any,
        parameters: Mapping[str, Tensor],
        world: World,
        *,
        seed: int = 0,
        unit: str = "layer",
        choose: Chooser | None = None,
    ) -> None:
        """``parameters``: in the order of registration, the same on all ranks. ``unit``: ``layer`` for each
        tensor by itself, ``model`` for everything in one vector."""
        self.world, self.seed, self.choose = world, seed, choose
        self.step, self.learning_rate = 0, 1.0
        self.told: list[Tensor] = []
        self.parameters = {name: in_memory_order(p.detach()) for name, p in parameters.items()}
        self.names = tuple(self.parameters)
        self._check_fits(compressor, unit)
        self.groups = []
        for names, nest in groups_of(compressor, self.parameters, unit):
            like = Batch(names, [self.parameters[name] for name in names])
            method = own_copy(nest)
            method.setup(like, world)
            self.groups.append(Group(names, method))
        # Parameters whose gradients a method gets as float32.
        others = (group.names for group in self.groups if not group.exact)
        self.converted = frozenset(name for names in others for name in names)
        self.is_joined = unit == MODEL
        # The mean of each is taken where it lies. (Not bucket by bucket: DDP cuts its buckets anew after the
        # first step, and with three ranks or more the last bits of a sum depend on the place in what
        # travels, so that a continued run would have others.)
        on_cpu = world.device.type == "cpu" and not world.simulated
        self._large = frozenset(
            n for n, p in self.parameters.items() if on_cpu and p.nbytes > LARGE_BYTES
        )
        self._buffers = Workspace()
        # Gradients of other types and their means in float32.
        self._narrow: list[tuple[Group, tuple[str, ...], list[Tensor], list[Tensor]]] = []

    def run(self, gradients: Sequence[Gradients], plan: Plan, part: int = 0) -> Running:
        """Begin to exchange the gradients of each worker hosted here, all of the model's or some (``part``
        tells those apart that are under way at once). The means end in the first worker's, when the running
        steps have been finished and `put` is called."""
        if part == 0:
            self._narrow.clear()
        steps, read = [], []
        norms = functools.cache(lambda: [_norm(list(own.values())) for own in gradients])
        for slot, group, names in self._batches(gradients[0], plan, part):
            xs = [
                Batch(names, self._wide(worker, slot, group, names, [own[n] for n in names]))
                for worker, own in enumerate(gradients)
            ]
            context = Context(
                step=self.step,
                seed=self.seed,
                rank=self.world.rank,
                world_size=self.world.size,
                workspace=self._buffers,
                learning_rate=self.learning_rate,
                plan=plan,
                slot=slot,
                norms=norms,
                raw=[kernels.energies(x) for x in xs] if plan.norms else (),
                choose=self.choose,
                tell=self.told.append,
            )
            for x in xs:
                x.peaks = []
            steps.append(group.method.step(xs, xs[0], self.world, context))
            read += list(enumerate(xs))
        return Running(steps, self.world, read)

    def average(self, gradients: Sequence[Gradients], plan: Plan | None = None) -> None:
        """A whole step of gradients that are known to be finite. The means end in the first worker's."""
        self.run(gradients, plan or Plan(0)).finish()
        self.put()
        self.step += 1

    def put(self, *, owe: bool = False) -> None:
        """Write means that were computed in float32 into gradients of other types. ``owe``: what a narrower
        type rounds off is added to the residuals, where there are any: shards that FSDP has in bfloat16."""
        for group, names, narrow, wide in self._narrow:
            torch._foreach_copy_(narrow, wide)
            residual = _residual(group.method, names) if owe else None
            if residual is not None:
                rests = [mean - rounded for mean, rounded in zip(wide, narrow, strict=True)]
                residual.add(0, names, rests)
        self._narrow.clear()

    def hold(self) -> None:
        """A step begins that may be undone: until `undo` or `accept` the states of before are there too."""
        self._narrow.clear()
        for kept in self._every_kept():
            kept.hold()

    def undo(self) -> None:
        """Put the states back: the step has not happened."""
        for kept in self._every_kept():
            kept.undo()

    def accept(self, absent: Collection[str] = ()) -> None:
        """The step has happened, but not for these parameters."""
        for kept in self._every_kept():
            kept.accept(absent)

    def states(self, worker: int = 0) -> dict[str, dict[str, Tensor]]:
        """The states of a worker hosted here: by label, then by parameter."""
        found: dict[str, dict[str, Tensor]] = {}
        for group in self.groups:
            for label, state in group.method.states(worker).items():
                pairs = zip(state.names, state.tensors, strict=True)
                found.setdefault(label, {}).update(pairs)
        return found

    def state_bytes(self) -> int:
        """Bytes that one worker's methods keep between steps."""
        return sum(t.nbytes for of_label in self.states().values() for t in of_label.values())

    def _every_kept(self) -> Iterator[Kept]:
        for group in self.groups:
            for _, kept in group.method.every_kept():
                yield kept

    def _batches(
        self, given: Gradients, plan: Plan, part: int
    ) -> list[tuple[tuple[int, ...], Group, tuple[str, ...]]]:
        """What is exchanged at once: where, by which group, which tensors."""
        found: list[tuple[tuple[int, ...], Group, tuple[str, ...]]] = []
        whole = len(given) == len(self.names)
        for number, group in enumerate(self.groups):
            names = group.names
            if not whole:
                # In the order of a bucket, whose tensors lie side by side.
                names = tuple([name for name in given if name in group.members])
            pieces = [names]
            if part == 0 and group.exact and self._large and not (self.is_joined or plan.norms):
                pieces = [(name,) for name in names if name in self._large]
                pieces.append(tuple([name for name in names if name not in self._large]))
            for place, piece in enumerate(pieces):
                if piece:
                    found.append(((number, part, place), group, piece))
        return found

    def _wide(
        self,
        worker: int,
        slot: tuple[int, ...],
        group: Group,
        names: tuple[str, ...],
        tensors: list[Tensor],
    ) -> list[Tensor]:
        """The gradients in float32, unless the method takes them as they are."""
        others = [tensor for tensor in tensors if tensor.dtype != torch.float32]
        if group.exact or not others:
            return tensors
        sizes = [tensor.numel() for tensor in others]
        key = ("float32", worker, slot)
        flat = self._buffers.scratch(key, sum(sizes), torch.float32, others[0].device)
        pieces = zip(flat.split(sizes), others, strict=True)
        wide = [piece.view(tensor.shape) for piece, tensor in pieces]
        torch._foreach_copy_(wide, others)
        if worker == 0:
            pairs = zip(names, tensors, strict=True)
            theirs = tuple([name for name, t in pairs if t.dtype != torch.float32])
            self._narrow.append((group, theirs, others, wide))
        each = iter(wide)
        return [tensor if tensor.dtype == torch.float32 else next(each) for tensor in tensors]

    def _check_fits(self, compressor: Any, unit: str) -> None:
        """Raise UserError where a method does not suit these tensors."""
        shapes = [tensor.shape for tensor in self.parameters.values()]
        if unit == MODEL:
            shapes = [torch.Size([sum(shape.numel() for shape in shapes)])]
        for part in nested(compressor):
            if isinstance(part, FitsModel):
                try:
                    part.check_fits(shapes)
                except ValueError as error:
                    raise UserError(f"compressor.{error}") from error


def groups_of(
    compressor: Any, parameters: Mapping[str, Tensor], unit: str
) -> list[tuple[tuple[str, ...], Any]]:
    """The names of each group of parameters, and its method. A `PerLayer` in the nest makes two groups: of
    what it exempts, and of the rest; several make more."""
    names = tuple(parameters)
    if unit == MODEL:
        return [(names, Joined(compressor))]
    layers = [part for part in nested(compressor) if isinstance(part, PerLayer)]
    alike: dict[tuple[bool, ...], list[str]] = {}
    for name, parameter in parameters.items():
        exempt = tuple([layer.exempt(parameter, name) for layer in layers])
        alike.setdefault(exempt, []).append(name)
    return [
        (
            tuple(alike[exempt]),
            _without_choice(compressor, {id(p): e for p, e in zip(layers, exempt, strict=True)}),
        )
        for exempt in sorted(alike, reverse=True)
    ]


def _without_choice(nest: Any, exempt: Mapping[int, bool]) -> Any:
    """A nest for tensors that each `PerLayer` in it treats alike. ``exempt``: by its id, whether it does."""
    if isinstance(nest, PerLayer):
        return Dense() if exempt[id(nest)] else Rest(_without_choice(nest.inner, exempt))
    own = copy.copy(nest)
    if isinstance(nest, Ladder):
        vars(own)["rungs"] = tuple(_without_choice(rung, exempt) for rung in nest.rungs)
    elif hasattr(nest, "inner"):
        vars(own)["inner"] = _without_choice(nest.inner, exempt)
    return own


def own_copy(compressor: Compressor) -> Compressor:
    """A compressor of the same settings, without states: one object may serve several models."""
    made = copy.copy(compressor)
    vars(made).pop("_kept", None)
    for name, value in vars(compressor).items():
        if isinstance(value, Compressor):
            vars(made)[name] = own_copy(value)
        elif isinstance(value, tuple | list) and any(isinstance(v, Compressor) for v in value):
            copied = [own_copy(v) if isinstance(v, Compressor) else v for v in value]
            vars(made)[name] = type(value)(copied)
    return made


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


def _residual(method: Compressor, names: tuple[str, ...]) -> Kept | None:
    """What a method owes of these tensors, if it keeps that: of a ladder of residuals, that of its rung."""
    every = [kept for label, kept in method.every_kept() if label == "residual"]
    return next((kept for kept in every if kept.has_renewed(names)), None)


def _norm(tensors: list[Tensor]) -> float | Tensor:
    """||g|| of a whole gradient. On a CPU in f64 only where f32 overflows: 10 times the cost."""
    if tensors[0].device.type != "cpu":
        names = ("",) * len(tensors)
        return kernels.energies(Batch(names, tensors)).sum().sqrt()
    norm = float(torch.stack(torch._foreach_norm(tensors)).double().norm())
    if math.isfinite(norm):
        return norm
    return float(torch.stack(torch._foreach_norm(tensors, 2, torch.float64)).norm())
