"""A ladder of settings: rung 0 is no compression, rungs grow stronger, a policy picks one a step.

Paper: Tyagi and Swany, "GraVAC: adaptive compression for communication-efficient distributed DL
training", IEEE CLOUD 2023 (arXiv:2305.12201), section III: energies of the weakest and a candidate
rung, and multi-level compression, where the candidate works on what the weakest has left.
Asks: what the chosen rung asks; first the sum over all workers of three energies in float64 (24 bytes for all
tensors together), where the policy must see this step's gradient before it decides. Where it decides
afterwards (`Plan.measures`), they travel beside the payload. The energies are ||g||^2 and the energies
||g||^2 - ||g - C(g)||^2 that the two candidates explain, where g includes the residual. With `Plan.norms`
three sums of L2 norms follow: of the gradients without their residuals, and of what the candidates explain.

Dense being a rung, "residual = 0" (GraVAC, algorithm 1) and "compression removed for a while"
(dynamic gradient compression) need no special case: own = sent.

Sparsifiers refine: where the policy asks to see energies, a stronger rung chooses among the
survivors of the weaker one, and the selection of the rung that is then picked is sent as it is. Exact
top-k finds all rungs in one pass over the tensor, and chooses what it would have chosen directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    apart,
    together,
)
from dgc_repro.compressor.sparsifier import (
    Largest,
    Sparsifier,
    refine_all,
    select_all,
)
from dgc_repro.compressor.topk import largest
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections

if TYPE_CHECKING:
    from dgc_repro.exchange.world import Wait, World


@checked
class Ladder(Compressor):
    """``rungs``: weakest first. State: ``rungs``, one state a rung, only the chosen one moves."""

    rungs: tuple[Compressor, ...]

    def __post_init__(self) -> None:
        if len(self.rungs) < 2:
            raise ValueError("values: a ladder needs at least one setting besides dense, got none")

    def setup(self, like: Batch, world: World) -> None:
        for rung in self.rungs:
            rung.setup(like, world)

    def inside(self) -> Iterator[tuple[str, Compressor]]:
        for number, rung in enumerate(self.rungs):
            yield f"rung{number}", rung

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        plan = context.plan
        planned = [plan.for_tensor(name) for name in out.names]
        selections: list[dict[int, Selections]] = [{} for _ in xs]
        told: Wait | None = None
        if None in planned or plan.measures:
            here = [context.at(worker) for worker in range(len(xs))]
            selections = [self._selections(x, own) for x, own in zip(xs, here, strict=True)]
            each = zip(xs, selections, here, strict=True)
            energies = [self._energies(x, chosen, own) for x, chosen, own in each]
            terms = [one.sum(0) * (1.0 / world.size) for one in energies]
            # In float64 to the end: rounded before, simulated and real workers could choose otherwise.
            told = world.total(terms)
        if None in planned:
            assert told is not None
            yield told
            told = None
            assert context.choose is not None, "a policy that plans rungs before the step"
            rung = context.choose(terms[0].float().cpu())  # on a GPU the host waits here
            planned = [rung if own is None else own for own in planned]
        places: dict[int, list[int]] = {}
        for place, own in enumerate(planned):
            if own is None or not 0 <= own < len(self.rungs):
                raise ValueError(f"the policy chose rung {own} of a ladder of {len(self.rungs)}")
            places.setdefault(own, []).append(place)
        steps = [
            self._step_of(rung, here, xs, out, selections, world, context)
            for rung, here in places.items()
        ]
        names = [tuple([out.names[place] for place in here]) for here in places.values()]
        returned = yield from together(steps)
        if told is not None and context.tell is not None:
            yield told
            context.tell(terms[0])
        return apart(names, returned)

    def _step_of(
        self,
        rung: int,
        places: Sequence[int],
        xs: Sequence[Batch],
        out: Batch,
        selections: Sequence[Mapping[int, Selections]],
        world: World,
        context: Context,
    ) -> Step:
        """The step of the tensors that go through one rung."""
        some, to, inside = xs, out, context.within(f"rung{rung}")
        whole = len(places) == len(out)
        if not whole:
            to = out.part(places)
            some = [to if x is out else x.part(places) for x in xs]
        method: Any = self.rungs[rung]
        sent: Sequence[Any]
        if rung not in selections[0] or not getattr(method, "sends_selected", False):
            sent = yield from method.step(some, to, world, inside)
            return sent
        chosen_here = []
        for worker, chosen in enumerate(selections):
            own = chosen[rung] if whole else chosen[rung].part(places)
            chosen_here.append(method.payload_of(to.names, own, inside.at(worker)))
        sent = yield from method.send(chosen_here, to, world, inside)
        return sent

    def _selections(self, batch: Batch, context: Context) -> dict[int, Selections]:
        """What those candidates choose that are sparsifiers, each among the survivors of the one
        before."""
        rungs = {i: self.rungs[i] for i in sorted(set(context.plan.candidates))}
        sparsifiers = {
            i: rung
            for i, rung in rungs.items()
            if isinstance(rung, Sparsifier) and getattr(rung, "refines", True)
        }
        exact = [rung for rung in sparsifiers.values() if isinstance(rung, Largest)]
        if len(exact) == len(sparsifiers) > 1:
            ks = [[rung.num_largest(n) for rung in exact] for n in batch.sizes]
            if all(of_one == sorted(of_one, reverse=True) for of_one in ks):
                return dict(zip(sparsifiers, largest(batch, exact, context), strict=True))
        found: dict[int, Selections] = {}
        survivors: Selections | None = None
        for i, rung in sparsifiers.items():
            inside = context.within(f"rung{i}")
            if survivors is None:
                survivors = select_all(rung, batch, inside)
            else:
                survivors = refine_all(rung, survivors, batch, inside)
            found[i] = survivors
        return found

    def _energies(
        self, batch: Batch, selections: Mapping[int, Selections], context: Context
    ) -> Tensor:
        """Of each tensor, see the module's docstring: f64[tensors, 3], or f64[tensors, 6] with norms."""
        of_rung: dict[int, Tensor] = {}
        for index in set(context.plan.candidates):
            rung: Any = self.rungs[index]
            if index in selections:
                of_rung[index] = selections[index].energies()
            else:
                of_rung[index] = rung.energies(batch, context.within(f"rung{index}"))
        columns = [kernels.energies(batch), *(of_rung[index] for index in context.plan.candidates)]
        if context.raw_energy is not None:
            columns += [context.raw_energy.sqrt(), *(e.clamp(min=0).sqrt() for e in columns[1:])]
        return torch.stack(columns, 1)
