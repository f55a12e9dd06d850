"""The network model against measured steps: predicted and measured iteration times in the lab.

make validate-network                   24 points, about 6 minutes on 2 idle cores
make validate-network ARGS=--quick      a slim model, few repeats: does it run?

Nothing is fitted to the steps that are judged. For each number of live workers: (1) collectives are
timed at 10 Gbit/s, where the links are no limit, and fitted (network/fit.py): latency, and what the
hosts' software costs; (2) each method's compress and decompress are timed on every worker at once,
without a network (bench/alone.py), and so is compute (a stated sleep and the replay's own work);
(3) the model adds the link's rate, by arithmetic; (4) the steps are measured at 100 and 300 Mbit/s and
1 Gbit/s. Predicted is compute + compress + communicate + decompress, after backward.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch.distributed as dist
from matplotlib.figure import Figure

from dgc_repro.bench import collectives, network
from dgc_repro.bench.alone import time_exchange
from dgc_repro.bench.command_line import (
    REPOSITORY,
    folder_of,
    listed,
    one_of,
    parser,
    reader,
    run,
    whole,
    worker_counts,
)
from dgc_repro.bench.network import opened
from dgc_repro.bench.network_points import LOOPBACK, METHODS
from dgc_repro.bench.record import MODELS, Recorded, record
from dgc_repro.bench.replay import SPANS, Case, Compute, pause
from dgc_repro.bench.rounds import rounds
from dgc_repro.bench.tables import Machine, Row, markdown, write_csv
from dgc_repro.bench.world import everyone, on_ranks, set_rate, together
from dgc_repro.launch.cli_args import sizes_range
from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Fit, Point, fit
from dgc_repro.network.iteration import Part, Step
from dgc_repro.network.lab import HIGHEST, Lab
from dgc_repro.network.units import bits_per_second, seconds
from dgc_repro.paper import plot
from dgc_repro.progress import TimeLeft, announce

RATES = ("100mbit", "300mbit", "1gbit")
CHOSEN = ("dense", "uniform4", "topk1", "powersgd4")
OURS = [name for name, method in METHODS.items() if method.compressor is not None]
SIGNALS = {"allreduce": (1.0, 8.0)}  # `Attached.step` shares one float64
MEDIAN_AT_MOST, P90_AT_MOST = 0.10, 0.25
COLUMNS = {
    "workers": "workers",
    "rate": "rate",
    "method": "method",
    "measured ms": "measured_ms",
    "predicted ms": "predicted_ms",
    "error %": "error_percent",
    "compute": "compute_ms",
    "compress": "compress_ms",
    "communicate": "communicate_ms",
    "decompress": "decompress_ms",
    "measured compress": "measured_compress_ms",
    "communicate ": "measured_communicate_ms",
    "decompress ": "measured_decompress_ms",
}
LOOKS: dict[Any, str] = {2: "o", 4: "^", 8: "s"}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Raises UserError."""
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help="a slim model, 2 workers, few repeats")
    made.add_argument("--model", choices=sorted(MODELS), default="resnet18")
    made.add_argument("--workers", type=worker_counts, default=[2, 4], help="as 2,4")
    made.add_argument("--rates", type=listed(lab_rate), default=RATES, help="as 100mbit,1gbit")
    made.add_argument("--methods", type=listed(one_of(OURS)), default=CHOSEN)
    made.add_argument("--compute", type=reader(sleep), default="50ms", help="of a step, as 50ms")
    made.add_argument("--repeats", type=whole, default=7)
    quick = {"workers": [2], "rates": ["100mbit", "1gbit"], "repeats": 3}
    if made.parse_args(arguments).quick:
        made.set_defaults(**quick)
    return made.parse_args(arguments)


def lab_rate(text: str) -> str:
    """A rate that a lab can have."""
    return network.rate(text) if text != LOOPBACK else one_of(RATES)(text)


def sleep(text: str) -> str:
    """A duration."""
    seconds("compute", text)
    return text


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure, compare, write; the folder."""
    given = parsed(arguments)
    points = len(given.methods) * len(given.rates)
    expected = {n: 60 + points * (given.repeats + 3) * 0.35 * n for n in given.workers}
    announce("validate-network", sum(expected.values()))
    left = TimeLeft(sum(expected.values()))
    machine = Machine.here()
    slim = ["model.width=16"] if given.quick else []
    recorded = record(given.model, REPOSITORY / "runs", slim, max(given.workers))
    rows: list[Row] = []
    fits: dict[int, Fit] = {}
    for workers in given.workers:
        found, fits[workers] = world(given, recorded, workers)
        rows += found
        left.advance(expected[workers])
        if left.words():
            print(f"validate-network: {workers} workers done, {left.words()}", flush=True)
    folder = folder_of(given, "network", machine)
    about = (
        f"{given.model}, {recorded.values / 1e6:.4g} M values ({recorded.data}), replayed after "
        f"backward; compute a sleep of {given.compute}; median of {given.repeats} steps"
    )
    write(folder, rows, fits, machine, about)
    print(f"written to {folder}")
    return folder


@dataclass(frozen=True)
class Live:
    """A method between live ranks: what the slowest worker does for itself in a step, and measured steps by
    rate."""

    step: Step
    measured: Mapping[str, pd.DataFrame]


def world(given: argparse.Namespace, recorded: Recorded, workers: int) -> tuple[list[Row], Fit]:
    """All points of so many live workers."""
    print(f"{workers} workers: collectives at {HIGHEST / 1e9:g} Gbit/s", flush=True)
    rates = [HIGHEST, *(bits_per_second("rates", rate) for rate in given.rates)]
    compute = Compute.of(given.compute, seconds("compute", given.compute))
    asked = (recorded, given.methods, given.rates, compute, given.repeats)
    with Lab([HIGHEST] * workers, name="validate-network") as lab:
        points, live = on_ranks(on_rank, *asked, workers=workers, lab=lab, rates=rates)
    fitted = fit(points, workers, None, f"{workers} live workers in the lab at 10 Gbit/s")
    print(f"error of the fit: median {100 * fitted.median_error:.1f} %", flush=True)
    rows = []
    for name, rate in itertools.product(given.methods, given.rates):
        costs = Costs(replace(fitted.network, rate=rate), workers)
        found = live[name]
        point = {"model": given.model, "workers": workers, "rate": rate}
        point |= {"method": METHODS[name].label}
        one = compared(point, found.step, costs, found.measured[rate])
        rows.append(one)
        print(
            f"{workers} workers {rate} {one['method']}: measured {one['measured_ms']:.1f} ms, "
            f"predicted {one['predicted_ms']:.1f} ms ({100 * one['error']:+.1f} %)",
            flush=True,
        )
    return rows, fitted


def on_rank(
    recorded: Recorded, methods: Sequence[str], rates: Sequence[str], compute: Compute, repeats: int
) -> tuple[list[Point], dict[str, Live]]:
    """The collectives, and each method alone and between the ranks."""
    set_rate(0)
    sizes = sizes_range("sizes", "64..64mb")
    points = collectives.measure(sizes, 15, 2.0, collectives.slowest)
    gradients = recorded.gradients(dist.get_rank())
    live = {}
    for name in methods:
        compressor = METHODS[name].compressor
        assert compressor is not None
        runner = opened(Case(METHODS[name].label, compressor, overlap=False), gradients, recorded)
        runner.model.compute = compute
        computed = rounds({"": runner.compute}, repeats, 1)[""]["seconds"].median()

        def before() -> None:
            together()
            pause(compute.seconds)

        alone = time_exchange(
            compressor, gradients, dist.get_world_size(), repeats=repeats, before=before
        )
        (of_ranks,) = zip(*everyone(alone), strict=True)
        part = Part(
            ready=float(computed),
            compress=max(one.compress for one in of_ranks),
            decompress=max(one.decompress for one in of_ranks),
            first=of_ranks[0].first,
            later=of_ranks[0].later,
        )
        measured = {}
        for number, rate in enumerate(rates, 1):
            set_rate(number)
            measured[rate] = rounds({"": runner.step}, repeats, 1)[""]
        set_rate(0)
        live[name] = Live(Step(float(computed), [part], SIGNALS), measured)
        runner.close()
    return points, live


def compared(point: Row, step: Step, costs: Costs, found: pd.DataFrame) -> Row:
    """The row of a point from predicted and measured steps. ``error``: predicted / measured - 1."""
    measured = sorted(found["seconds"].tolist())
    middle, predicted = statistics.median(measured), step.after_backward(costs)
    seconds_of = {
        "measured": middle,
        "measured_low": measured[0],
        "measured_high": measured[-1],
        "predicted": predicted,
        "compute": step.compute,
        "compress": step.compress,
        "communicate": step.communicate(costs),
        "decompress": step.decompress,
    }
    return {
        **point,
        **{f"{name}_ms": 1e3 * value for name, value in seconds_of.items()},
        "error": predicted / middle - 1,
        **{f"measured_{span}_ms": float(found[f"{span}_ms"].median()) for span in SPANS},
        "payload_mb": float(found["payload_bytes"].mean()) / 1e6,
        "repeats": len(measured),
    }


def write(
    folder: Path,
    rows: Sequence[Row],
    fits: Mapping[int, Fit],
    machine: Machine,
    about: str,
) -> None:
    """``validation.md``, ``.csv``, ``.svg``, ``.png``; the verdict is printed too."""
    errors = [abs(row["error"]) for row in rows]
    middle = statistics.median(errors)
    p90 = float(np.quantile(errors, 0.9, method="inverted_cdf"))  # one of the errors
    enough = len(rows) >= 24

    def word(value: float, at_most: float) -> str:
        return ("met" if value <= at_most else "missed") + ("" if enough else ", of too few points")

    verdict = (
        f"{len(rows)} points: median error {100 * middle:.1f} % (at most "
        f"{100 * MEDIAN_AT_MOST:.0f} %: {word(middle, MEDIAN_AT_MOST)}), 90th percentile "
        f"{100 * p90:.1f} % (at most {100 * P90_AT_MOST:.0f} %: {word(p90, P90_AT_MOST)})"
    )
    fitted = "; ".join(
        f"{workers} workers: latency {found.network.latency}, fit's median error "
        f"{100 * found.median_error:.0f} %, worst {100 * found.worst_error:.0f} %"
        for workers, found in fits.items()
    )
    text = "\n\n".join(
        [
            machine.head(about),
            "Predicted: compute, compress and decompress timed on as many live workers without a network; "
            f"latency and software fitted to collectives at 10 Gbit/s ({fitted}); the link's rate by "
            "arithmetic. No measured step enters a prediction.",
            verdict,
        ]
    )
    shown = [row | {"error_percent": f"{100 * row['error']:+.1f}"} for row in map(dict, rows)]
    text = markdown("The network model against measured steps", text, COLUMNS, shown)
    (folder / "validation.md").write_text(text, encoding="utf-8")
    print(text)
    write_csv(folder / "validation.csv", rows)
    plot.save(figure(rows, verdict, machine), folder, "validation")


def figure(rows: Sequence[Row], verdict: str, machine: Machine) -> Figure:
    """Predicted over measured, with the band of the 90th percentile's target."""
    with plot.style():
        drawn = Figure(figsize=(6.2, 5.2), layout="constrained")
        axes = drawn.subplots()
        frame = pd.DataFrame(rows)
        ends = np.array([frame["measured_ms"].min() / 1.5, frame["measured_ms"].max() * 1.5])
        axes.plot(ends, ends, color=plot.BLACK, linewidth=0.8)
        for share, alpha in ((P90_AT_MOST, 0.12), (MEDIAN_AT_MOST, 0.2)):
            low, high = ends * (1 - share), ends * (1 + share)
            axes.fill_between(ends, low, high, color=plot.BLUE, alpha=alpha, linewidth=0)
        colours = dict(zip(frame["method"].unique(), itertools.cycle(plot.CYCLE), strict=False))
        for (method, workers), own in frame.groupby(["method", "workers"], sort=False):
            axes.plot(
                own["measured_ms"],
                own["predicted_ms"],
                LOOKS.get(workers, "x"),
                color=colours[method],
                label=f"{method}, {workers} workers",
            )
        plot.name_axes(axes, "measured, ms a step", "predicted, ms a step", log="xy")
        axes.legend()
        plot.title(axes, verdict.split(" (")[0] + " of the network model", machine.caption)
    return drawn


def command() -> None:
    """Entry point of scripts/validate_network.py."""
    run("validate-network", main, "nothing was written")
