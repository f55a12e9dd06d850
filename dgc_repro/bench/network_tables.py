"""The measured points as rows, tables, verdicts and figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.bench.network_points import (
    GPU,
    GPU_SECONDS,
    LOOPBACK,
    METHODS,
    NONE,
    PLAIN,
    V100_FLOPS,
    V100_SHARE,
    Point,
    payload_rate,
)
from dgc_repro.bench.record import MODELS, Recorded
from dgc_repro.bench.replay import SPANS
from dgc_repro.bench.tables import BUSY_CORES, Machine, Row, Spread, markdown, whiskers, write_csv
from dgc_repro.network.units import bits_per_second
from dgc_repro.paper.page import markdown_table
from dgc_repro.paper.plot import BLACK, BLUE, GREEN, ORANGE, plain_log, save, style

LIMIT_AT_MOST = 1.15
HIDDEN_AT_LEAST = 0.80
COMMUNICATE_AT_LEAST = {"uniform4": 7.0, "topk1": 35.0}
SLOW_RATE = 1e9  # bits a second: from here down no method is to be slower than plain DDP
SLOWER_AT_MOST = 1.01
"""Times plain DDP's step: it differs by as much from itself, and a long step is measured once."""
SEEN_FROM = 0.05
"""Compute and communication that overlap are told from noise when they are this part of the step."""
INDICATIVE_BELOW = 3  # steps
TOO_SMALL = "too small to be seen"
WORDS = ("met", "unclear", "missed", "indicative, met", "indicative, missed", TOO_SMALL)
Points = Mapping[Point, Mapping[str, Any]]

WHOLE_COLUMNS = {
    "exchange": "exchange",
    "speedup over plain DDP": "speedup",
    "step ms": "step_ms",
    "n": "n",
    "x limit": "limit_x",
    "x overlapped limit": "overlap_limit_x",
    "verdict": "limit_verdict",
    "payload MB": "payload_mb",
    "wire MB": "wire_mb",
    "sent by the interface MB": "counter_mb",
    "collectives": "collectives",
    **{f"{span} ms": f"{span}_ms" for span in SPANS},
    "after backward ms": "exposed_ms",
    "processor ms": "processor_ms",
    "hidden by overlap": "hidden",
}


def write(
    known: Sequence[Mapping[str, Any]],
    recorded: Mapping[str, Recorded],
    machine: Machine,
    folder: Path,
    missing: Mapping[str, Sequence[str]],
) -> str:
    """network.md, network.csv and the figures; the tables' text. ``machine``: its version of torch, date
    and other work become the points' own; ``missing``: what was not measured, by the reason."""
    times = sorted(row["time"] for row in known)
    machine = replace(
        machine,
        torch_version=", ".join(sorted({row["torch"] for row in known})),
        date=times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}",
        busy_cores=max(row["busy_cores"] for row in known),
    )
    rows = rows_of(known)
    write_csv(folder / "network.csv", rows, {"cpu": machine.cpu, "cores": machine.cores})
    lists = [
        f"- {reason}:\n" + "\n".join(f"  - {p}" for p in missing[reason]) for reason in missing
    ]
    texts = [
        targets(rows, machine.head(_described(rows, recorded))),
        "\n".join(["## Not measured", "", *lists, ""]) if missing else "",
        _speedups(rows),
    ]
    text = "\n".join([*texts, *_tables(rows)])
    (folder / "network.md").write_text(text, encoding="utf-8")
    for workers in sorted({row["workers"] for row in rows}):
        _draw([row for row in rows if row["workers"] == workers], machine.caption, folder)
    return "\n".join(texts)


def rows_of(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a point, in the order of the tables."""
    points = {Point.of(row): row for row in known}
    return [_row(points, point) for point in sorted(points, key=_order)]


def _order(point: Point) -> tuple[Any, ...]:
    speed = payload_rate(point.rate) or float("inf")
    model, method = list(MODELS).index(point.model), list(METHODS).index(point.method)
    compute = (point.compute != NONE, point.compute)
    return (point.workers, speed, *compute, model, method, not point.overlap)


def _row(points: Points, point: Point) -> dict[str, Any]:
    """One point with all that follows from it and from its neighbours."""
    kept = points[point]
    row: dict[str, Any] = {
        **{name: getattr(point, name) for name in ("model", "workers", "rate", "compute")},
        "exchange": point.exchange,
        "method": point.method,
        "overlap": point.overlap,
        "compute_ms": 1e3 * (kept["forward_seconds"] + kept["backward_seconds"]),
        "does_not_run": kept.get("reason", ""),
        "measured": kept["time"],
        **{name: kept[name] for name in ("code", "session", "busy_cores")},
        "torch_version": kept["torch"],
    }
    if "reason" in kept:
        return row
    row |= Spread.of([1e3 * s for s in kept["seconds"]]).columns("step_ms")
    row |= {
        "n": len(kept["seconds"]),
        "payload_mb": kept["payload_bytes"] / 1e6,
        "wire_mb": kept["total_wire_bytes"] / 1e6,
        "counter_mb": kept["counter_bytes"] / 1e6 if kept["counter_bytes"] else None,
        "collectives": ", ".join(f"{n:g} {kind}" for kind, n in sorted(kept["calls"].items())),
        "processor_ms": 1e3 * median(kept["processor_seconds"]),
        "exposed_ms": 1e3 * median(kept["exposed_seconds"]),
    }
    ours = point.overlap is not None
    if ours:
        row |= {f"{span}_ms": median(kept[f"{span}_ms"]) for span in SPANS}
    slower, compared = _slowdowns(kept)
    if point.method == PLAIN:
        row["speedup"] = 1.0
    elif slower:
        row |= Spread.of([1 / ratio for ratio in slower]).columns("speedup")
        if ours and point.rate != LOOPBACK and bits_per_second("rates", point.rate) <= SLOW_RATE:
            row["slower_verdict"] = _judged(Spread.of(slower), compared, at_most=SLOWER_AT_MOST)
    if speed := payload_rate(point.rate):
        row |= _against_limit(row, kept, speed)
        row |= _overlap(points, point) | _communication(points, point)
    return row


def _slowdowns(kept: Mapping[str, Any]) -> tuple[list[float], int]:
    """Ours over plain DDP: by the step right before, or each step by each of plain DDP's of the same
    session; and of how many steps of the one or the other, whichever are fewer."""
    steps, plain = kept["seconds"], kept["plain_seconds"]
    if kept["beside_seconds"]:
        pairs = zip(steps, kept["beside_seconds"], strict=True)
        return [o / p for o, p in pairs], len(steps)
    return [o / p for o in steps for p in plain], min(len(steps), len(plain))


def _against_limit(row: Row, kept: Mapping[str, Any], speed: float) -> dict[str, Any]:
    """Step over compute + wire bytes / bandwidth, and over what perfect overlap would leave of it, by
    which a step with overlap is judged."""
    wire = kept["total_wire_bytes"] / speed
    forward, backward = kept["forward_seconds"], kept["backward_seconds"]
    limits = {"limit": forward + backward + wire}
    if row["overlap"] is not False and backward > 0:  # without compute it is the same limit
        limits["overlap_limit"] = forward + max(backward, wire)
    found: dict[str, Any] = {}
    for name, limit in limits.items():
        ratio = Spread.of([s / limit for s in kept["seconds"]])
        found |= {f"{name}_ms": 1e3 * limit, **ratio.columns(f"{name}_x")}
    if row["overlap"] is None:
        return found
    found["judged_x"] = ratio.median
    found["limit_verdict"] = _judged(ratio, len(kept["seconds"]), at_most=LIMIT_AT_MOST)
    parts = {"bytes on the link": 1e3 * wire}
    parts |= {name: row[f"{name}_ms"] for name in ("compress", "decompress")}
    waited = row["step_ms"] - row["compute_ms"]
    if row["overlap"]:  # its parts run beside each other and beside backward: no sum
        parts["side by side in"] = waited
    else:
        parts["communicate beyond bytes"] = row["communicate_ms"] - 1e3 * wire
        parts["other"] = waited - sum(parts.values())
    found["where"] = ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items())
    return found


def _overlap(points: Points, point: Point) -> dict[str, Any]:
    """(step without compute + compute - step with it) / min(backward, step without compute), from 0 to
    1, for every two steps of both. The gain runs behind the sleep, the processor's work or the link's; so the
    most that can be gained is the shorter of backward and all of the exchange."""
    kept, without = points[point], points.get(replace(point, compute=NONE), {})
    alone, backward = without.get("seconds"), kept["backward_seconds"]
    if point.overlap is False or point.compute == NONE or not alone:
        return {}
    computed = kept["forward_seconds"] + backward
    shares = [
        (exchange + computed - step) / min(backward, exchange)
        for exchange, step in itertools.product(alone, kept["seconds"])
    ]
    hidden = Spread.of(np.clip(shares, 0.0, 1.0))
    found: dict[str, Any] = {**hidden.columns("hidden")}
    if point.overlap and _is_judged_place(point):
        steps = _common_steps(without, kept, "seconds")
        small = min(backward, median(alone)) < SEEN_FROM * median(kept["seconds"])
        verdict = _judged(hidden, steps, at_least=HIDDEN_AT_LEAST)
        found["hidden_verdict"] = TOO_SMALL if small else verdict
    return found


def _communication(points: Points, point: Point) -> dict[str, Any]:
    """Dense's time in communication over this method's, both with or both without overlap."""
    kept, dense = points[point], points.get(replace(point, method="dense"), {})
    if point.overlap is None or not dense.get("communicate_ms"):
        return {}
    ratio = Spread.of([d / o for d in dense["communicate_ms"] for o in kept["communicate_ms"]])
    found: dict[str, Any] = {**ratio.columns("communicate_x")}
    if _is_judged_place(point) and point.compute == NONE and not point.overlap:
        steps = _common_steps(dense, kept, "communicate_ms")
        least = COMMUNICATE_AT_LEAST.get(point.method)
        found["communicate_verdict"] = _judged(ratio, steps, at_least=least)
    return found


def _is_judged_place(point: Point) -> bool:
    return point.workers == 2 and bits_per_second("rates", point.rate) == 1e8


def _common_steps(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> int:
    """The fewer steps of two points; none, as proof, where they are of different sessions."""
    return min(len(one[name]), len(other[name])) if one["session"] == other["session"] else 0


def _judged(spread: Spread, steps: int, **target: float | None) -> str:
    """met, missed or unclear; of fewer than 3 steps indicative only; empty without a target."""
    if steps >= INDICATIVE_BELOW:
        return spread.verdict(**target)
    side = replace(spread, low=spread.median, high=spread.median).verdict(**target)
    return side and f"indicative, {'met' if side == 'unclear' else side}"


def _described(rows: Sequence[Row], recorded: Mapping[str, Recorded]) -> str:
    steps = [row["n"] for row in rows if "n" in row]
    models = "; ".join(
        f"{r.model}: {r.values:,} values in {r.tensors} tensors, recorded on {r.data}, batch {r.batch}"
        for r in recorded.values()
    )
    gpu = {row["model"]: row["compute_ms"] for row in rows if row["compute"] == GPU}
    asleep = ", ".join(f"{model} {ms:.0f} ms" for model, ms in gpu.items())
    assumed = ", ".join(f"{model} {1e3 * s:.0f} ms" for model, s in GPU_SECONDS.items())
    dirty = sum(row["busy_cores"] > BUSY_CORES for row in rows)
    return (
        f"A step replayed: real gradients, recorded ({models}). Compute is a sleep: none, or "
        f"{GPU}, a modelled V100 (assumed: {V100_SHARE:.0%} of its {V100_FLOPS / 1e12:g} Tflop/s in "
        f"float32{': ' + asleep if asleep else ''}; {assumed} of it is what conf/artifact/gravac/fig1a.yaml "
        "assumes for 32 images of 32x32, starting operations included), a third of it forward, "
        "backward spread by multiply-adds. One gloo process of 1 thread a worker, all on this machine; links "
        "are network namespaces shaped by tc tbf in both directions. Plain DDP is torch's with default "
        "settings: its step stands right before each step it is compared with, or, where it takes long, "
        "before all of them in the same session. "
        f"{min(steps, default=0)} to {max(steps, default=0)} steps a point: median (middle half), the "
        "slowest rank's; spans are means over ranks, with overlap they overlap. Limit: compute + bytes on "
        "the wire / bandwidth, both with the headers of full packets (66 bytes of 1514); bytes by the "
        "ledger, signals included. Overlapped limit, by which overlap=true with compute is judged: forward "
        "+ the longer of backward and bytes / bandwidth. Hidden by overlap: (step without compute + "
        "compute - step with it) / the shorter of backward and the step without compute, cut to 0 to "
        f"100 %. Verdicts of fewer than {INDICATIVE_BELOW} steps are indicative. Points measured while "
        f"over {BUSY_CORES:g} cores did other work: {dirty} of {len(rows)}."
    )


TARGETS: Mapping[str, tuple[str, Callable[[Row], str]]] = {
    f"a step takes at most {LIMIT_AT_MOST} x limit (overlapped limit: overlap with compute)": (
        "limit_verdict",
        lambda r: f"{r['judged_x']:.2f}",
    ),
    f"at most {SLOWER_AT_MOST} x plain DDP's step (1 Gbit/s and below)": (
        "slower_verdict",
        lambda r: f"speedup {r['speedup']:.2f}",
    ),
    f"overlap hides at least {HIDDEN_AT_LEAST:.0%} (2 workers, 100 Mbit/s)": (
        "hidden_verdict",
        lambda r: f"{r['hidden']:.0%}",
    ),
    "communication 7x (4 bits) and 35x (top-k 1 %) faster than dense (2 workers, 100 Mbit/s)": (
        "communicate_verdict",
        lambda r: f"{r['communicate_x']:.1f}x",
    ),
}


def targets(rows: Sequence[Row], head: str) -> str:
    """How many points meet each target, and where it is missed what the time went to."""
    missed = []
    judged = {name: [r for r in rows if r.get(verdict)] for name, (verdict, _) in TARGETS.items()}
    for target, (verdict, shown) in TARGETS.items():
        missed += [
            {
                "target": target,
                "point": _place(row),
                "exchange": row["exchange"],
                "measured": shown(row),
                "verdict": row[verdict],
                "step ms": f"{row['step_ms']:.1f}",
                "processor ms": f"{row['processor_ms']:.1f}",
                "what the step's ms went to, compute aside": row.get("where", ""),
            }
            for row in judged[target]
            if row[verdict].endswith("missed")
        ]
    counts = [
        {"target": name, **{w: sum(r[TARGETS[name][0]] == w for r in found) for w in WORDS}}
        for name, found in judged.items()
    ]
    texts = ["# Network", head, markdown_table(pd.DataFrame(counts))]
    if missed:
        bound = [r for r in rows if _is_bound_by_the_processor(r)]
        over = sum(r.get("limit_verdict", "").endswith("missed") for r in rows)
        why = (
            f"Of the {over} points beyond the link's limit, the processor binds {len(bound)}: its time "
            f"of the step alone is more than {LIMIT_AT_MOST} x the limit, whatever overlaps."
        )
        texts += ["## Missed", why, markdown_table(pd.DataFrame(missed))]
    silent = dict.fromkeys(
        f"{r['exchange']} ({r['model']}, {r['workers']} workers): {r['does_not_run']}"
        for r in rows
        if r["does_not_run"]
    )
    if silent:
        texts.append(f"Does not run: {'; '.join(silent)}")
    return "\n\n".join(texts) + "\n"


def _is_bound_by_the_processor(row: Row) -> bool:
    """Whether a point misses the link's limit, and the processor's time of a step is beyond it as well: no
    order of the same work could meet it."""
    if not row.get("limit_verdict", "").endswith("missed"):
        return False
    limit: float = row.get("overlap_limit_ms", row["limit_ms"])
    return bool(row["processor_ms"] > LIMIT_AT_MOST * limit)


def _place(row: Row) -> str:
    return f"{row['model']}, {row['workers']} workers, {row['rate']}, compute {row['compute']}"


def _speedups(rows: Sequence[Row]) -> str:
    """Speedups over plain DDP, a column a model and rate, a table a number of workers and compute."""
    texts = []
    tables: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row.get("speedup"):
            table = tables.setdefault((row["workers"], row["compute"]), {})
            line = table.setdefault(row["exchange"], {"exchange": row["exchange"]})
            line[f"{row['model']} {row['rate']}"] = row["speedup"]
    for (workers, compute), table in tables.items():
        columns = {name: name for line in table.values() for name in line}
        title = f"Speedup over plain DDP, {workers} workers, compute {compute}"
        texts.append(markdown(title, "", columns, list(table.values()), level=2))
    return "\n".join(texts)


def _tables(rows: Sequence[Row]) -> list[str]:
    """Everything, a table a model, number of workers, rate and compute."""
    texts = []
    for place in dict.fromkeys(map(_place, rows)):
        found = [row for row in rows if _place(row) == place]
        columns = {
            heading: column
            for heading, column in WHOLE_COLUMNS.items()
            if any(row.get(column) not in (None, "") for row in found)
        }
        texts.append(markdown(place, "", columns, found, level=2))
    return texts


COLOURS = {None: BLACK, False: ORANGE, True: BLUE}
LABELS = {None: "torch's own", False: "overlap=false", True: "overlap=true"}
THICK = 0.36
SHIFTS = {None: 0.0, False: -THICK / 2, True: THICK / 2}


def _draw(rows: Sequence[Row], caption: str, folder: Path) -> None:
    """network-<workers>.svg and .png: speedups over plain DDP without compute, a panel a model and
    rate."""
    shown = [r for r in rows if r["compute"] == NONE and r.get("speedup") and r["method"] != PLAIN]
    if not shown:
        return
    models, rates, methods = (
        list(dict.fromkeys(row[name] for row in shown)) for name in ("model", "rate", "method")
    )
    with style():
        height = 0.9 + len(models) * (0.5 + 0.24 * len(methods))
        figure = Figure(figsize=(2.0 + 2.6 * len(rates), height), layout="constrained")
        axes = figure.subplots(len(models), len(rates), squeeze=False, sharey=True, sharex="col")
        for (model, rate), panel in zip(itertools.product(models, rates), axes.flat, strict=True):
            for row in shown:
                if (row["model"], row["rate"]) == (model, rate):
                    place = methods.index(row["method"]) + SHIFTS[row["overlap"]]
                    whiskers(panel, place, row, "speedup", THICK, color=COLOURS[row["overlap"]])
            panel.set_xscale("log")
            plain_log(panel.xaxis)
            panel.axvline(1.0, color=GREEN, linewidth=0.8)
            panel.grid(axis="y", visible=False)
            panel.set_title(f"{model}, {rate}", loc="left")
            panel.set_yticks(range(len(methods)), [METHODS[method].label for method in methods])
        axes[0, 0].invert_yaxis()
        for panel in axes[-1]:
            panel.set_xlabel("times as fast as plain DDP")
        handles = [
            panel.barh([0], [0], color=colour, label=LABELS[overlap])
            for overlap, colour in COLOURS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        title = f"Steps replayed without compute, {shown[0]['workers']} workers\n{caption}"
        figure.suptitle(title, fontsize=8, x=0.01, ha="left", wrap=True)
    save(figure, folder, f"network-{shown[0]['workers']}")
