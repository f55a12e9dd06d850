"""Optimizers, local steps and policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from authors.case import Answers, Given, World, case, checkout, gradients, simulation, stepped
from authors.low_rank import PRODUCTS
from authors.quantizers import GRACE, of_workers
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.optimizer.muon import Muon
from dgc_repro.policy.accordion import Accordion
from dgc_repro.policy.interface import EpochReport
from dgc_repro.train.local_steps import LocalSteps, outer_optimizer

MUON = "KellerJordan/Muon"
ACCORDION = "uw-mad-dash/Accordion"
GYM = "exo-explore/gym"


@case(
    "fp16",
    "1 worker",
    GRACE,
    whose="GRACE's",
    compressor=FP16(),
    given=gradients({"matrix": (48, 37), "vector": (1001,)}, steps=2, workers=1, spread=8),
    compared="what arrives, equal values",
    bound=0.0,
)
def fp16(folder: Path, given: Given) -> Answers:
    """GRACE's FP16Compressor."""
    with checkout(folder) as load:
        cast = load("grace_dl.dist.compressor.fp16").FP16Compressor()

        def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
            decoded: Tensor = cast.decompress(*cast.compress(x, name))
            return decoded

        return of_workers(given, one)


# ---- Muon

_MATRICES = {"tall": (40, 16), "wide": (16, 24)}
_MUON = gradients(_MATRICES, steps=20, workers=1)
_RATE, _DECAY, _MOMENTUM = 0.02, 0.01, 0.95


def _float32() -> Any:
    """Inside, Newton-Schulz iterates in float32: bfloat16 keeps 8 bits, and both sides other ones."""
    return patch.object(torch.Tensor, "bfloat16", lambda x: x.float())


def _our_muon() -> Answers:
    module = nn.Module()
    for name, shape in _MATRICES.items():
        module.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    optimizer = Muon(lr=_RATE, weight_decay=_DECAY, momentum=_MOMENTUM).build(
        module, global_batch=1
    )
    found = []
    with patch.object(torch, "bfloat16", torch.float32), _float32():
        for (own,) in _MUON:
            for name, parameter in module.named_parameters():
                parameter.grad = own[name].clone()
            optimizer.step()
            found += [parameter.detach().clone() for parameter in module.parameters()]
    return found


@case(
    "muon",
    "optimizer=muon, momentum 0.95, Nesterov",
    MUON,
    ours=_our_muon,
    steps=len(_MUON),
    injected="nothing; both iterate in float32, where both train in bfloat16",
    compared="weights",
    bound=PRODUCTS,
    note="Matrices: for kernels of convolutions the author's scale is 1 (docstring).",
)
def muon(folder: Path) -> Answers:
    """The author's SingleDeviceMuon."""
    with checkout(folder) as load, _float32():
        weights = [nn.Parameter(torch.zeros(shape)) for shape in _MATRICES.values()]
        optimizer = load("muon").SingleDeviceMuon(
            weights, lr=_RATE, weight_decay=_DECAY, momentum=_MOMENTUM
        )
        found = []
        for (own,) in _MUON:
            for name, weight in zip(_MATRICES, weights, strict=True):
                weight.grad = own[name].clone()
            optimizer.step()
            found += [weight.detach().clone() for weight in weights]
        return found


# ---- Local steps

_LAYERS = {"matrix": (20, 30), "vector": (30,)}
_LOCAL = gradients(_LAYERS, steps=25, workers=3)
_HORIZON = 6
_INNER = {"lr": 1e-3, "weight_decay": 0.01}


def _model() -> nn.Module:
    module = nn.Module()
    for name, shape in _LAYERS.items():
        module.register_parameter(name, nn.Parameter(torch.full(shape, 0.1)))
    return module


def _our_rounds(outer_lr: float, outer_momentum: float) -> Callable[[], Answers]:
    """Weights after each round. The first has a step more: the other side counts from 0."""

    def ours() -> Answers:
        module, workers = _model(), len(_LOCAL[0])
        parameters = dict(module.named_parameters())
        inner = [torch.optim.AdamW(module.parameters(), **_INNER) for _ in range(workers)]
        local = LocalSteps(module.parameters(), inner)
        settings: Any = SimpleNamespace(outer_lr=outer_lr, outer_momentum=outer_momentum)
        outer = outer_optimizer(module.parameters(), settings)
        exchange = simulation(Dense(), [[{n: p.detach() for n, p in parameters.items()}] * workers])
        found: Answers = []
        for first, last in _rounds():
            moved = []
            for worker in range(workers):
                local.begin_turn(worker)
                for every in _LOCAL[first:last]:
                    for name, parameter in parameters.items():
                        parameter.grad = every[worker][name].clone()
                    local.step(worker, _INNER["lr"])
                local.leave_outer_gradient()
                moved.append({n: p.grad.clone() for n, p in parameters.items()})  # type: ignore[union-attr]
            local.end_round()
            for name, mean in stepped(exchange, moved).items():
                parameters[name].grad = mean
            outer.step()
            found += [parameter.detach().clone() for parameter in parameters.values()]
        return found

    return ours


def _rounds() -> list[tuple[int, int]]:
    ends = list(range(_HORIZON + 1, len(_LOCAL) + 1, _HORIZON))
    return list(zip([0, *ends], ends, strict=False))


def _gym(module: str, build: Callable[[Any, Any], Any]) -> Callable[[Path], Answers]:
    """A strategy of EXO Gym: weights after each round."""

    def theirs(folder: Path) -> Answers:
        bare = ("exogym", "exogym.strategy")
        stubs = {"exogym.aux": {}, "exogym.aux.utils": {"LogModule": object}}
        world = World(len(_LOCAL[0]))
        with checkout(folder, bare=bare, stubs=stubs) as load:
            strategies = load(f"exogym.strategy.{module}")
            inner = load("exogym.strategy.optim").OptimSpec(torch.optim.AdamW, **_INNER)

            def copy(communicator: Any, model: nn.Module) -> None:
                for name, parameter in model.named_parameters():
                    parameter.data.copy_(communicator.master_model.state_dict()[name])

            def worker(rank: int) -> Answers:
                model, found = _model(), []
                strategy = build(strategies, inner)
                strategy._init_node(model, rank, world.size)
                ends = {last for _, last in _rounds()}
                for step, every in enumerate(_LOCAL, start=1):
                    for name, parameter in model.named_parameters():
                        parameter.grad = every[rank][name].clone()
                    strategy.step()
                    if step in ends:
                        found += [p.detach().clone() for p in model.parameters()]
                return found

            communicator = getattr(strategies, "DiLoCoCommunicator", None)
            names = load("exogym.strategy.communicate")
            for name in ("all_reduce", "broadcast"):
                for place in (names, strategies):
                    if hasattr(place, name):
                        setattr(place, name, getattr(world, name))
            if communicator is not None:
                communicator._synchronize_master_model = copy
            return world.run(worker)[0]

    return theirs


def _averaged(module: Any, inner: Any) -> Any:
    """Their FedAvg hands its inner optimizer on under a name that nothing reads."""
    strategy = module.FedAvgStrategy(H=_HORIZON)
    strategy.optim_spec = inner
    return strategy


case(
    "dense",
    f"train.local_steps={_HORIZON} (DiLoCo), AdamW inside, Nesterov momentum outside, 3 workers",
    GYM,
    whose="EXO Gym's",
    ours=_our_rounds(0.7, 0.9),
    steps=len(_LOCAL),
    compared="weights after each round",
    note="Their first round has a step more, and so has this side's. On a CPU their master's weights share "
    "storage with rank 0's; the case copies them.",
    name="diloco",
)(_gym("diloco", lambda module, inner: module.DiLoCoStrategy(inner, H=_HORIZON)))
case(
    "dense",
    f"train.local_steps={_HORIZON} (local SGD), AdamW inside, 3 workers",
    GYM,
    whose="EXO Gym's",
    ours=_our_rounds(1.0, 0.0),
    steps=len(_LOCAL),
    compared="weights after each round",
    note="Their first round has a step more, and so has this side's. Their FedAvg drops its inner optimizer; "
    "the case hands it over.",
    name="local_sgd",
)(_gym("federated_averaging", _averaged))


# ---- Accordion

_EPOCHS, _TENSORS = 300, 6


def _norms() -> list[dict[str, float]]:
    """Norms that wander, of some tensors down to 0."""
    source = np.random.Generator(np.random.PCG64(5))
    changes = source.integers(2, 17, (_EPOCHS, _TENSORS)) / 8
    norms = np.where(source.integers(0, 40, changes.shape) == 0, 0.0, changes)
    return [{f"t{i}": float(x) for i, x in enumerate(row)} for row in norms]


def _our_regimes() -> Answers:
    policy = Accordion(field="bits", values=[8, 2], eta=0.5)
    state, found = policy.init(), []
    for epoch, norms in enumerate(_norms(), start=1):
        report = EpochReport(epoch, 1.0, 1.0, 50.0, (0.1, 0.1), norms)
        state = policy.observe(state, report)
        found.append(torch.tensor([name not in state["high"] for name in norms]).float())
    return found


@case(
    "accordion",
    "policy=accordion, eta 0.5",
    ACCORDION,
    ours=_our_regimes,
    steps=_EPOCHS,
    compared=f"{_EPOCHS * _TENSORS} decisions: critical or not",
    bound=0.0,
)
def accordion(folder: Path) -> Answers:
    """Their run_auto_scale_gng, epoch after epoch."""
    stubs = {"powersgd_grad_original": {}, "timer": {"Timer": lambda **_: None}}
    with checkout(folder, stubs=stubs) as load:
        module = load("auto_scale")
        before, found = None, []
        for epoch, norms in enumerate(_norms()):
            now = list(norms.values())
            decided, _ = module.run_auto_scale_gng(now, before, epoch)
            found.append(torch.tensor([one == module.auto_scale_high for one in decided]).float())
            before = now
        return found
