"""Where an exchange takes the gradients of a step, and how all ranks agree that the step happens.

*After backward* (`AfterBackward`): every worker hosted here hands over its whole gradient. The ranks agree
first: nothing has been sent and no state has changed where some gradient is not finite. (A GPU would stand
idle while the host waits for the answer. There everything is sent first, and undone where the answer is no.)

*Per bucket* (`PerBucket`): each bucket of DDP's is exchanged as backward fills it. Its first collectives
begin in DDP's hook; whatever else the buckets ask follows when the last one has come, one bucket after
another, in one order on all ranks. Agreement comes last, and a step that does not happen is undone.

Parameters without a gradient. Where a parameter has one on some ranks only, the others count as zeros. Where
no rank has one, the parameter is *absent*: its state does not change. After backward on a CPU it is not
exchanged, and a policy's energies do not count it; where payloads travel first it is sent as zeros. The ranks
agree on the absent parameters with a bitmap, which travels only in steps in which some rank lacks other
parameters than in its last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dgc_repro.compressor.joined import absent_of_model
from dgc_repro.errors import UserError
from dgc_repro.exchange.collective import CollectiveFailed
from dgc_repro.exchange.exchange import Exchange, Running, in_memory_order
from dgc_repro.exchange.finite import Seen, first_bad, first_non_finite, on_cpu, seen_on_gpu
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import Plan

Parameters = Mapping[str, nn.Parameter]
CHANGED = 2.0**-20
"""What a rank adds to the first signal where it lacks other parameters than in its last step. The whole
part of the sum counts ranks with a gradient that is not finite, the fraction those that have changed: one
number for both, so that an ordinary step sends no more bytes for it."""
SEND_FIRST = frozenset({"cuda"})
"""Types of devices on which everything is sent before the ranks have agreed."""


class HasScale(Protocol):
    """What is needed of a GradScaler."""

    def get_scale(self) -> float: ...


class Junction:
    """``missing``: parameters that lacked a gradient at all workers hosted here in the last step; ``absent``:
    on all ranks. ``bad``: of each worker hosted here a gradient of this step that is not finite, where one is
    known. ``everybody``: who agrees, where that is more than the exchange's world."""

    overlaps = False
    pending = False  # parts of a step have been exchanged, and the ranks have not agreed

    def __init__(
        self, exchange: Exchange, parameters: Parameters, everybody: World | None = None
    ) -> None:
        self.exchange, self.parameters = exchange, parameters
        self.everybody = everybody or exchange.world
        self.missing: frozenset[str] = frozenset()
        self.absent: frozenset[str] = frozenset()
        self.bad: list[str | None] = []
        self.plan = Plan(None)
        self._seen: list[Seen] = []  # of this step's gradients
        # Of what a part of a step is given at a rung, what a kernel reads that finds the largest anyway.
        self._read: dict[tuple[int, int | None], frozenset[str]] = {}

    def begin(self, plan: Plan) -> None:
        """Announce the plan of the coming step."""
        self.plan = plan

    def open(self, names: Collection[str] | None = None) -> str | None:
        """Backward of the next worker hosted here is over. ``names``: of the parameters whose gradients count
        (default: all). Returns the name of one that is not finite, where that is known."""
        raise NotImplementedError

    def settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        """Agree on the step whose gradients were opened, and exchange them or leave all as it was.
        ``numbers``: of this process, f64[] on the device where they are tensors. ``finite``: whether all
        gradients here are, as far as it is known. Returns whether the step has happened, and the sums of
        ``numbers`` over processes. The means are in ``param.grad``."""
        raise NotImplementedError

    def agreeing(
        self,
        numbers: Sequence[float | Tensor],
        missing: frozenset[str],
        *,
        finite: bool,
        on_gpu: Tensor | None = None,
    ) -> Callable[[], tuple[bool, list[float]]]:
        """Begin to agree. What is returned waits, and sets ``absent``. ``on_gpu``: whether gradients there
        are finite: bool[]."""
        world, changed = self.everybody, missing != self.missing
        self.missing = missing
        num_bad = (not finite) + (on_gpu is not None)
        signal = _on_device([num_bad + CHANGED * changed, *numbers], world.device)
        if on_gpu is not None:
            signal[0].add_(on_gpu, alpha=-1)
        get = world.sharing(signal)

        def read() -> tuple[bool, list[float]]:
            flags, *sums = get()
            num_bad, some_changed = divmod(flags, 1)
            if some_changed:
                names = self.exchange.names
                has = world.share(torch.tensor([name not in missing for name in names]))
                pairs = zip(names, has, strict=True)
                self.absent = frozenset(name for name, count in pairs if not count)
            return not num_bad, sums

        return read

    def send(self) -> None:
        """Begin to exchange what was opened, before the ranks agree, where that gains anything."""

    def named(self) -> list[str | None]:
        """Of each worker hosted here, a gradient of the last step that was not finite. A GPU waits."""
        for seen in self._seen:
            self.bad[seen[0]] = self.bad[seen[0]] or first_bad(seen)
        self._seen = []
        return self.bad

    def run(self, gradients: Sequence[Mapping[str, Tensor]], part: int = 0) -> Running:
        """Begin to exchange (`Exchange.run`), and note of gradients on a GPU whether they are finite: most
        kernels find that as they read them, and what none has read in the last step is read here."""
        if all(map(on_cpu, gradients[0].values())):
            return self.exchange.run(gradients, self.plan, part)
        key = part, self.plan.rung
        read = self._read.get(key, frozenset())
        rest = [{name: own[name] for name in own.keys() - read} for own in gradients]
        self._seen += seen_on_gpu(rest)
        running = self.exchange.run(gradients, self.plan, part)
        noted = [(worker, *peaks) for worker, x in running.given for peaks in x.peaks or ()]
        self._seen += noted
        self._read[key] = now = frozenset(name for _, names, *_ in noted for name in names)
        # Whatever is read in place notes it, so that these are as they were.
        late = [{name: own[name] for name in own.keys() & (read - now)} for own in gradients]
        self._seen += seen_on_gpu(late)
        return running

    def finite(self) -> Tensor | None:
        """Whether all gradients of this step on a GPU are: bool[]."""
        if not self._seen:
            return None
        largest = [found for *_, found in self._seen]
        return (torch.cat(largest) if len(largest) > 1 else largest[0]).max() < math.inf

    def close(self) -> None:
        """Nothing to end."""


class AfterBackward(Junction):
    """The exchange of all gradients at once, when backward is over."""

    def __init__(
        self, exchange: Exchange, parameters: Parameters, everybody: World | None = None
    ) -> None:
        super().__init__(exchange, parameters, everybody)
        self._given: list[dict[str, Tensor]] = []  # of each worker, in memory order
        self._first: dict[str, Tensor] = {}  # the first worker's, as they were
        self._names: tuple[str, ...] = exchange.names  # that count in this step
        self._under_way: Running | None = None
        # A contiguous gradient of these is as they are, and as it lies in memory.
        learn = parameters.items()
        self._plain = {n for n, p in learn if p.is_contiguous() and not p.is_complex()}

    def hand_over(self, bucket: Any, future: torch.futures.Future[Tensor]) -> None:
        """Backward has filled a bucket of DDP's: it stays as it is."""
        future.set_result(bucket.buffer())

    def open(self, names: Collection[str] | None = None) -> str | None:
        is_first = not self._given
        if is_first:
            self.bad, self._first, self._seen = [], {}, []
            self._names = self.exchange.names if names is None else tuple(names)
        found: dict[str, Tensor] = {}
        for name in self._names:
            parameter = self.parameters[name]
            gradient = parameter.grad
            if gradient is None or not parameter.requires_grad:
                continue
            if not (name in self._plain and _is_plain(gradient)):
                gradient = _laid_out_like(parameter, gradient, name)
                parameter.grad = gradient
            found[name] = gradient
        if is_first:
            self._first |= found
        for name in found.keys() - self._plain:
            found[name] = in_memory_order(found[name])
        self._given.append(found)
        self.bad.append(first_non_finite(found, self.exchange.converted))
        return self.bad[-1]

    def send(self) -> None:
        """Begin to exchange what was opened, before the ranks agree. (Of several
        workers in one process nothing is sent, and there is nothing to gain.)"""
        if self.exchange.world.local == 1:
            self.exchange.hold()
            self._under_way = self.run(self._complete(frozenset()))

    def settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        try:
            return self._settle(numbers, finite=finite)
        finally:  # also where a method has failed
            self._given, self._under_way, self._first = [], None, {}

    def _settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        exchange, given = self.exchange, self._given
        lacks = [frozenset(self._names).difference(own) for own in given]
        missing = frozenset.intersection(*lacks) if lacks else self.missing
        chooses = self.plan.rung is None  # the policy must know first that the gradient is finite
        on_gpu = exchange.world.device.type in SEND_FIRST
        if on_gpu and given and self._under_way is None and not chooses:
            for gradient in given[0].values() if not finite else ():
                gradient.zero_()  # others wait for a payload; the step will be undone
            self.send()
        if self._under_way is None:
            self._seen = seen_on_gpu(given)
        read = self.agreeing(numbers, missing, finite=finite, on_gpu=self.finite())
        running, failed = self._under_way, None
        if running is not None:
            try:
                running.finish()
                exchange.put()
            except CollectiveFailed:
                raise
            except Exception as error:  # perhaps because some gradient was not finite
                failed = error
        happens, sums = read()
        if failed is not None and happens:
            exchange.undo()
            raise failed
        if running is not None:
            if happens and self.absent and exchange.is_joined:
                exchange.undo()
                raise absent_of_model(min(self.absent))
            if happens:
                exchange.accept(self.absent)
            else:
                exchange.undo()
        elif happens and given:
            exchange.run(self._complete(self.absent), self.plan).finish()
            exchange.put()
        if not happens:
            exchange.told.clear()
            return False, sums
        for name in self._names if given else ():
            parameter = self.parameters[name]
            # Other workers, or local steps since, may have put others in their place.
            if name not in self.absent and parameter.grad is not self._first[name]:
                parameter.grad = self._first[name]
        return True, sums

    def _complete(self, absent: frozenset[str]) -> Sequence[Mapping[str, Tensor]]:
        """The gradients of each worker, with zeros for what it lacks, and without what is absent."""
        names = [name for name in self._names if name not in absent]
        for name in names:
            if name not in self._first:
                self._first[name] = torch.zeros_like(self.parameters[name])
        every = []
        for worker, own in enumerate(self._given):
            for name in names if len(own) < len(names) else ():
                if name not in own:
                    like = self._first[name]
                    made = like if worker == 0 else torch.zeros_like(like)
                    own[name] = in_memory_order(made)
            every.append({name: own[name] for name in names})
        return every


class PerBucket(Junction):
    """The exchange of each bucket while backward goes on; plans must be known before the step.

    ``scale``: of the loss in the last backward: each bucket is unscaled before it is compressed, and the
    means stay unscaled."""

    overlaps = True

    def __init__(
        self,
        exchange: Exchange,
        parameters: Parameters,
        *,
        leaves_some: bool = False,
        scaler: HasScale | None = None,
    ) -> None:
        """``leaves_some``: whether DDP leaves the gradient of a parameter that no rank used as it was, hook
        or not."""
        super().__init__(exchange, parameters)
        self.scale, self.has_all = 1.0, False
        # What is wrong with this step on this rank, asked before anything of it is sent.
        self.problem_before: Callable[[], str] = lambda: ""
        self.problem = ""
        self._scaler, self._leaves_some = scaler, leaves_some
        self._names = {id(p): name for name, p in parameters.items()}
        self._buckets: list[tuple[Any, torch.futures.Future[Tensor], Running | None]] = []
        self._means: dict[str, Tensor] = {}  # in DDP's buckets
        self._frozen: dict[str, Tensor] = {}  # of those, what layers hold that do not learn now
        self._error: BaseException | None = None

    @torch.no_grad()
    def hand_over(self, bucket: Any, future: torch.futures.Future[Tensor]) -> None:
        """Backward has filled a bucket of DDP's. What goes wrong is raised when backward is over: an error in
        DDP's hook would break its next forward."""
        running = None
        is_first = not self._buckets
        if is_first:
            self._means.clear()
            self._frozen.clear()
            self.pending, self.bad, self._seen = True, [None], []
            self.scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        self.has_all = bucket.is_last()
        try:
            if is_first:
                self.exchange.hold()
                self.problem = self.problem_before()
            if self._error is None:
                running = self._open(bucket)
        except Exception as error:
            self._error = error
        self._buckets.append((bucket, future, running))
        if bucket.is_last():
            self._finish()

    def open(self, names: Collection[str] | None = None) -> str | None:
        if self._error is not None:
            error, self._error = self._error, None
            self.exchange.undo()
            raise error
        if not self.has_all:
            raise UserError(
                "exchange.overlap=true: there was no whole backward since the last step; leave the last "
                "backward of a step outside no_sync(), and wrap a model with unused parameters in "
                "DistributedDataParallel(..., find_unused_parameters=True)"
            )
        if outside := self.parameters.keys() - self._means.keys():
            raise UserError(
                f"model: {min(outside)} was frozen when the module was wrapped in DDP and learns now; "
                "detach, wrap the module in DDP again, and attach"
            )
        self.pending = self.has_all = False
        return self.bad[0]

    def settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        learn = self.parameters.items()
        missing = frozenset(n for n, p in learn if p.grad is None or not p.requires_grad)
        happens, sums = self.agreeing(numbers, missing, finite=finite, on_gpu=self.finite())()
        if happens:
            self.exchange.accept(self.absent)
        else:
            self.exchange.undo()
            self.exchange.told.clear()
        for name, before in self._frozen.items():
            if name in self.absent:  # with views into buckets, DDP has left it where the mean is
                self._means[name].copy_(before)
        for name, mean in self._means.items() if happens and self._leaves_some else ():
            gradient = self.parameters[name].grad
            if gradient is not None and name not in self.absent:
                put(mean, gradient)
        self._means.clear()
        return happens, sums

    def _open(self, bucket: Any) -> Running:
        pairs = zip(bucket.parameters(), laid_out(bucket), strict=True)
        # Those without a name were frozen before.
        here = {self._names[id(p)]: gradient for p, gradient in pairs if id(p) in self._names}
        self._means |= here
        held = [name for name in here if not self.parameters[name].requires_grad]
        self._frozen |= {name: here[name].clone() for name in held}
        gradients = {name: in_memory_order(gradient) for name, gradient in here.items()}
        bad = first_non_finite(gradients, self.exchange.converted)
        self.bad[0] = self.bad[0] or bad
        if bad or self.problem:
            bucket.buffer().zero_()  # other ranks wait for a payload; the step will be undone
        elif self.scale != 1 and here:
            torch._foreach_mul_(list(here.values()), 1 / self.scale)
        return self.run([gradients], part=bucket.index() + 1)

    def _finish(self) -> None:
        """All buckets have come: serve what they ask, one after another, and let DDP go on."""
        for _, _, running in self._buckets:
            try:
                if running is not None and self._error is None:
                    running.finish()
            except Exception as error:
                self._error = error
        if self._error is None:
            self.exchange.put()
        for bucket, future, _ in self._buckets:
            future.set_result(bucket.buffer())
        self._buckets = []


def laid_out(bucket: Any) -> list[Tensor]:
    """The gradients in a bucket of DDP's, in their parameters' layouts.

    DDP fills a bucket in the parameters' memory order (channels last: [O, H, W, I]) but cuts it into
    contiguous tensors of their logical shapes. Of complex parameters it has the real view, cut at the
    places of the complex one."""
    whole = bucket.buffer()
    first = whole.storage_offset()
    if bucket.parameters()[0].is_complex():
        whole = torch.view_as_complex(whole.view(-1, 2))
    found = []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        place = whole.storage_offset() + gradient.storage_offset() - first
        found.append(whole.as_strided(parameter.size(), parameter.stride(), place))
    return found


def put(mean: Tensor, gradient: Tensor) -> None:
    """Write a mean into a gradient, unless it has been computed there."""
    if mean.data_ptr() != gradient.data_ptr():
        gradient.copy_(mean)


def sparse_gradient(name: str) -> str:
    """The refusal of a sparse gradient."""
    return f"model: {name} has sparse gradients, which are not compressed; build its layer with sparse=False"


def _is_plain(gradient: Tensor) -> bool:
    """Whether values lie as they are, one after another."""
    return gradient.layout is torch.strided and gradient.is_contiguous() and not gradient.is_neg()


def _laid_out_like(parameter: Tensor, gradient: Tensor, name: str) -> Tensor:
    """A gradient laid out as its parameter: states and means are. Raises UserError for a sparse one."""
    if gradient.layout != torch.strided:
        raise UserError(sparse_gradient(name))
    is_plain = not gradient.is_neg() and not gradient.is_conj()
    alike = gradient.is_contiguous() and parameter.is_contiguous()
    if is_plain and (alike or gradient.stride() == parameter.stride()):
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _on_device(numbers: Sequence[float | Tensor], device: torch.device) -> Tensor:
    """A vector of numbers, of which the tensors are on the device already: f64[n]."""
    known = [number for number in numbers if not isinstance(number, Tensor)]
    here = torch.tensor(known, dtype=torch.float64).to(device, non_blocking=True)
    if len(known) == len(numbers):
        return here
    rest = iter(here.unbind())
    return torch.stack([n if isinstance(n, Tensor) else next(rest) for n in numbers])
