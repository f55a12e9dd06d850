"""`attach`: a compressor for a training loop of the user's own, with DistributedDataParallel
(docs/own-loop.md) or `fully_shard` (docs/fsdp.md)."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.nesting import without_feedback
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.ahead import compile_ahead
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ddp import (
    AfterBackward,
    Hook,
    Parameters,
    PerBucket,
    end_group,
    exchange_group,
    fit_together,
    hook_of,
    junction_of,
    parameters_of,
    refuse_capture,
    sparse_gradient,
)
from dgc_repro.exchange.fsdp import PerUnit, ShardedModel, UnitHooks, fit_units, is_sharded
from dgc_repro.exchange.gradients import GradientExchange, map_tensors
from dgc_repro.exchange.guard import Guard, untraced
from dgc_repro.exchange.ledger import GRADIENT, Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.rendezvous import (
    SAME_BATCHES,
    Rendezvous,
    agree,
    compare,
    described,
    patience,
    steps_apart,
)
from dgc_repro.exchange.reshard import (
    RankStates,
    keyed,
    mean_of,
    refuse_reshard,
    states_of,
)
from dgc_repro.exchange.signals import refuse_first, refuse_non_finite
from dgc_repro.exchange.step import ON_NONFINITE, PolicyInputs, PolicyProgress, Stepper
from dgc_repro.exchange.wire import CollectiveFailed, Link
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import SPREAD, EpochReport, Policy, measures

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.complex64, torch.complex128),
)
OF_THE_COMMAND_LINE = re.compile(r"\b(exchange|compressor|policy|train)\.(?=[a-z_]+(=|:| ))")
"""In messages: where the keys of the command line begin that are arguments here."""
TIMES = ("time/compress_ms", "time/communicate_ms", "time/decompress_ms")
"""What of the clock's report is measured in a user's loop: backward is not."""
SKIP = "skip"
"""A rank's answer where it leaves the step out on purpose."""


class Attached:
    """A compressor at work in a loop of the user's own. Call `step` between backward and the
    optimizer; `state_dict` belongs in the loop's checkpoint, one per rank.

    Where a `step` was forgotten, ``optimizer.step`` or the next forward raises UserError; so does a second
    `step` after one backward. The rule is in exchange/guard.py."""

    _fix = (  # of a gradient that is not finite
        'lower the learning rate, clip, attach with on_nonfinite="skip" to leave such steps out, or with '
        "scaler=scaler if the loss was scaled"
    )
    _is_called = True  # the loop calls `step`

    def __init__(
        self,
        exchange: GradientExchange,
        junction: AfterBackward | PerBucket | PerUnit,
        policy: Policy,
        parameters: Parameters,
        model: nn.Module | None = None,
        hook: Hook | UnitHooks | None = None,
        everybody: Link | None = None,
        on_nonfinite: str = "raise",
        guard: type[Guard] = Guard,
        scaler: GradScaler | None = None,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """``everybody``: the link between all ranks, where the exchange's is between some (FSDP: between
        nodes). ``rendezvous``: the place in the store where all ranks
        have met in `attach`."""
        self.ledger = exchange.link.ledger
        self._exchange = exchange
        self._junction = junction
        self._policy = policy
        self._steps = Stepper(
            link=everybody or exchange.link,
            exchange=exchange,
            junction=junction,
            policy=policy,
            parameters=parameters,
            progress=PolicyProgress(policy.init()),
            samples_by_rank=True,
            sharded=everybody is not None,
            on_nonfinite=on_nonfinite,
        )
        self._model = None if model is None else weakref.ref(model)
        self._frozen: Parameters = {}
        if isinstance(model, DistributedDataParallel):
            self._frozen = parameters_of(model, learning=False)
        self._late: Parameters = {}  # those with a gradient that are not in `_present`, of the last step
        # All that the model has now. They are kept, so that no other object gets one of these addresses.
        named = () if model is None else unwrapped(model).named_parameters()
        self._present = {id(parameter): (name, parameter) for name, parameter in named}
        self._hook = hook
        self._ended = math.nan  # when the last step ended
        self._rung: int | None = None  # of the last step
        self._detached = False
        self._scaler = scaler
        self._rendezvous = rendezvous
        # Calls of `compare_batches`, and failures of collectives, so far.
        self._compared = self._failed = 0
        self._guard = guard(model, self._steps)
        self._steps.begin(exchange.step)
        compile_ahead(
            exchange.compressor,
            exchange.parameters,
            exchange.link.wire.device,
            policy,
            unit=exchange.unit,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model to which this is attached, or one from a file, is a plain DDP model."""
        return Hook, ()

    @property
    def learning_rate(self) -> float:
        """Of the coming step: set it before its backward. Read by `BlockMomentum` alone."""
        return self._exchange.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._exchange.learning_rate = value

    @untraced
    @torch.no_grad()
    def step(
        self,
        *,
        scaler: GradScaler | None = None,
        samples: float = math.nan,
        skip: bool = False,
    ) -> bool:
        """Exchange the gradients: ``param.grad`` becomes the mean over workers, on all ranks alike. Returns
        whether there are gradients to apply: False on all ranks where the step is left out.

        ``scaler``: of a loss that was scaled (default: that of `attach`). The exchange sees the gradients
        unscaled and leaves them scaled, as backward did. Where they overflow on any rank, all ranks get
        infinite gradients: then ``scaler.step`` skips the optimizer and ``scaler.update`` lowers the scale
        everywhere.
        ``samples``: in this rank's batch, for a policy that weighs them. ``skip``: leave this step out on all
        ranks, if any rank says so.

        Without a scaler: where a gradient of any rank is not finite, raises UserError on all ranks, or with
        ``on_nonfinite="skip"`` leaves the step out. No residual changes in a step that is left out, and all
        gradients are None (with a scaler: infinite). Raises UserError on all ranks where any rank leaves
        needed ``samples`` out, has unfrozen a layer since `attach`, or, without overlap, calls this twice
        after one backward. With overlap and FSDP the rank that calls it twice raises alone.
        """
        scaler = scaler or self._scaler
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        exchange, steps, junction = self._exchange, self._steps, self._junction
        with as_arguments(explain=self.explained):
            refuse_capture()
            self._refuse(scaler)
            problem = self._own_problem(samples)
            scale = 1.0 if scaler is None else scaler.get_scale()
            if isinstance(junction, PerBucket):
                scale = junction.scale  # the gradients are unscaled already
            elif scale != 1:
                self._multiply(1 / scale)
            self._guard.forward_seen = True  # however these gradients have come
            bad = steps.open(0)
            happened, _ = steps.settle([], finite=not (problem or skip) and bad is None)
        if happened and scale != 1:
            self._multiply(scale)
        self._guard.after_step(scaler)
        clock = exchange.link.clock
        if steps.times_steps:
            clock.drain()
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        clock.end_step(0.0)
        if steps.times_steps and steps.excludes_compression:
            seconds -= clock.last["compress"]
        steps.end(samples, seconds if happened else None)
        planned = steps.plan.rung
        self._rung = steps.progress.watched.chosen if planned is None else planned
        steps.begin(exchange.step)
        if happened:
            if exchange.absent and len(exchange.absent) == len(exchange.names):
                raise UserError(
                    "exchange.step: no parameter has a gradient on any rank; call it after backward, and "
                    "optimizer.zero_grad() before backward"
                )
            return True
        said = steps.link.tell_all(problem or (SKIP if skip else ""))
        problems = ["" if text == SKIP else text for text in said]
        if scaler is None or any(problems):
            every = (*steps.parameters.values(), *self._frozen.values(), *self._late.values())
            for parameter in every:
                parameter.grad = None  # each rank's own: who catches the error must not apply it
        refuse_first(problems)
        if scaler is not None:
            if isinstance(junction, PerBucket):
                junction.finish(exchange.absent)  # frozen layers are as before backward
            for name, parameter in steps.parameters.items():
                if name not in exchange.absent:
                    parameter.grad = torch.full_like(parameter, math.inf)
        elif SKIP not in said and steps.on_nonfinite == "raise":
            refuse_non_finite(
                steps.link, exchange.named([bad]), exchange.step, "gradient", self._fix
            )
        return False

    def metrics(self) -> dict[str, float]:
        """Return numbers for a log, under the names and with the meanings that a run's record has.

        ``comm/payload_bytes``, ``comm/wire_bytes``: of this worker's gradients, summed since the start,
        checkpoints included. ``policy/rung``: of the last step since `attach`. ``time/compress_ms``,
        ``time/communicate_ms``, ``time/decompress_ms``: mean milliseconds a step since the last call, without
        the first three steps of the process; left out where that leaves no step.

        It is no collective and does not wait for a GPU: there the means leave the last step to the next
        call."""
        found: dict[str, float] = {
            "comm/payload_bytes": self.ledger.payload_bytes,
            "comm/wire_bytes": self.ledger.wire_bytes.get(GRADIENT, 0.0),
        }
        if self._rung is not None:
            found["policy/rung"] = self._rung
        times = self._exchange.link.clock.report(waits=False)
        return found | {name: times[name] for name in TIMES if name in times}

    def end_epoch(self, report: EpochReport) -> None:
        """Tell the policy how the epoch went, on all ranks together; the numbers must be the same on all
        ranks. Where the policy watches ``gradient_norms`` and the report has none, they are filled in."""
        if getattr(self._policy, "decay", None) is not None and any(
            map(math.isnan, report.learning_rate)
        ):
            raise UserError(
                f"learning_rate: {type(self._policy).__name__} looks at its decay; give "
                "EpochReport(learning_rate=(of this epoch's last step, of the next epoch's last step))"
            )
        if not report.gradient_norms:
            report = replace(report, gradient_norms=self._steps.gradient_norms())
        progress = self._steps.progress
        progress.watched.sums = {}
        progress.policy = self._policy.observe(progress.policy, report)
        self._ended = math.nan  # an evaluation is no part of a step
        self._steps.begin(self._exchange.step)

    def compare_batches(self, number: int | None) -> None:
        """Raise UserError on all ranks where they have different numbers of batches: a rank that runs out of
        them takes no part in `step`, for which the others wait. Call it on all ranks. ``number``: of this
        rank's batches; None where it is unknown, as of an `IterableDataset`."""
        if self._rendezvous is not None:
            facts, self._compared = {"batches": number}, self._compared + 1
            compare(self._rendezvous, f"batches/{self._compared}", facts, fix=SAME_BATCHES)

    def explained(self, error: BaseException) -> CollectiveFailed:
        """Return an error that says which ranks have taken other steps than this one, whose collective has
        failed with ``error``; or that error where all ranks are in one step."""
        if self._rendezvous is not None:
            self._failed += 1
            step = self._exchange.step + self._guard.forward_seen
            if apart := steps_apart(self._rendezvous, self._failed, step):
                return CollectiveFailed("exchange.step", RuntimeError(apart))
        known = (
            error if isinstance(error, CollectiveFailed) else CollectiveFailed("training", error)
        )
        # gloo ends the process to which more comes than it has asked for, and its peers lose the connection.
        if not self._exchange.link.check:
            known.add_note(
                "If a rank says that a size does not match, ranks have sent different things: with "
                "check=True they compare them first, and the error names rank and tensor."
            )
        return known

    def detach(self) -> None:
        """Let go of the model, on all ranks together: it is a plain DDP model again, and may be attached
        anew. Gradients that no `step` has exchanged are dropped."""
        if self._detached:
            return
        self._detached = True
        self._guard.remove()
        if self._hook is not None:
            self._hook.junction = None
        self._junction.close()
        if self._junction.pending:
            self._exchange.discard()
            for parameter in self._steps.parameters.values():
                parameter.grad = None
        if isinstance(self._junction, PerBucket):
            end_group(self._exchange.link.wire)

    close = detach

    def by_rank(self, *, reshard: str = "refuse") -> RankStates:
        """This exchange for torch.distributed.checkpoint: its ``state_dict()`` is a copy whose key carries
        the rank. ``reshard``: see `load_state_dict`."""
        return RankStates(self, gather=False, reshard=reshard)

    def gathered(self, *, reshard: str = "refuse") -> RankStates:
        """This exchange for a file that one rank writes and all ranks load: its ``state_dict()`` has the
        states of all ranks, and is a collective on all of them. ``reshard``: see `load_state_dict`."""
        return RankStates(self, gather=True, reshard=reshard)

    def states(self, *, gather: bool) -> dict[str, Any]:
        """See `by_rank` and `gathered`."""
        link, copied = self._steps.link, map_tensors(self.state_dict(), _on_cpu)
        if not gather:
            return keyed({link.wire.rank: copied})
        file = io.BytesIO()
        torch.save(copied, file)
        every = link.tell_bytes(file.getvalue(), purpose=None)
        return keyed(
            {rank: torch.load(io.BytesIO(one), weights_only=True) for rank, one in enumerate(every)}
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and other compressor state, the policy's state, the ledger."""
        progress, wire = self._steps.progress, self._steps.link.wire
        last = progress.watched
        return {
            "world_size": wire.world_size,
            "rank": wire.rank,
            "exchange": self._exchange.state_dict(),
            "policy": progress.policy,
            "ledger": self.ledger.state_dict(),
            "timed": [last.step, last.seconds, last.samples],
            "sums": last.sums,
        }

    def load_state_dict(self, state: dict[str, Any], *, reshard: str = "refuse") -> None:
        """Continue from a saved state of any form: `state_dict`, `by_rank` or `gathered`. Raises ValueError
        when it is another world size's or rank's.

        ``reshard="mean"``: from the states of all ranks of another world size, of whose residuals each rank
        gets the mean."""
        with as_arguments():
            state = self._own_state(states_of(state), reshard)
            if missing := self._policy.init().keys() - state["policy"].keys():
                raise UserError(
                    f"state: its policy has no {min(missing)}, and {type(self._policy).__name__} keeps it; "
                    "attach with the policy with which the state was saved"
                )
        progress = self._steps.progress
        self._exchange.load_state_dict(state["exchange"])
        progress.policy = state["policy"]
        self.ledger.load_state_dict(state["ledger"])
        # States of version 0.1.0 lack the last two.
        last = state["exchange"]["step"] - 1
        step, seconds, samples = state.get("timed", [last, math.nan, math.nan])
        sums = {name: total.clone() for name, total in state.get("sums", {}).items()}
        progress.watched = PolicyInputs(step, seconds, samples, sums=sums)
        self._ended = math.nan
        self._steps.begin(self._exchange.step)

    def _own_state(self, states: dict[int, dict[str, Any]], reshard: str) -> dict[str, Any]:
        """This rank's, of what was saved of some ranks."""
        wire = self._steps.link.wire
        if not states:
            raise UserError("state: it is empty")
        saved: int = next(iter(states.values()))["world_size"]
        if saved == wire.world_size:
            if wire.rank not in states:
                raise ValueError(
                    f"rank: the state was saved by rank {min(states)}, this is rank {wire.rank}; each rank "
                    "saves and loads its own"
                )
            return states[wire.rank]
        if len(states) < saved:
            raise ValueError(
                f"world_size: the state was saved by {saved} workers, this world has {wire.world_size}; "
                "residuals are kept per worker: load those of all ranks, with reshard=mean"
            )
        if self._steps.sharded:
            raise UserError(
                f"reshard: the state was saved by {saved} ranks, each of which has its shard's residuals; "
                "continue with the same mesh"
            )
        refuse_reshard("the state", self._exchange.states, saved, wire.world_size, reshard)
        mean = mean_of([states[rank]["exchange"] for rank in range(saved)])
        return {**states[0], "exchange": mean}

    def _refuse(self, scaler: GradScaler | None) -> None:
        """Raise UserError where this step would go wrong, on all ranks alike; nothing has changed yet."""
        model = None if self._model is None else self._model()
        joins = getattr(getattr(model, "_join_config", None), "enable", False)
        junction = None if scaler is None else type(self._junction)
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        unscaled = self._is_called and any(state["stage"] is OptState.UNSCALED for state in states)
        refuse_first_of(
            {
                "exchange: it was detached from its model; attach a compressor again": self._detached,
                "model.join: a rank that has run out of batches takes no part in exchange.step(); "
                f"{SAME_BATCHES} (DDP stays so after a join: wrap the module again)": joins,
                "scaler: FSDP has exchanged the scaled gradients during backward; use bfloat16, without "
                "one": junction is PerUnit,
                "scaler: exchange.overlap=true has sent the scaled gradients during backward; give it to "
                "attach(scaler=scaler)": junction is PerBucket and scaler is not self._scaler,
                "scaler: the gradients are unscaled already; call scaler.unscale_(optimizer) after "
                "exchange.step(scaler=scaler)": unscaled,
            }
        )

    def _own_problem(self, samples: float) -> str:
        """Why this step would go wrong on this rank, perhaps on no other; empty where it would not."""
        if repeats := self._guard.repeats():
            return repeats
        thawed = next((name for name, p in self._frozen.items() if p.requires_grad), None)
        if thawed is not None:
            return (
                f"model: {thawed} was frozen when the compressor was attached and learns now; detach, wrap "
                "the module in DDP again, and attach"
            )
        late: set[int] = set()
        waiting: list[nn.Module | None] = [None if self._model is None else self._model()]
        while waiting:  # as model.parameters(), which takes four times as long, in each step
            if (module := waiting.pop()) is None:
                continue
            for parameter in module._parameters.values():
                if parameter is not None and id(parameter) not in self._present:
                    late |= {id(parameter)} if parameter.grad is not None else set()
            waiting += module._modules.values()
        self._late = self._named(late) if late else {}
        if self._late:
            is_unit = isinstance(self._junction, PerUnit)
            again = "shard it with fully_shard" if is_unit else "wrap the module in DDP again"
            alone = "name it in the module's _ddp_params_and_buffers_to_ignore if ranks train it alone, or "
            return (
                f"model: {min(self._late)} was added after the compressor was attached and has a "
                f"gradient, which no exchange averages; {alone}detach, {again}, and attach"
            )
        weighs = getattr(self._policy, "weighs_time", True)
        if weighs and not samples > 0 and measures(self._policy):
            return (
                f"samples: {type(self._policy).__name__} weighs the samples of each step; call "
                "exchange.step(samples=...) with the number in this rank's batch"
            )
        return ""

    def _named(self, late: set[int]) -> Parameters:
        """Return, by name, the parameters with these addresses that the model did not have when the
        compressor was attached and that DDP is not told to ignore. (While FSDP has gathered a unit, it has
        other objects of the same names.)"""
        model: Any = None if self._model is None else self._model()
        is_unit = isinstance(self._junction, PerUnit)
        names = {name for name, _ in self._present.values()} if is_unit else set[str]()
        named = unwrapped(model).named_parameters()
        ignored = getattr(unwrapped(model), "_ddp_params_and_buffers_to_ignore", ())
        names |= {*ignored, *getattr(model, "parameters_to_ignore", ())}
        return {name: p for name, p in named if id(p) in late and name not in names}

    def _multiply(self, factor: float) -> None:
        """Multiply all gradients, but where exchanges overlap backward only those that were exchanged."""
        left = self._exchange.absent if self._junction.overlaps else ()
        if found := [g for name, g in self._steps.gradients().items() if name not in left]:
            torch._foreach_mul_(found, factor)


def attach(
    model: DistributedDataParallel | FSDPModule,
    compressor: Compressor,
    policy: Policy | None = None,
    *,
    mesh: DeviceMesh | None = None,
    dim: str | None = None,
    seed: int = 0,
    unit: str = "layer",
    overlap: bool = False,
    on_nonfinite: str = "raise",
    check: bool = False,
    timeout_seconds: float | None = None,
    scaler: GradScaler | None = None,
) -> Attached:
    """Give any DDP training loop a compressor (docs/own-loop.md), or one with `fully_shard` (docs/fsdp.md).

    ``mesh``, ``dim``: of an FSDP model that is sharded over one dimension. A mesh of two, of which the model
    has the inner one; gradients are exchanged, compressed, on the outer one, named ``dim``. A model that has
    both (HSDP) needs neither.
    ``compressor``: any compressor, wrappers included; ``policy``: plans rungs of a `Ladder` (default
    `Fixed`). ``seed`` must be the same on all ranks. ``on_nonfinite``: what `Attached.step` does where
    a gradient of any rank is not finite: ``"raise"``, or ``"skip"`` the step. ``check`` compares what ranks
    are about to ask before each collective. ``scaler``: of a loss that is scaled (not with FSDP). Residuals
    are in unscaled units. ``timeout_seconds``: how long this waits for the other ranks to call it, and the
    timeout of the process group that ``overlap`` makes (default: that of the model's process group, at least
    600).

    Raises UserError (a ValueError) on all ranks where, on any rank, the parts do not fit together or the
    model has gradients that cannot be exchanged, where the arguments differ between ranks, and where a rank
    does not call this in time.
    """
    policy = policy or Fixed()
    options = {
        "call": "attach",
        "seed": seed,
        "compressor": compressor,
        "policy": policy,
        "unit": unit,
        "overlap": overlap,
        "on_nonfinite": on_nonfinite,
        "check": check,
        "scaler": scaler is not None,
    }
    model = uncompiled(model)

    def fit() -> _Whole | _Sharded:
        refuse_no_object(compressor)
        sharded = mesh is not None or dim is not None or is_sharded(model)
        (fit_units if sharded else fit_together)(compressor, policy, unit, overlap)
        fit_loop(policy, on_nonfinite, scaler, sharded=sharded)
        if sharded:
            return _Sharded(ShardedModel(model, mesh, dim), compressor, seed, check)
        return _Whole(*suitable(model), overlap)

    with as_arguments():
        found, problem = attempted(fit)
        facts = options if found is None else {**options, "model": described(found.parameters)}
        ranks = known_ranks(model, mesh) if found is None else found.ranks
        seconds = patience(timeout_seconds, getattr(model, "process_group", dist.group.WORLD))
        here = agree(ranks, problem, facts, seconds)
        note_lost(compressor)
        assert found is not None
        if isinstance(found, _Sharded):
            return found.attached(policy, on_nonfinite, here)
        ddp, parameters, hook = found.model, found.parameters, found.hook
        exchange = exchange_of(ddp, parameters, compressor, seed, unit, overlap, check, seconds)
        hook.junction = junction = junction_of(ddp, exchange, overlap, scaler)
    return Attached(
        exchange,
        junction,
        policy,
        parameters,
        ddp,
        hook,
        on_nonfinite=on_nonfinite,
        scaler=scaler,
        rendezvous=here,
    )


def attempted(fit: Callable[[], T]) -> tuple[T | None, str]:
    """Return what an action returns and an empty text, or None and what the UserError says that it raises:
    all ranks have to hear of it. Without a process group it is raised."""
    try:
        return fit(), ""
    except UserError as error:
        if not dist.is_initialized():
            raise
        return None, str(error)


def ranks_of(model: DistributedDataParallel) -> list[int]:
    """Return the ranks that train this model."""
    return sorted(dist.get_process_group_ranks(model.process_group))


def known_ranks(model: object, mesh: object) -> list[int] | None:
    """Return the ranks that train this model, to which no compressor can be attached; None where nothing
    says which ranks those are."""
    if isinstance(model, DistributedDataParallel):
        return ranks_of(model)
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    whole = mesh or getattr(next(parameters, None), "device_mesh", None)
    if getattr(whole, "ndim", 0) != 2:  # a mesh of one dimension may be a part of the whole
        return None
    ranks: list[int] = sorted(whole.mesh.flatten().tolist())  # type: ignore[union-attr]
    return ranks if dist.get_rank() in ranks else None


class _Whole:
    """A DDP model that suits, its parameters that learn, and its hook. Raises UserError."""

    def __init__(
        self, model: DistributedDataParallel, parameters: dict[str, nn.Parameter], overlap: bool
    ) -> None:
        self.model, self.parameters = model, parameters
        self.hook = hook_of(model, overlap)
        self.ranks = ranks_of(model)


class _Sharded:
    """A model of `fully_shard` that suits, and its exchange. Raises UserError; parts of tensors, and what is
    wrong with them, differ from rank to rank."""

    def __init__(
        self, sharded: ShardedModel, compressor: Compressor, seed: int, check: bool
    ) -> None:
        self._sharded, self._check = sharded, check
        self.parameters = sharded.parameters
        self.ranks = sorted(sharded.mesh.mesh.flatten().tolist())
        self._hooks = sharded.hooks()
        nodes = self._link(sharded.group, Ledger(), Clock(sharded.device))
        # Each part of a tensor has random numbers of its own.
        seed = seed * sharded.shards + sharded.shard
        self._exchange = GradientExchange(compressor, sharded.parts, nodes, seed=seed)

    def attached(self, policy: Policy, on_nonfinite: str, here: Rendezvous) -> Attached:
        """Attach the compressor, on all ranks of the mesh together."""
        sharded, exchange = self._sharded, self._exchange
        everybody = self._link(sharded.everybody(), exchange.link.ledger, exchange.link.clock)
        hooks = self._hooks or UnitHooks(sharded.units, sharded.group)
        hooks.junction = PerUnit(exchange, sharded.units, hooks.kept)
        return Attached(
            exchange,
            hooks.junction,
            policy,
            sharded.parameters,
            sharded.model,
            hooks,
            everybody,
            on_nonfinite,
            rendezvous=here,
        )

    def _link(self, group: dist.ProcessGroup | None, ledger: Ledger, clock: Clock) -> Link:
        wire = ProcessGroupWire(self._sharded.device, group)
        return Link(wire, ledger, clock, check=self._check)


def between_ranks(model: DistributedDataParallel) -> Link:
    """A link between the ranks of a DDP model's process group, before an exchange is made."""
    return Link(ProcessGroupWire(model.device, model.process_group), Ledger(), Clock(model.device))


def unwrapped(model: nn.Module) -> nn.Module:
    """The module in a DDP model; any other model as it is."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def uncompiled(model: Any) -> Any:
    """The model that `torch.compile` was given, of what it returned; any other model as it is."""
    return getattr(model, "_orig_mod", model)


def refuse_no_object(compressor: object) -> None:
    """Raise UserError where a class or a name is given in place of a compressor."""
    example = "give an object, such as ErrorFeedback(TopK(density=0.01))"
    if isinstance(compressor, type):
        raise UserError(f"compressor: {compressor.__name__} is a class; {example}")
    if isinstance(compressor, str):
        raise UserError(f"compressor: {compressor} is a name; {example}")


def note_lost(compressor: Compressor) -> None:
    """Warn, once in a process, where nothing keeps what a method loses."""
    if (method := without_feedback(compressor)) is not None:
        _warn_lost(type(method).__name__)


@functools.cache
def _warn_lost(name: str) -> None:
    warnings.warn(
        f"compressor: {name} has no error feedback, and what it does not send is lost; use "
        f"ErrorFeedback({name}(...))",
        stacklevel=4,
    )


def fit_loop(
    policy: Policy, on_nonfinite: str, scaler: GradScaler | None, *, sharded: bool = False
) -> None:
    """Raise UserError where a loop of the user's own cannot do with these."""
    name = type(policy).__name__
    refuse_first_of(
        {
            f"on_nonfinite: one of {', '.join(ON_NONFINITE)}, got {on_nonfinite!r}": on_nonfinite
            not in ON_NONFINITE,
            f"policy: {name} asks for the squares of every step's gradients, which an attached loop does not "
            "have; train with python -m dgc_repro, or take another policy": policy.watches
            == SPREAD,
            "scaler: a torch.amp.GradScaler or None, got " + type(scaler).__name__: not isinstance(
                scaler, GradScaler | None
            ),
            "scaler: FSDP exchanges scaled gradients during backward; use bfloat16, without one": sharded
            and scaler is not None,
        }
    )


def exchange_of(
    model: DistributedDataParallel,
    parameters: dict[str, nn.Parameter],
    compressor: Compressor,
    seed: int,
    unit: str,
    overlap: bool,
    check: bool,
    timeout_seconds: float,
) -> GradientExchange:
    """The exchange of a DDP model between the ranks of its process group."""
    device = next(iter(parameters.values())).device
    group = model.process_group
    if overlap:
        group = exchange_group(timeout_seconds, group, device)
    link = Link(ProcessGroupWire(device, group), Ledger(), Clock(device), check=check)
    return GradientExchange(compressor, parameters, link, seed=seed, unit=unit)


def suitable(model: object) -> tuple[DistributedDataParallel, dict[str, nn.Parameter]]:
    """The model, and the parameters that learn, by name. Raises UserError where they cannot be exchanged."""
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"model: attach takes a DistributedDataParallel model, or one that fully_shard has sharded, got "
            f"{type(model).__name__}; wrap it first"
        )
    if getattr(model, "_use_python_reducer", False):
        raise UserError(
            "model: DistributedDataParallel was called under torch._dynamo.config.optimize_ddp = "
            '"python_reducer", which hands over no buckets; set it to True, torch\'s default, and wrap the '
            "module again"
        )
    for path, module in model.module.named_modules():
        is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise UserError(sparse_gradient(f"{path}.weight".lstrip(".")))
    parameters = parameters_of(model)
    if not parameters:
        raise UserError("model: all its parameters are frozen; attach when some are to learn")
    first = next(iter(parameters.values()))
    known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    for name, parameter in parameters.items():
        strides = zip(parameter.shape, parameter.stride(), strict=True)
        reach = 1 + sum((n - 1) * stride for n, stride in strides)
        refuse_first_of(
            {
                f"model: {name} is {parameter.dtype}, an exchange takes {known}": parameter.dtype
                not in DTYPES,
                f"model: {name} is on {parameter.device}, others on {first.device}; use one "
                "device": parameter.device != first.device,
                f"model: {name} is a view with gaps; use a contiguous tensor": 0
                < parameter.numel()
                != reach,
            }
        )
    return model, parameters


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)


@contextlib.contextmanager
def as_arguments(
    *, hook: bool = False, explain: Callable[[CollectiveFailed], CollectiveFailed] | None = None
) -> Iterator[None]:
    """Have a UserError name arguments of `attach` (``hook``: of `HookState`), not the command line's.
    ``explain``: what to raise in place of a collective's error, where that knows less."""
    try:
        yield
    except CollectiveFailed as error:
        if explain is None or (found := explain(error)) is error:
            raise
        raise found from error
    except UserError as error:
        text = str(error)
        if hook:
            text = text.replace("use exchange.overlap=false", "use attach(model, compressor)")
            text = text.replace("exchange.overlap=true", "comm_hook")
        text = OF_THE_COMMAND_LINE.sub("", text)
        raise UserError(re.sub("^wrap: ", "compressor: ", text)) from None
