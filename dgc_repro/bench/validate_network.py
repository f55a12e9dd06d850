"""The network model against measured steps: predicted and measured iteration times in the lab.

make validate-network                   24 points, about 6 minutes on 2 idle cores
make validate-network ARGS=--quick      a slim model, few repeats: does it run?

Nothing is fitted to the steps that are judged. For each number of live workers: (1) collectives are
timed at 10 Gbit/s, where the links hold nobody up, and fitted (network/fit.py): latency, and what the
hosts' software costs; (2) each method's compress and decompress are timed on every worker at once,
without a network (bench/alone.py), and so is compute (a stated sleep and the replay's own work);
(3) the model adds the link's rate, by arithmetic; (4) the steps are measured at 100 and 300 Mbit/s and
1 Gbit/s. Predicted is compute + compress + communicate + decompress, after backward.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.bench.collectives import measure as measure_collectives
from dgc_repro.bench.collectives import time_collective
from dgc_repro.bench.command_line import (
    REPOSITORY,
    TimeLeft,
    at_least_one,
    output_of,
    parser,
    run,
    words,
    worker_counts,
)
from dgc_repro.bench.network_points import METHODS
from dgc_repro.bench.ranks import Ranks
from dgc_repro.bench.record import MODELS, Recorded, record
from dgc_repro.bench.replay import AFTER_BACKWARD, SPANS, Case, Compute
from dgc_repro.bench.tables import Machine, Row, markdown, write_csv
from dgc_repro.errors import UserError
from dgc_repro.launch.cli_args import sizes_range
from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Fit, fit
from dgc_repro.network.iteration import Part, Step
from dgc_repro.network.lab import HIGHEST, Lab, check_rates
from dgc_repro.network.units import bits_per_second, seconds
from dgc_repro.paper import plot

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


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    model: str = "resnet18"
    workers: Sequence[int] = (2, 4)
    rates: Sequence[str] = RATES
    methods: Sequence[str] = CHOSEN
    compute: str = "50ms"
    repeats: int = 7
    given: Sequence[str] = ()
    output: Path = REPOSITORY / "reproduced" / "network"
    runs: Path = REPOSITORY / "runs"


QUICK = Options(workers=(2,), rates=("100mbit", "1gbit"), repeats=3, given=("model.width=16",))


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure, compare, write; the folder."""
    options = parsed(arguments)
    left = TimeLeft(
        "validate-network", {f"{n} workers": expected(options, n) for n in options.workers}
    )
    machine = Machine.here()
    recorded = record(options.model, options.runs, options.given, max(options.workers))
    rows: list[Row] = []
    fits: dict[int, Fit] = {}
    for workers in options.workers:
        found, fits[workers] = world(options, recorded, workers)
        rows += found
        left.done(f"{workers} workers")
    folder = options.output / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, rows, fits, machine, options, recorded)
    print(f"written to {folder}")
    return folder


def parsed(arguments: Sequence[str] | None) -> Options:
    """The command line. Raises UserError."""
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help="a slim model, 2 workers, few repeats")
    made.add_argument("--model", choices=sorted(MODELS))
    made.add_argument("--workers", help="as 2,4")
    made.add_argument("--rates", help="as 100mbit,1gbit")
    made.add_argument("--methods", help=f"of {','.join(OURS)}")
    made.add_argument("--compute", help="the sleep of a step, as 50ms")
    made.add_argument("--repeats", type=int)
    given = made.parse_args(arguments)
    options = QUICK if given.quick else Options()
    found = {
        "rates": given.rates.split(",") if given.rates else None,
        "workers": worker_counts(given.workers) if given.workers else None,
        "methods": words("methods", given.methods, OURS),
        "output": output_of(given, "network"),
        **{name: getattr(given, name) for name in ("model", "compute", "repeats")},
    }
    options = replace(options, **{n: value for n, value in found.items() if value is not None})
    try:
        check_rates("rates", [bits_per_second("rates", rate) for rate in options.rates])
        seconds("compute", options.compute)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    at_least_one(options.repeats)
    return options


def expected(options: Options, workers: int) -> float:
    """About how many seconds so many workers take, on two cores: collectives, then each method's steps."""
    points = len(options.methods) * len(options.rates)
    return 60 + points * (options.repeats + 3) * 0.35 * workers


def world(options: Options, recorded: Recorded, workers: int) -> tuple[list[Row], Fit]:
    """All points of so many live workers."""
    compute = Compute.of(options.compute, seconds("compute", options.compute))
    rows = []
    with (
        Lab([HIGHEST] * workers, name="validate-network") as lab,
        Ranks(workers, lab) as ranks,
    ):
        print(f"{workers} workers: collectives at {HIGHEST / 1e9:g} Gbit/s", flush=True)

        def asked(collective: str, size: int, repeats: int) -> Sequence[Sequence[float]]:
            return ranks.ask("call", time_collective, collective, size, repeats)

        points = measure_collectives(asked, sizes_range("sizes", "64..64mb"), 15, 2.0)
        fitted = fit(points, workers, None, f"{workers} live workers in the lab at 10 Gbit/s")
        print(f"error of the fit: median {100 * fitted.median_error:.1f} %", flush=True)
        ranks.load(recorded)
        for name in options.methods:
            method = METHODS[name]
            case = Case(method.label, method.compressor, AFTER_BACKWARD)
            ranks.open(case)
            step = live_step(ranks, case, compute, workers, options.repeats)
            for rate in options.rates:
                bits = bits_per_second("rates", rate)
                lab.set_rates([bits] * workers)
                costs = Costs(replace(fitted.network, rate=rate), workers)
                found = ranks.steps(case, compute, repeats=options.repeats, settle=1)
                one = compared(options.model, name, rate, workers, step, costs, found)
                rows.append(one)
                print(
                    f"{workers} workers {rate} {method.label}: measured {one['measured_ms']:.1f} ms, "
                    f"predicted {one['predicted_ms']:.1f} ms ({100 * one['error']:+.1f} %)",
                    flush=True,
                )
            lab.set_rates([HIGHEST] * workers)
            ranks.close_case(case)
    return rows, fitted


def live_step(ranks: Ranks, case: Case, compute: Compute, workers: int, repeats: int) -> Step:
    """What the slowest worker does for itself in a step, all of them at work at once."""
    computed = [
        statistics.median(told) for told in ranks.ask("computes", case.key, compute, repeats)
    ]
    exchanged = ranks.ask("alone", case, compute, workers, repeats)
    parts = [
        Part(
            ready=max(computed),
            compress=max(one.compress for one in told),
            decompress=max(one.decompress for one in told),
            first=told[0].first,
            later=told[0].later,
        )
        for told in zip(*exchanged, strict=True)
    ]
    return Step(max(computed), parts, SIGNALS)


def compared(
    model: str, method: str, rate: str, workers: int, step: Step, costs: Costs, found: Any
) -> Row:
    """A row from what was predicted and what was measured. ``error``: predicted / measured - 1."""
    measured = sorted(found.seconds)
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
    row: dict[str, Any] = {
        "model": model,
        "workers": workers,
        "rate": rate,
        "method": METHODS[method].label,
        **{f"{name}_ms": 1e3 * value for name, value in seconds_of.items()},
        "error": predicted / middle - 1,
    }
    return row | {
        **{
            f"measured_{span}_ms": statistics.median(getattr(found, f"{span}_ms")) for span in SPANS
        },
        "payload_mb": found.payload_bytes / 1e6,
        "repeats": len(measured),
    }


def write(
    folder: Path,
    rows: Sequence[Row],
    fits: Mapping[int, Fit],
    machine: Machine,
    options: Options,
    recorded: Recorded,
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
    lines = [
        *machine.lines(
            f"{options.model}, {recorded.values / 1e6:.4g} M values ({recorded.data}), replayed after "
            f"backward; compute a sleep of {options.compute}; median of {options.repeats} steps"
        ),
        "Predicted: compute, compress and decompress timed on as many live workers without a network; "
        "latency and software fitted to collectives at 10 Gbit/s ("
        + fitted
        + "); the link's rate by "
        "arithmetic. No measured step enters a prediction.",
        verdict,
    ]
    shown = [
        {**row, "error_percent": f"{100 * row['error']:+.1f}", "workers": str(row["workers"])}
        for row in rows
    ]
    text = markdown("The network model against measured steps", lines, COLUMNS, shown)
    (folder / "validation.md").write_text(text, encoding="utf-8")
    print(text)
    write_csv(folder / "validation.csv", [], rows, {})
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
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("measured, ms a step")
        axes.set_ylabel("predicted, ms a step")
        axes.legend()
        plot.title(axes, verdict.split(" (")[0] + " of the network model", machine.caption)
    return drawn


def command() -> None:
    """Entry point of scripts/validate_network.py."""
    run("validate-network", main, "nothing was written")
