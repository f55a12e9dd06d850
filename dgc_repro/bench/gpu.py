"""The exchange on this machine's GPU: its time, its launches, and whether it gives the CPU's bits.

make bench ARGS="--only gpu"            needs a GPU
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from dgc_repro.bench.counting import triton_counts
from dgc_repro.bench.launches import methods, shapes_of
from dgc_repro.bench.layers import exchange, opened
from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.rounds import rounds, timed
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.launch.components import build_compressor, build_policy
from dgc_repro.launch.overrides import composed

MODEL, CLASSES = "resnet101", 1000
WORKERS, STEPS = 2, 3  # of the comparison with the CPU
REPEATS, WARMUP = 20, 3
COPY, STEP = "copy", "step"
COLUMNS = {
    "method": "method",
    "step x copy": "step_x",
    "step ms": "step_ms",
    "Triton launches": "launches",
    f"means after {STEPS} steps": "bits",
}
Gradients = Mapping[str, Tensor]


def table(options: Namespace) -> Table:
    """Of `make bench`. Raises UserError where torch finds no GPU."""
    if not torch.cuda.is_available():
        raise UserError(
            "only: gpu needs a GPU that torch finds (torch.cuda.is_available()); leave it out"
        )
    repeats = options.repeats or REPEATS
    given = [f"model.width={options.width}"] if options.width else []
    about = (
        f"{torch.cuda.get_device_name()}; heavy-tailed gradients of ResNet101 (44.5 M values in 314 tensors "
        "at full width), methods as conf/compressor/ has them, layer by layer. Step: one worker's exchange "
        "with nobody, in multiples of a copy of all gradients timed right before; median of "
        f"{repeats} pairs (middle half). Means: of {WORKERS} simulated workers, beside those of the CPU."
    )
    return Table(
        "gpu",
        "On the GPU",
        about,
        COLUMNS,
        partial(rows, torch.device("cuda"), repeats, given),
        300,
    )


def rows(
    device: torch.device,
    repeats: int,
    overrides: Sequence[str] = (),
    cases: Mapping[str, Sequence[str]] | None = None,
) -> list[Row]:
    """A row a method. ``device``: compared with the CPU; ``overrides``: of the model."""
    base = [f"model={MODEL}", *overrides, "scale=none", "policy=fixed", "train.epochs=1"]
    shapes = shapes_of(composed(base), CLASSES)
    given = [gradients_of(shapes, worker) for worker in range(WORKERS)]
    made: list[Row] = []
    for name, own in (methods() if cases is None else cases).items():
        config = composed([*base, *own, "policy=fixed"])
        compressor = build_compressor(config, build_policy(config))
        unit = config["exchange"]["unit"]
        made.append({"method": name, **row(compressor, unit, given, device, repeats)})
        gc.collect()
    return made


def row(
    compressor: Compressor,
    unit: str,
    given: Sequence[Gradients],
    device: torch.device,
    repeats: int,
) -> Row:
    """Time, launches and bits of a method."""
    here, there = (means(compressor, unit, given, on) for on in (torch.device("cpu"), device))
    bits = compared(list(here), list(there))
    own = {name: gradient.to(device) for name, gradient in given[0].items()}
    copies = {name: torch.empty_like(gradient) for name, gradient in own.items()}
    alone = opened(compressor, own, SimulatedWire(1, device), unit)

    def copy() -> None:
        torch._foreach_copy_(list(copies.values()), list(own.values()))
        synchronize(device)

    def step() -> None:
        exchange(alone, copies)
        synchronize(device)

    found = rounds({COPY: timed(copy), STEP: timed(step)}, repeats, WARMUP)
    before, *_ = triton_counts()
    copy()
    step()
    seconds = found[STEP]["seconds"]
    return {
        **Spread.of(seconds / found[COPY]["seconds"]).columns("step_x"),
        **Spread.of(1e3 * seconds).columns("step_ms"),
        "launches": triton_counts()[0] - before,
        "bits": bits,
    }


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def means(
    compressor: Compressor, unit: str, given: Sequence[Gradients], device: torch.device
) -> Iterator[Tensor]:
    """The means of every step, tensor by tensor, on the CPU."""
    like = {name: gradient.to(device) for name, gradient in given[0].items()}
    between = opened(compressor, like, SimulatedWire(len(given), device), unit)
    for _ in range(STEPS):
        copies = [{name: g.to(device, copy=True) for name, g in own.items()} for own in given]
        found = exchange(between, *copies)
        yield from (found[name].cpu().clone() for name in like)


def compared(here: Sequence[Tensor], there: Sequence[Tensor]) -> str:
    """Whether two lists of tensors have the same bits, and what differs."""
    pairs = list(zip(here, there, strict=True))
    differ = sum(int((a.view(torch.int32) != b.view(torch.int32)).sum()) for a, b in pairs)
    if not differ:
        return "the CPU's bits"
    values = sum(a.numel() for a in here)
    apart = max(float((a - b).abs().max()) for a, b in pairs if a.numel())
    largest = max(float(a.abs().max()) for a in here if a.numel())
    share, most = 100 * differ / values, apart / largest
    return f"{share:.2g} % of the values differ, by at most {most:.1e} of the largest"
