"""The lecture's ring, tree and recursive halving-doubling allreduce: seconds, and where the ring wins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dgc_repro.paper import lecture
from dgc_repro.paper.lecture import HALVING_DOUBLING, RING, TREE
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.study import (
    Block,
    Page,
    groups,
    header,
    judged,
    lines,
    require_one_study,
    scale_label,
    table_of,
)
from dgc_repro.report.verdict import Values

COST, CROSSOVER = "cost", "crossover"
NAMES = {RING: "ring", TREE: "tree", HALVING_DOUBLING: "halving-doubling"}
LOOKS = {RING: (style.BLUE, "o"), TREE: (style.ORANGE, "s"), HALVING_DOUBLING: (style.GREEN, "^")}
SHOWN_SIZES = (1_000, 1_000_000, 100_000_000)
SHOWN_WORKERS = (4, 16, 24, 64, 256)
DRAWN = (("ethernet_1gbit", 64), ("gcp_v100_32", 32))
NETWORK_COLOURS = (style.BLACK, style.BLUE, style.GREEN, style.ORANGE, style.PURPLE, style.SKY)


def values(frame: pd.DataFrame) -> Values:
    """Seconds of every algorithm, network, number of workers and size."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in lines(frame[frame["what"] == COST]):
        place = lecture.cost_quantity(row["network"], row["workers"], int(row["bytes"]))
        found.setdefault(place, {}).setdefault(row["algorithm"], {})[row["seed"]] = row["seconds"]
    return found


def size_text(num_bytes: float) -> str:
    """Bytes in the largest decimal unit that keeps them at or above one."""
    if math.isinf(num_bytes):
        return "never"
    if num_bytes < 1:
        return "always"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.3g} B"


def time_text(seconds: float) -> str:
    """Seconds in the unit that keeps them at or above one."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished record; UserError if there are several that are not alike."""
    require_one_study(records)
    frame = table_of(records)
    costs = frame[(frame["what"] == COST) & frame["workers"].isin(SHOWN_WORKERS)]
    networks = records[0].config["study"]["networks"]
    return Page(
        title="Ring, tree and halving-doubling allreduce (lecture), modelled",
        scale=scale,
        header=header(
            records,
            scale,
            [(name, _described(node)) for name, node in networks.items()],
        ),
        warning="",
        blocks=(_crossover_block(frame, list(networks)), _cost_block(costs, list(networks))),
        verdicts=judged(lecture.ALLREDUCE_CLAIMS, values(frame), scale, modelled=True),
        notes=(),
        choices=(),
        numbers=tuple(
            {key: row[key] for key in ("network", "workers", "what", "algorithm")}
            | {"bytes": float(row["bytes"]), "seconds": float(row["seconds"])}
            for row in lines(frame)
        ),
    )


def _described(node: dict[str, object]) -> str:
    text = f"{node['rate']}, {node['latency']}"
    if node.get("workers_per_node"):
        text += (
            f"; nodes of {node['workers_per_node']} that share it, inside "
            f"{node['node_rate']}, {node['node_latency']}"
        )
    return f"{text} ({node['source']})"


def _crossover_block(frame: pd.DataFrame, networks: Sequence[str]) -> Block:
    rows = []
    for network in networks:
        group = frame[(frame["what"] == CROSSOVER) & (frame["network"] == network)]
        for other in (TREE, HALVING_DOUBLING):
            own = group[group["algorithm"] == other]
            sizes = dict(zip(own["workers"], own["bytes"], strict=True))
            cells = (size_text(sizes[w]) if w in sizes else "-" for w in SHOWN_WORKERS)
            rows.append((network, NAMES[other], *cells))
    return Block(
        "Message size from which on the ring is at least as fast",
        "always: at any size; never: at none. A power of two of workers never makes a ring faster than "
        "halving-doubling, which sends as many bytes in fewer messages.",
        ("network", "than", *(f"N = {count}" for count in SHOWN_WORKERS)),
        tuple(rows),
    )


def _cost_block(costs: pd.DataFrame, networks: Sequence[str]) -> Block:
    rows = []
    order = costs["network"].map(list(networks).index)
    for place, count, group in groups(costs.assign(place=order), "place", "workers"):
        network, cells = networks[place], []
        for size in SHOWN_SIZES:
            for algorithm in NAMES:
                own = group[(group["algorithm"] == algorithm) & (group["bytes"] == size)]
                cells.append(time_text(float(own["seconds"].iloc[0])) if len(own) else "-")
        rows.append((network, str(count), *cells))
    return Block(
        "Time of an allreduce",
        "By message size: ring, tree, halving-doubling (h-d).",
        (
            "network",
            "N",
            *(
                f"{size_text(size)}: {short}"
                for size in SHOWN_SIZES
                for short in ("ring", "tree", "h-d")
            ),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 8, 9, 10),
    )


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Time by size on two networks, and the size from which a ring beats a tree by workers."""
    frame = table_of(records)
    with style.house_style():
        drawing = Figure(figsize=(11.4, 4.0), layout="constrained")
        *panels, right = drawing.subplots(1, 3)
        for axes, (network, count) in zip(panels, DRAWN, strict=True):
            own = frame[(frame["network"] == network) & (frame["workers"] == count)]
            for algorithm, (colour, marker) in LOOKS.items():
                curve = own[(own["what"] == COST) & (own["algorithm"] == algorithm)]
                axes.plot(
                    curve["bytes"], curve["seconds"], color=colour, marker=marker, markersize=5,
                    label=NAMES[algorithm],
                )  # fmt: skip
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
            _by_size(axes)
            axes.legend(loc="upper left")
            style.title(axes, f"{network}, {count} workers", f"modelled; {scale_label(scale)}")
        crossings = frame[(frame["what"] == CROSSOVER) & (frame["algorithm"] == TREE)]
        networks = records[0].config["study"]["networks"]
        for network, colour in zip(networks, NETWORK_COLOURS, strict=False):
            group = crossings[crossings["network"] == network]
            two = group[(group["bytes"] > 0) & (group["workers"] & (group["workers"] - 1) == 0)]
            right.plot(
                two["workers"], two["bytes"], color=colour, marker="o", markersize=4, label=network
            )
        right.set_xscale("log", base=2)
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.set_xlabel("workers N (log)")
        right.set_yscale("log")
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
        drawing.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=6)
        style.title(right, "From this size on a ring beats a tree", "powers of two")
    return drawing


def _by_size(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel("message")
