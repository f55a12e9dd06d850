"""Ring, tree and recursive halving-doubling allreduce: modelled time, and the size from which a ring wins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Values, amount, join, longer, pivot
from dgc_repro.paper.lecture import study_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import judge

WORDS = Template.read(__file__)
RING, TREE, HALVING = "ring", "tree", "halving_doubling"
LOOKS = {
    RING: Look("ring", plot.BLUE, "o"),
    TREE: Look("tree", plot.ORANGE, "s"),
    HALVING: Look("halving-doubling", plot.GREEN, "^", ":"),
}
TIME, CROSSOVER = "time of an allreduce", "message size from which a ring is as fast"
ONE_LEVEL = [f"ethernet_{rate}" for rate in ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")]
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


def place(workers: int, num_bytes: float) -> str:
    """The setting of the frame's lines."""
    return f"{workers} workers, {amount([num_bytes])}"


def _claim(
    name: str, greater: str, lesser: str, at: tuple[int, int], networks: Iterable[str], *,
    above: float = 1.0, below: float = math.inf, near_to: float = 0.0, within: float = 0.0, **how: Any,
) -> Claim:  # fmt: skip
    """The quotient of two algorithms' times on each network."""
    checks = [
        Check(TIME, f"{n}.{greater}", f"{n}.{lesser}", above, below, place(*at), ratio=True)
        for n in networks
    ]
    if near_to:
        checks = [near(check, near_to, within) for check in checks]
    return WORDS.claim(name, *checks, at=place(*at), near=near_to, **how)


_equal = {"above": 1 - EQUAL_SHARE, "below": 1 + EQUAL_SHARE}
_formulas: dict[str, Any] = {"ours": True, "by_construction": True}
CLAIMS = (
    _claim("bytes", RING, HALVING, (FEW, LARGE), ONE_LEVEL, **_equal, **_formulas),
    _claim("nodes", RING, HALVING, (FEW, LARGE), [TWO_LEVELS], **_equal, ours=True),
    _claim(
        "steps", RING, HALVING, (MANY, SMALL), ONE_LEVEL, near_to=_steps, within=STEPS_FACTOR, **_formulas
    ),
    _claim("tree", TREE, RING, (FEW, LARGE), ONE_LEVEL, near_to=_tree, within=1 + EQUAL_SHARE, **_formulas),
    _claim("odd", HALVING, RING, (ODD, LARGE), [*ONE_LEVEL, TWO_LEVELS], by_construction=True),
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
    every = {f"{n}.{a}": f"{n}: {look.label}" for n in networks for a, look in LOOKS.items()}
    others = {row: label for row, label in every.items() if not row.endswith(f".{RING}")}
    sizes = [Column(f"N = {n}", CROSSOVER, crossing, f"{n} workers") for n in CROSSOVER_WORKERS]
    times = [Column(f"N = {n}: {amount([b])}", TIME, seconds, place(n, b)) for n, b in SHOWN]
    crossings = pivot(frame, others, sizes, first="than")
    said = f"{facts.scale_text(scale)}, modelled (network/cost.py), nothing measured, n = 1"
    shown = [*(_times(table, *drawn) for drawn in DRAWN), _crossings(table, list(networks))]
    return made(
        __file__, scale, runs, frame,
        [
            Section("Message size from which a ring is at least as fast", crossings),
            Section("Time of an allreduce", pivot(frame, every, times, "network and algorithm")),
        ],
        CLAIMS, judge=partial(judge, modelled=True),
        head=[
            ("seconds", "all modelled (network/cost.py)"),
            *((name, _described(network)) for name, network in networks.items()),
        ],
        figures={
            "allreduce": lambda: plot.figure(
                "Ring, tree and halving-doubling allreduce", said, shown, legend=5
            )
        },
    )  # fmt: skip


def _described(network: Mapping[str, object]) -> str:
    text = f"{network['rate']}, {network['latency']}"
    if network.get("workers_per_node"):
        text += (
            f"; nodes of {network['workers_per_node']} that share it, inside {network['node_rate']}, "
            f"{network['node_latency']}"
        )
    return f"{text} ({network['source']})"


def _times(table: pd.DataFrame, network: str, workers: int) -> panels.Panel:
    """Time by size."""
    own = table[(table["network"] == network) & (table["workers"] == workers)]
    costs = own[own["what"] == "cost"]
    curves = {name: costs[costs["algorithm"] == name] for name in LOOKS}
    return panels.panel(
        f"{network}, {workers} workers",
        *(panels.lines([(c["bytes"], c["seconds"])], **LOOKS[name].line) for name, c in curves.items()),
        x="message size", y="modelled time", log="xy", xticks=amount, yticks=seconds,
    )  # fmt: skip


def _crossings(table: pd.DataFrame, networks: Sequence[str]) -> panels.Panel:
    """The size from which a ring beats a tree, by workers."""
    own = table[(table["what"] == "crossover") & (table["algorithm"] == TREE)]
    own = own[(own["bytes"] > 0) & (own["workers"] & (own["workers"] - 1) == 0)]
    curves = []
    for number, network in enumerate(networks, start=3):
        line = own[own["network"] == network]
        look = Look(network, plot.CYCLE[number % 7], plot.MARKERS[number % 7], "--")
        curves.append(panels.lines([(line["workers"], line["bytes"])], **look.line))
    return panels.panel(
        "from this size on a ring beats a tree", *curves, x="workers N (log), powers of two",
        y="message size", log="y", xticks="binary", yticks=amount,
    )  # fmt: skip
