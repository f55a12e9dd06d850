"""Ring, tree and recursive halving-doubling allreduce: modelled time, and the size from which a ring wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim, near
from dgc_repro.paper.frame import Column, Values, amount, join, longer, pivot
from dgc_repro.paper.lecture import by_workers, study_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import judge

RING, TREE, HALVING = "ring", "tree", "halving_doubling"
LOOKS = {
    RING: Look("ring", plot.BLUE, "o"),
    TREE: Look("tree", plot.ORANGE, "s"),
    HALVING: Look("halving-doubling", plot.GREEN, "^", ":"),
}
TIME, CROSSOVER = "time of an allreduce", "message size from which a ring is as fast"
ONE_LEVEL = tuple(
    f"ethernet_{rate}" for rate in ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")
)
"""Networks of one level (conf/network)."""
TWO_LEVELS = "gcp_v100_32"
LARGE, MIDDLE, SMALL = 100_000_000, 1_000_000, 1000
FEW, MANY, ODD = 16, 256, 24
"""Workers of a small and a large cluster, and no power of two. Ours, as the message sizes."""
CROSSOVER_WORKERS = (4, 16, 24, 64, 256)
SHOWN = [(FEW, SMALL), (FEW, MIDDLE), (FEW, LARGE), (ODD, LARGE), (MANY, SMALL), (MANY, LARGE)]
DRAWN = (("ethernet_1gbit", 64), (TWO_LEVELS, 32))
EQUAL_SHARE = 0.05
"""Times within 5 % of each other are equal. Ours."""
STEPS_FACTOR = 1.5
"""Of the quotient of messages in sequence, (N - 1) / log2 N: bytes cost time too. Ours."""
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_steps = (MANY - 1) / math.log2(MANY)
_tree = math.log2(FEW) * FEW / (FEW - 1)
_formulas = "Two formulas of network/cost.py side by side: arithmetic, no finding."
_source = "ring and recursive halving-doubling"


def row_of(network: str, algorithm: str) -> str:
    """The row of the frame."""
    return f"{network}.{algorithm}"


def place(workers: int, num_bytes: float) -> str:
    """The setting of the frame's lines."""
    return f"{workers} workers, {amount([num_bytes])}"


def _checks(
    greater: str, lesser: str, workers: int, size: int, networks: Sequence[str], **more: float
) -> tuple[Check, ...]:
    """The quotient of two algorithms' times on each network."""
    return tuple(
        Check(
            TIME, row_of(network, greater), row_of(network, lesser), setting=place(workers, size),
            ratio=True, **{"above": 1.0, **more},
        )
        for network in networks
    )  # fmt: skip


_equal = {"above": 1 - EQUAL_SHARE, "below": 1 + EQUAL_SHARE}

CLAIMS = (
    Claim(
        "bytes", "Ring and recursive halving-doubling move the same bytes: large messages cost the same.",
        _source, _checks(RING, HALVING, FEW, LARGE, ONE_LEVEL, **_equal),
        f"{place(FEW, LARGE)}, on every network of one level within 5 %. {_formulas}", margin=OURS,
        by_construction=True,
    ),
    Claim(
        "nodes", "They cost the same where the workers of a node share its link, too.", EXPECTED,
        _checks(RING, HALVING, FEW, LARGE, [TWO_LEVELS], **_equal),
        "The same on a network of two levels, neighbours first: halving-doubling has halved the message "
        "by the time it leaves the node. The model of shared links (network/cost.py) is not measured.",
        margin=OURS,
    ),
    Claim(
        "steps",
        "Halving-doubling sends 2 log2 N messages in sequence, a ring 2 (N - 1): it is faster for small "
        "messages.",
        _source,
        tuple(
            near(check, _steps, STEPS_FACTOR)
            for check in _checks(RING, HALVING, MANY, SMALL, ONE_LEVEL)
        ),
        f"{place(MANY, SMALL)}, within a factor of {STEPS_FACTOR} of (N - 1) / log2 N = {_steps:.1f}. "
        f"{_formulas}", margin=OURS, by_construction=True,
    ),
    Claim(
        "tree",
        "A tree moves the whole message log2 N times each way: large messages cost about log2 N times a "
        "ring's.",
        _source,
        tuple(
            near(check, _tree, 1 + EQUAL_SHARE)
            for check in _checks(TREE, RING, FEW, LARGE, ONE_LEVEL)
        ),
        f"{place(FEW, LARGE)}, within 5 % of log2 N N / (N - 1) = {_tree:.2f}. {_formulas}", margin=OURS,
        by_construction=True,
    ),
    Claim(
        "odd", "Where the number of workers is no power of two, a ring is faster for large messages.",
        EXPECTED, _checks(HALVING, RING, ODD, LARGE, [*ONE_LEVEL, TWO_LEVELS]),
        f"{place(ODD, LARGE)}: the workers above a power of two first hand their whole vector to a "
        f"neighbour. {_formulas}", by_construction=True,
    ),
)  # fmt: skip


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The frame: a row for each algorithm on each network."""
    table = table.assign(row=table["network"] + "." + table["algorithm"], clock="")
    table["setting"] = table["workers"].astype(str) + " workers"
    costs, crossings = (table[table["what"] == what] for what in ("cost", "crossover"))
    sizes = ", " + costs["bytes"].map(lambda size: amount([size]))
    costs = costs.assign(setting=costs["setting"] + sizes, clock="modelled")
    return join(
        longer(costs, {"seconds": (TIME, "s")}), longer(crossings, {"bytes": (CROSSOVER, "bytes")})
    )


def crossing(values: Values) -> str:
    """A message size; always: below a byte."""
    if not len(values):
        return "-"
    return "never" if math.isinf(values[0]) else "always" if values[0] < 1 else amount(values)


def seconds(values: Values) -> str:
    """A time in the unit that keeps it at or above one."""
    return amount(values, TIME_UNITS)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished run. Raises UserError if there are several that are not alike."""
    table = study_of(runs)
    frame = numbers(table)
    networks: Mapping[str, Mapping[str, object]] = runs[0].config["study"]["networks"]
    named = [(name, _described(network)) for name, network in networks.items()]
    return made(
        __file__,
        scale,
        runs,
        frame,
        _sections(frame, list(networks)),
        head=[("seconds", "all modelled (network/cost.py)"), *named],
        verdicts=judge(CLAIMS, frame, modelled=True),
        figures={"allreduce": lambda: _figure(table, list(networks), scale)},
    )


def _described(network: Mapping[str, object]) -> str:
    text = f"{network['rate']}, {network['latency']}"
    if network.get("workers_per_node"):
        text += (
            f"; nodes of {network['workers_per_node']} that share it, inside {network['node_rate']}, "
            f"{network['node_latency']}"
        )
    return f"{text} ({network['source']})"


def _sections(frame: pd.DataFrame, networks: Sequence[str]) -> list[Section]:
    every = {row_of(n, a): f"{n}: {look.label}" for n in networks for a, look in LOOKS.items()}
    others = {row: label for row, label in every.items() if not row.endswith(f".{RING}")}
    sizes = [Column(f"N = {n}", CROSSOVER, crossing, f"{n} workers") for n in CROSSOVER_WORKERS]
    times = [Column(f"N = {n}: {amount([b])}", TIME, seconds, place(n, b)) for n, b in SHOWN]
    crossings = pivot(frame, others, sizes, first="than")
    return [
        Section("Message size from which a ring is at least as fast", crossings),
        Section("Time of an allreduce", pivot(frame, every, times, "network and algorithm")),
    ]


def _figure(table: pd.DataFrame, networks: Sequence[str], scale: str) -> Figure:
    """Time by size on two networks, and the size from which a ring beats a tree by workers."""

    def times(axes: Axes, network: str, workers: int) -> None:
        own = table[(table["network"] == network) & (table["workers"] == workers)]
        for algorithm, look in LOOKS.items():
            curve = own[(own["what"] == "cost") & (own["algorithm"] == algorithm)]
            axes.plot(curve["bytes"], curve["seconds"], **look.line)
        plot.name_axes(axes, "message size", "modelled time", "xy")
        for axis, form in ((axes.xaxis, amount), (axes.yaxis, seconds)):
            axis.set_major_locator(LogLocator(numticks=6))
            axis.set_major_formatter(FuncFormatter(lambda value, _, form=form: form([value])))

    def crossings(axes: Axes) -> None:
        own = table[(table["what"] == "crossover") & (table["algorithm"] == TREE)]
        own = own[(own["bytes"] > 0) & (own["workers"] & (own["workers"] - 1) == 0)]
        for number, network in enumerate(networks, start=3):
            line = own[own["network"] == network]
            look = Look(network, plot.CYCLE[number % 7], plot.MARKERS[number % 7], "--")
            axes.plot(line["workers"], line["bytes"], **look.line)
        by_workers(axes, "workers N (log), powers of two", "message size", "y")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount([value])))

    panels: plot.Panels = [
        *((f"{name}, {n} workers", partial(times, network=name, workers=n)) for name, n in DRAWN),
        ("from this size on a ring beats a tree", crossings),
    ]
    said = f"{facts.scale_text(scale)}, modelled (network/cost.py), nothing measured, n = 1"
    return plot.figure("Ring, tree and halving-doubling allreduce", said, panels, legend=5)
