"""A compressor at work in a training loop: what `attach` returns (door.py).

When ``backward()`` returns, each ``param.grad`` is the mean over all workers, and all states are current.
"""

from __future__ import annotations

import io
import math
import time
import weakref
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange import saved as saved_states
from dgc_repro.exchange.ahead import compile_ahead
from dgc_repro.exchange.collective import CollectiveFailed
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.fit import as_arguments, parameters_of, unwrapped
from dgc_repro.exchange.fsdp import PerUnit, UnitHooks
from dgc_repro.exchange.guard import NotCopied, Optimizers, Repeated, untraced
from dgc_repro.exchange.hook import Hook, refuse_capture
from dgc_repro.exchange.junction import AfterBackward, Parameters, PerBucket
from dgc_repro.exchange.ledger import GRADIENT, Ledger
from dgc_repro.exchange.rendezvous import (
    SAME_BATCHES,
    Rendezvous,
    compare,
    refuse_first,
    steps_apart,
)
from dgc_repro.exchange.saved import RankStates, keyed, mean_of, refuse_reshard, states_of
from dgc_repro.exchange.steps import PolicyInputs, PolicyProgress, Steps, refuse_non_finite
from dgc_repro.exchange.world import World
from dgc_repro.nests import map_tensors
from dgc_repro.policy.interface import EpochReport, Policy, measures

TIMES = ("time/compress_ms", "time/communicate_ms", "time/decompress_ms")
"""What of the clock's report is measured in a user's loop: backward is not."""
FIX = (
    'lower the learning rate, clip, attach with on_nonfinite="skip" to leave such steps out, or with '
    "scaler=scaler if the loss was scaled"
)


class Attached:
    """A compressor at work in a loop of the user's own. `state_dict` belongs in the loop's checkpoint, one
    per rank.

    ``applied``: whether the last backward has left gradients to apply. With ``on_nonfinite="skip"`` it is
    False on all ranks after a gradient that is not finite on any. All gradients are None then, so that
    ``optimizer.step()`` changes nothing. With a ``scaler`` they are infinite, and ``scaler.step`` skips.
    ``samples``: in this rank's next batch, for a policy that weighs steps by them."""

    def __init__(
        self,
        exchange: Exchange,
        junction: AfterBackward | PerBucket | PerUnit,
        policy: Policy,
        parameters: Parameters,
        model: nn.Module,
        hook: Hook | UnitHooks,
        compressor: Compressor,
        *,
        everybody: World | None = None,
        on_nonfinite: str = "raise",
        scaler: GradScaler | None = None,
        rendezvous: Rendezvous,
        unit: str = "layer",
    ) -> None:
        """``everybody``: all ranks, where the exchange is between some (FSDP: between nodes).
        ``rendezvous``: the place in the store where all ranks have met in `attach`."""
        self.ledger = exchange.world.ledger
        self.applied, self.samples = True, math.nan
        self._exchange, self._junction, self._policy = exchange, junction, policy
        self._steps = Steps(
            world=everybody or exchange.world,
            exchange=exchange,
            junction=junction,
            policy=policy,
            parameters=parameters,
            progress=PolicyProgress(policy.init()),
            samples_by_rank=True,
            sharded=everybody is not None,
            on_nonfinite=on_nonfinite,
        )
        self._model = weakref.ref(model)
        is_whole = isinstance(model, DistributedDataParallel)
        self._frozen = parameters_of(model, learning=False) if is_whole else {}  # type: ignore[arg-type]
        self._late: Parameters = {}  # those with a gradient that are not in `_present`, of the last step
        # All that the model has now. They are kept, so that no other object gets one of these addresses.
        named = unwrapped(model).named_parameters()
        self._present = {id(parameter): (name, parameter) for name, parameter in named}
        self._hook, self._scaler, self._rendezvous = hook, scaler, rendezvous
        self._ended = math.nan  # when the last step ended
        self._rung: int | None = None  # of the last step
        self._detached = self._forward_seen = False
        # Calls of `compare_batches`, and failures of collectives, so far.
        self._compared = self._failed = 0
        self._repeated = Repeated(parameters) if is_whole else None
        self._optimizers = Optimizers(parameters, compressor, scaler, self._repeated)
        if isinstance(junction, PerBucket) and self._repeated is not None:
            junction.problem_before = self._repeated.problem
        self._handles = [self._watch(model)]
        found = weakref.ref(self)

        def finish() -> None:
            if (here := found()) is not None:
                here._finish()

        hook.finish = finish
        hook.owner = self
        self._steps.begin(exchange.step)
        compile_ahead(compressor, exchange.parameters, exchange.world.device, policy, unit=unit)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model to which this is attached, or one from a file, is a plain DDP model."""
        return Hook, ()

    @property
    def learning_rate(self) -> float:
        """Of the coming step: set it before its backward. Read by `BlockMomentum` alone."""
        return self._exchange.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise UserError(f"learning_rate: a number from 0, got {value!r}")
        self._exchange.learning_rate = value

    def step(self, **unused: Any) -> NoReturn:
        """Raises UserError: backward itself exchanges the gradients."""
        raise UserError(
            "exchange.step: backward() has exchanged the gradients; delete this call (exchange.applied says "
            "whether there are gradients to apply, exchange.samples takes a batch's samples)"
        )

    @untraced
    @torch.no_grad()
    def _finish(self) -> None:
        """A backward is over that DDP or FSDP has reduced: exchange its gradients."""
        self.applied = False
        exchange, steps, junction, scaler = (
            self._exchange,
            self._steps,
            self._junction,
            self._scaler if self._scaler is not None and self._scaler.is_enabled() else None,
        )
        with as_arguments(explain=self.explained):
            try:
                refuse_capture()
                self._refuse_join()
                problem = junction.problem if isinstance(junction, PerBucket) else ""
                problem = problem or self._repeated_problem() or self._own_problem()
                scale = 1.0 if scaler is None else scaler.get_scale()
                if isinstance(junction, PerBucket):
                    scale = junction.scale  # the gradients are unscaled already
                elif scale != 1:
                    self._multiply(1 / scale)
                bad = steps.open(0)
                happened, _ = steps.settle([], finite=not problem and bad is None)
            except BaseException:
                exchange.undo()
                self._drop()
                raise
        self._forward_seen = False
        if happened and scale != 1:
            self._multiply(scale)
        self._end_step(happened)
        if happened:
            if self._repeated is not None:
                self._repeated.exchanged()
            self.applied = True
            return
        problems = steps.world.tell(problem)
        if scaler is None or any(problems):
            self._drop()
        if self._repeated is not None:
            self._repeated.exchanged()
        refuse_first(problems)
        if scaler is not None:
            for name, parameter in steps.parameters.items():
                if name not in junction.absent:
                    parameter.grad = torch.full_like(parameter, math.inf)
            if self._repeated is not None:
                self._repeated.exchanged()
        elif steps.on_nonfinite == "raise":
            refuse_non_finite(steps.world, junction.named(), exchange.step, "gradient", FIX)

    def _repeated_problem(self) -> str:
        return "" if self._repeated is None else self._repeated.problem()

    def _drop(self) -> None:
        """Leave no gradient: each rank has its own, and who catches the error must not apply them."""
        every = (*self._steps.parameters.values(), *self._frozen.values(), *self._late.values())
        for parameter in every:
            parameter.grad = None

    def _end_step(self, happened: bool) -> None:
        """Note the time of a step and plan the next one."""
        steps, clock = self._steps, self._exchange.world.clock
        if steps.times_steps:
            clock.drain()
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        clock.end_step(0.0)
        if steps.times_steps and steps.excludes_compression:
            seconds -= clock.last["compress"]
        steps.end(self.samples, seconds if happened else None)
        planned = steps.plan.rung
        self._rung = steps.progress.watched.chosen if planned is None else planned
        steps.begin(self._exchange.step)

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
        times = self._exchange.world.clock.report(waits=False)
        return found | {name: times[name] for name in TIMES if name in times}

    def end_epoch(self, report: EpochReport) -> None:
        """Tell the policy how the epoch went, on all ranks together; the numbers must be the same on all
        ranks. Where the policy watches ``gradient_norms`` and the report has none, they are filled in."""
        if not isinstance(report, EpochReport):
            raise UserError(
                f"report: an EpochReport, got {type(report).__name__}; give EpochReport(epoch=..., "
                "train_loss=..., validation_loss=..., validation_accuracy_percent=...)"
            )
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
        them takes no part in a step, for which the others wait. Call it on all ranks. ``number``: of this
        rank's batches; None where it is unknown, as of an `IterableDataset`."""
        facts, self._compared = {"batches": number}, self._compared + 1
        is_number = number is None or (isinstance(number, int) and not isinstance(number, bool))
        kind = type(number).__name__
        problem = (
            "" if is_number else f"batches: a whole number or None, got {kind}; give its len()"
        )
        what = f"batches/{self._compared}"
        compare(self._rendezvous, what, facts, problem=problem, fix=SAME_BATCHES)

    def explained(self, error: BaseException) -> CollectiveFailed:
        """Return an error that says which ranks have taken other steps than this one, whose collective has
        failed with ``error``; or that error where all ranks are in one step."""
        self._failed += 1
        step = self._exchange.step + self._forward_seen
        if apart := steps_apart(self._rendezvous, self._failed, step):
            return CollectiveFailed("backward", RuntimeError(apart))
        known = (
            error if isinstance(error, CollectiveFailed) else CollectiveFailed("training", error)
        )
        # gloo ends the process to which more comes than it has asked for, and its peers lose the connection.
        known.add_note(
            "If a rank says that a size does not match, ranks have sent different things: with "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares them first."
        )
        return known

    def detach(self) -> None:
        """Let go of the model, on all ranks together: it is a plain DDP model again, and may be attached
        anew."""
        if self._detached:
            return
        self._detached = True
        repeated = [] if self._repeated is None else self._repeated.handles
        for handle in (*self._handles, *repeated, self._optimizers.handle):
            handle.remove()
        self._hook.junction = self._hook.finish = self._hook.owner = None
        if self._junction.pending:
            for parameter in self._steps.parameters.values():
                parameter.grad = None

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
        world, copied = self._steps.world, map_tensors(self.state_dict(), _on_cpu)
        if not gather:
            return keyed({world.rank: copied})
        file = io.BytesIO()
        torch.save(copied, file)
        every = world.tell_bytes(file.getvalue(), purpose=None)
        return keyed(
            {rank: torch.load(io.BytesIO(one), weights_only=True) for rank, one in enumerate(every)}
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and other compressor state, the policy's state, the ledger. Tensors are the
        exchange's own, and change in the next step."""
        progress, world = self._steps.progress, self._steps.world
        last = progress.watched
        return {
            "world_size": world.size,
            "rank": world.rank,
            "exchange": saved_states.state_dict(self._exchange),
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
            try:
                state = self._own_state(states_of(state), reshard)
                if missing := self._policy.init().keys() - state["policy"].keys():
                    raise UserError(
                        f"state: its policy has no {min(missing)}, and {type(self._policy).__name__} keeps "
                        "it; attach with the policy with which the state was saved"
                    )
                Ledger().load_state_dict(state["ledger"])
                # States of version 0.1.0 lack the last two.
                last = state["exchange"]["step"] - 1
                step, seconds, samples = state.get("timed", [last, math.nan, math.nan])
                sums = {name: total.clone() for name, total in state.get("sums", {}).items()}
                saved_states.load_state_dict(self._exchange, state["exchange"])
            except (AttributeError, KeyError, TypeError) as error:
                raise UserError(
                    f"state: it is none that an exchange has saved ({type(error).__name__}: {error}); give "
                    "what state_dict(), by_rank() or gathered() has returned"
                ) from error
        progress = self._steps.progress
        progress.policy = state["policy"]
        self.ledger.load_state_dict(state["ledger"])
        progress.watched = PolicyInputs(step, seconds, samples, sums=sums)
        self._ended = math.nan
        self._steps.begin(self._exchange.step)

    def _own_state(self, states: dict[int, dict[str, Any]], reshard: str) -> dict[str, Any]:
        """This rank's, of what was saved of some ranks."""
        world = self._steps.world
        if not states:
            raise UserError("state: it is empty")
        saved: int = next(iter(states.values()))["world_size"]
        if saved == world.size:
            if world.rank not in states:
                raise ValueError(
                    f"rank: the state was saved by rank {min(states)}, this is rank {world.rank}; each rank "
                    "saves and loads its own"
                )
            return states[world.rank]
        if len(states) < saved:
            raise ValueError(
                f"world_size: the state was saved by {saved} workers, this world has {world.size}; "
                "residuals are kept per worker: load those of all ranks, with reshard=mean"
            )
        if self._steps.sharded:
            raise UserError(
                f"reshard: the state was saved by {saved} ranks, each of which has its shard's residuals; "
                "continue with the same mesh"
            )
        refuse_reshard("the state", self._exchange.states(), saved, world.size, reshard)
        mean = mean_of([states[rank]["exchange"] for rank in range(saved)])
        return {**states[0], "exchange": mean}

    def _watch(self, model: nn.Module) -> Any:
        """Look at each forward with gradients, before it begins."""
        found = weakref.ref(self)

        def before(module: nn.Module, _: object) -> None:
            here = found()
            if here is None or here._model() is not module or not torch.is_grad_enabled():
                return
            refuse_capture()
            if isinstance(here._junction, PerUnit):
                here._junction.refuse_thawed()
            here._forward_seen = True
            here._steps.keep(module)

        return model.register_forward_pre_hook(NotCopied(before), prepend=True)

    def _refuse_join(self) -> None:
        """Raise UserError on all ranks alike inside ``model.join()``."""
        if getattr(getattr(self._model(), "_join_config", None), "enable", False):
            raise UserError(
                "model.join: a rank that has run out of batches takes no part in the exchange; "
                f"{SAME_BATCHES} (DDP stays so after a join: wrap the module again)"
            )

    def _own_problem(self) -> str:
        """Why this step would go wrong on this rank, perhaps on no other; empty where it would not."""
        thawed = next((name for name, p in self._frozen.items() if p.requires_grad), None)
        if thawed is not None:
            return (
                f"model: {thawed} was frozen when the compressor was attached and learns now; detach, wrap "
                "the module in DDP again, and attach"
            )
        late: set[int] = set()
        waiting: list[nn.Module | None] = [self._model()]
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
        if weighs and not self.samples > 0 and measures(self._policy):
            return (
                f"samples: {type(self._policy).__name__} weighs the samples of each step; set "
                "exchange.samples, before backward, to the number in this rank's batch"
            )
        return ""

    def _named(self, late: set[int]) -> Parameters:
        """Return, by name, the parameters with these addresses that the model did not have when the
        compressor was attached and that DDP is not told to ignore. (While FSDP has gathered a unit, it has
        other objects of the same names.)"""
        model: Any = self._model()
        is_unit = isinstance(self._junction, PerUnit)
        names = {name for name, _ in self._present.values()} if is_unit else set[str]()
        named = unwrapped(model).named_parameters()
        ignored = getattr(unwrapped(model), "_ddp_params_and_buffers_to_ignore", ())
        names |= {*ignored, *getattr(model, "parameters_to_ignore", ())}
        return {name: p for name, p in named if id(p) in late and name not in names}

    def _multiply(self, factor: float) -> None:
        """Multiply all gradients, but where exchanges overlap backward only those that were exchanged."""
        left = self._junction.absent if self._junction.overlaps else ()
        if found := [g for name, g in self._steps.gradients().items() if name not in left]:
            torch._foreach_mul_(found, factor)


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)
