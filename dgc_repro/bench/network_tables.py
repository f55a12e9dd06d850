"""The measured points as rows, tables, verdicts and figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from dgc_repro.bench.network_points import (
    AGAIN,
    GPU,
    GPU_SECONDS,
    LOOPBACK,
    METHODS,
    NONE,
    PLAIN,
    V100_FLOPS,
    V100_SHARE,
    payload_rate,
)
from dgc_repro.bench.record import MODELS, Recorded
from dgc_repro.bench.replay import AFTER_BACKWARD, PER_BUCKET, SPANS, TORCH
from dgc_repro.bench.tables import BUSY_CORES, Machine, Row, Spread, markdown, write_csv
from dgc_repro.network.units import bits_per_second
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
SPREADS = ("step_ms", "speedup", "limit_x", "overlap_limit_x", "hidden", "communicate_x")
NUMBERS = (
    *(f"{name}{end}" for name in SPREADS for end in ("", "_q1", "_q3")),
    *("n", "limit_ms", "overlap_limit_ms", "judged_x", "payload_mb", "wire_mb", "counter_mb"),
    *("compress_ms", "communicate_ms", "decompress_ms", "exposed_ms", "processor_ms"),
)
TEXTS = (
    *("limit_verdict", "slower_verdict", "hidden_verdict", "communicate_verdict"),
    *("collectives", "where"),
)
WORDS = (
    *("met", "unclear", "missed", "indicative, met", "indicative, missed"),
    "too small to be seen",
)
Key = tuple[str, int, str, str]
Points = Mapping[tuple[Key, str, str], Mapping[str, Any]]

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
    "compress ms": "compress_ms",
    "communicate ms": "communicate_ms",
    "decompress ms": "decompress_ms",
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
    machine = _of_points(machine, known)
    points: Points = {(_key(p), p["method"], p["junction"]): p for p in known}
    rows = [_row(points, place) for place in sorted(points, key=_order)]
    write_csv(folder / "network.csv", [], rows, {"cpu": machine.cpu, "cores": machine.cores})
    head = machine.lines(_described(rows, recorded))
    text = "\n".join([_targets(rows, head), _missing(missing), _speedups(rows), *_tables(rows)])
    (folder / "network.md").write_text(text, encoding="utf-8")
    for workers in sorted({row["workers"] for row in rows}):
        _draw([row for row in rows if row["workers"] == workers], machine.caption, folder)
    return "\n".join([_targets(rows, head), _missing(missing), _speedups(rows)])


def _of_points(machine: Machine, known: Sequence[Mapping[str, Any]]) -> Machine:
    """Of when and with what the points were measured, which may be more than one day."""
    times = sorted(point["time"] for point in known)
    return replace(
        machine,
        torch_version=", ".join(sorted({point["torch"] for point in known})),
        date=times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}",
        busy_cores=max(point["busy_cores"] for point in known),
    )


def _missing(missing: Mapping[str, Sequence[str]]) -> str:
    """The list of what has no numbers."""
    if not missing:
        return ""
    lines = [
        f"- {reason}:\n" + "\n".join(f"  - {p}" for p in missing[reason]) for reason in missing
    ]
    return "\n".join(["## Not measured", "", *lines, ""])


def _key(point: Mapping[str, Any]) -> Key:
    return point["model"], point["workers"], point["rate"], point["compute"]


def _order(place: tuple[Key, str, str]) -> tuple[Any, ...]:
    (model, workers, rate, compute), method, junction = place
    speed = payload_rate(rate) or float("inf")
    ranks = list(MODELS).index(model), [PLAIN, AGAIN, *METHODS].index(method)
    return (workers, speed, compute != NONE, compute, *ranks, junction)


def _row(points: Points, place: tuple[Key, str, str]) -> dict[str, Any]:
    """One point with all that follows from it and from its neighbours."""
    (_, _, rate, _), method, junction = place
    point = points[place]
    ours = junction != TORCH
    row: dict[str, Any] = {
        **{name: point[name] for name in ("model", "workers", "rate", "compute")},
        "exchange": f"{point['label']}, {junction}" if ours else point["label"],
        "method": method,
        "junction": junction,
        "compute_ms": 1e3 * (point["forward_seconds"] + point["backward_seconds"]),
        **dict.fromkeys(NUMBERS),
        "does_not_run": point.get("reason", ""),
        **dict.fromkeys(TEXTS, ""),
        "measured": point["time"],
        "code": point["code"],
        "torch_version": point["torch"],
        "session": point["session"],
        "busy_cores": point["busy_cores"],
    }
    if "reason" in point:
        return row
    row |= Spread.of([1e3 * s for s in point["seconds"]]).columns("step_ms")
    row |= {
        "n": len(point["seconds"]),
        "payload_mb": point["payload_bytes"] / 1e6,
        "wire_mb": point["total_wire_bytes"] / 1e6,
        "counter_mb": point["counter_bytes"] / 1e6 if point["counter_bytes"] else None,
        "collectives": ", ".join(f"{n:g} {kind}" for kind, n in sorted(point["calls"].items())),
        "processor_ms": 1e3 * median(point["processor_seconds"]),
        "exposed_ms": 1e3 * median(point["exposed_seconds"]),
    }
    if ours:
        row |= {f"{span}_ms": median(point[f"{span}_ms"]) for span in SPANS}
    slower, compared = _slowdowns(point)
    if method == PLAIN:
        row["speedup"] = 1.0
    elif slower:
        row |= Spread.of([1 / ratio for ratio in slower]).columns("speedup")
        if ours and rate != LOOPBACK and bits_per_second("rates", rate) <= SLOW_RATE:
            row["slower_verdict"] = _judged(Spread.of(slower), compared, at_most=SLOWER_AT_MOST)
    if speed := payload_rate(rate):
        _against_limit(row, point, speed, ours)
        _overlap(row, points, place)
        _communication(row, points, place)
    return row


def _slowdowns(point: Mapping[str, Any]) -> tuple[list[float], int]:
    """Ours over plain DDP: by the step right before, or each step by each of plain DDP's of the same
    session; and of how many steps of the one or the other, whichever are fewer."""
    steps, plain = point["seconds"], point["plain_seconds"]
    if point["beside_seconds"]:
        pairs = zip(steps, point["beside_seconds"], strict=True)
        return [o / p for o, p in pairs], len(steps)
    return [o / p for o in steps for p in plain], min(len(steps), len(plain))


def _against_limit(row: dict[str, Any], point: Mapping[str, Any], speed: float, ours: bool) -> None:
    """Step over compute + wire bytes / bandwidth, and over what perfect overlap would leave of it, by
    which a step per bucket is judged."""
    wire = point["total_wire_bytes"] / speed
    forward, backward = point["forward_seconds"], point["backward_seconds"]
    limits = {"limit": forward + backward + wire}
    if row["junction"] != AFTER_BACKWARD and backward > 0:  # without compute it is the same limit
        limits["overlap_limit"] = forward + max(backward, wire)
    for name, limit in limits.items():
        ratio = Spread.of([s / limit for s in point["seconds"]])
        row |= {f"{name}_ms": 1e3 * limit, **ratio.columns(f"{name}_x")}
    if not ours:
        return
    row["judged_x"] = ratio.median
    row["limit_verdict"] = _judged(ratio, len(point["seconds"]), at_most=LIMIT_AT_MOST)
    parts = {
        "bytes on the link": 1e3 * wire,
        "compress": row["compress_ms"],
        "decompress": row["decompress_ms"],
    }
    waited = row["step_ms"] - row["compute_ms"]
    if row["junction"] == AFTER_BACKWARD:
        parts["communicate beyond bytes"] = row["communicate_ms"] - 1e3 * wire
        parts["other"] = waited - sum(parts.values())
    else:  # its parts run beside each other and beside backward: no sum
        parts["side by side in"] = waited
    row["where"] = ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items())


def _overlap(row: dict[str, Any], points: Points, place: tuple[Key, str, str]) -> None:
    """(step without compute + compute - step with it) / min(backward, step without compute), from 0 to
    1, for every two steps of both. What is gained is what runs behind the sleep, processor's work or the
    link's; so the most that can be gained is the shorter of backward and all of the exchange."""
    (model, workers, rate, compute), method, junction = place
    without = points.get(((model, workers, rate, NONE), method, junction), {})
    alone, point = without.get("seconds"), points[place]
    backward = point["backward_seconds"]
    if junction == AFTER_BACKWARD or compute == NONE or not alone:
        return
    computed = point["forward_seconds"] + backward
    shares = [
        (exchange + computed - step) / min(backward, exchange)
        for exchange in alone
        for step in point["seconds"]
    ]
    hidden = Spread.of([min(1.0, max(0.0, share)) for share in shares])
    row |= hidden.columns("hidden")
    if junction == TORCH or workers != 2 or bits_per_second("rates", rate) != 1e8:
        return
    if min(backward, median(alone)) < SEEN_FROM * median(point["seconds"]):
        row["hidden_verdict"] = "too small to be seen"
    else:
        steps = _common_steps(without, point, "seconds")
        row["hidden_verdict"] = _judged(hidden, steps, at_least=HIDDEN_AT_LEAST)


def _communication(row: dict[str, Any], points: Points, place: tuple[Key, str, str]) -> None:
    """Dense's time in communication over this method's, both at this junction."""
    key, method, junction = place
    dense, point = points.get((key, "dense", junction), {}), points[place]
    if junction == TORCH or not dense.get("communicate_ms"):
        return
    ratio = Spread.of([d / o for d in dense["communicate_ms"] for o in point["communicate_ms"]])
    row |= ratio.columns("communicate_x")
    _, workers, rate, compute = key
    if (workers, bits_per_second("rates", rate), compute, junction) == (
        2,
        1e8,
        NONE,
        AFTER_BACKWARD,
    ):
        steps = _common_steps(dense, point, "communicate_ms")
        least = COMMUNICATE_AT_LEAST.get(method)
        row["communicate_verdict"] = _judged(ratio, steps, at_least=least)


def _common_steps(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> int:
    """The fewer steps of two points; none, as proof, where they are of different sessions."""
    return min(len(one[name]), len(other[name])) if one["session"] == other["session"] else 0


def _judged(
    spread: Spread, steps: int, *, at_most: float | None = None, at_least: float | None = None
) -> str:
    """met, missed, or unclear where the target lies inside the middle half; of fewer than 3 steps
    indicative only; nothing where there is no target."""
    target = at_most if at_least is None else at_least
    if target is None:
        return ""
    below = spread.median <= target if at_least is None else spread.median < target
    side = "met" if below == (at_least is None) else "missed"
    if steps < INDICATIVE_BELOW:
        return f"indicative, {side}"
    return "unclear" if spread.low <= target <= spread.high else side


def _described(
    rows: Sequence[Mapping[str, Any]],
    recorded: Mapping[str, Recorded],
) -> str:
    steps = [row["n"] for row in rows if row["n"]]
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
        "slowest rank's; spans are means over ranks, per bucket they overlap. Limit: compute + bytes on "
        "the wire / bandwidth, both with the headers of full packets (66 bytes of 1514); bytes by the "
        "ledger, signals included. Overlapped limit, by which per_bucket with compute is judged: forward "
        "+ the longer of backward and bytes / bandwidth. Hidden by overlap: (step without compute + "
        "compute - step with it) / the shorter of backward and the step without compute, cut to 0 to "
        f"100 %. Verdicts of fewer than {INDICATIVE_BELOW} steps are indicative. Points measured while "
        f"over {BUSY_CORES:g} cores did other work: {dirty} of {len(rows)}."
    )


TARGETS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    f"a step takes at most {LIMIT_AT_MOST} x limit (overlapped: per bucket with compute)": (
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


MISSED_COLUMNS = {
    "target": "target",
    "point": "point",
    "exchange": "exchange",
    "measured": "measured as",
    "verdict": "missed by",
    "step ms": "step_ms",
    "what the step's ms went to, compute aside": "where",
}


def _targets(rows: Sequence[Mapping[str, Any]], head: Sequence[str]) -> str:
    """How many points meet each target, and where it is missed what the time went to."""
    counted: list[Row] = []
    missed: list[Row] = []
    for target, (column, shown) in TARGETS.items():
        judged = [row for row in rows if row[column]]
        counts = {word: str(sum(row[column] == word for row in judged)) for word in WORDS}
        counted.append({"target": target, **counts})
        missed += [
            {
                **row,
                "target": target,
                "point": _place(row),
                "measured as": shown(row),
                "missed by": row[column],
            }
            for row in judged
            if row[column].endswith("missed")
        ]
    texts = [markdown("Network", head, {name: name for name in counted[0]}, counted)]
    if missed:
        texts.append(markdown("Missed", [], MISSED_COLUMNS, missed, level=2))
    silent = dict.fromkeys(
        f"{r['exchange']} ({r['model']}, {r['workers']} workers): {r['does_not_run']}"
        for r in rows
        if r["does_not_run"]
    )
    if silent:
        texts.append(f"Does not run: {'; '.join(silent)}\n")
    return "\n".join(texts)


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['workers']} workers, {row['rate']}, compute {row['compute']}"


def _speedups(rows: Sequence[Mapping[str, Any]]) -> str:
    """Speedups over plain DDP, a column a model and rate, a table a number of workers and compute."""
    texts = []
    tables = sorted({(r["workers"], r["compute"] != NONE, r["compute"]) for r in rows})
    for workers, _, compute in tables:
        table: dict[str, dict[str, Any]] = {}
        columns = {"exchange": "exchange"}
        for row in rows:
            if (row["workers"], row["compute"]) == (workers, compute) and row["speedup"]:
                name = f"{row['model']} {row['rate']}"
                columns[name] = name
                table.setdefault(row["exchange"], {"exchange": row["exchange"]})[name] = float(
                    row["speedup"]
                )
        if table:
            title = f"Speedup over plain DDP, {workers} workers, compute {compute}"
            texts.append(markdown(title, [], columns, list(table.values()), level=2))
    return "\n".join(texts)


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Everything, a table a model, number of workers, rate and compute."""
    texts = []
    for place in dict.fromkeys(map(_place, rows)):
        found = [row for row in rows if _place(row) == place]
        columns = {
            heading: column
            for heading, column in WHOLE_COLUMNS.items()
            if any(row[column] not in (None, "") for row in found)
        }
        texts.append(markdown(place, [], columns, found, level=2))
    return texts


COLOURS = {TORCH: BLACK, AFTER_BACKWARD: ORANGE, PER_BUCKET: BLUE}
THICK = 0.36


def _draw(rows: Sequence[Mapping[str, Any]], caption: str, folder: Path) -> None:
    """network-<workers>.svg and .png: speedups over plain DDP without compute, a panel a model and
    rate."""
    shown = [r for r in rows if r["compute"] == NONE and r["speedup"] and r["method"] != PLAIN]
    if not shown:
        return
    models = list(dict.fromkeys(row["model"] for row in shown))
    rates = list(dict.fromkeys(row["rate"] for row in shown))
    methods = list(dict.fromkeys(row["method"] for row in shown))
    labels = {row["method"]: row["exchange"].removesuffix(f", {row['junction']}") for row in shown}
    with style():
        figure = Figure(
            figsize=(2.0 + 2.6 * len(rates), 0.9 + len(models) * (0.5 + 0.24 * len(methods))),
            layout="constrained",
        )
        axes = figure.subplots(len(models), len(rates), squeeze=False, sharey=True, sharex="col")
        for (model, rate), panel in zip(itertools.product(models, rates), axes.flat, strict=True):
            _bars(panel, [r for r in shown if (r["model"], r["rate"]) == (model, rate)], methods)
            panel.set_title(f"{model}, {rate}", loc="left")
            panel.set_yticks(range(len(methods)), [labels[method] for method in methods])
        axes[0, 0].invert_yaxis()
        for panel in axes[-1]:
            panel.set_xlabel("times as fast as plain DDP")
        handles = [
            panel.barh([0], [0], color=colour, label=name.replace("_", " "))
            for name, colour in COLOURS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        figure.suptitle(
            f"Steps replayed without compute, {shown[0]['workers']:.0f} workers\n{caption}",
            fontsize=8,
            x=0.01,
            ha="left",
        )
    save(figure, folder, f"network-{shown[0]['workers']}")


def _bars(panel: Any, rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> None:
    shift = {TORCH: 0.0, AFTER_BACKWARD: -THICK / 2, PER_BUCKET: THICK / 2}
    for row in rows:
        low, high = row["speedup"] - row["speedup_q1"], row["speedup_q3"] - row["speedup"]
        panel.barh(
            methods.index(row["method"]) + shift[row["junction"]],
            row["speedup"],
            height=THICK,
            color=COLOURS[row["junction"]],
            xerr=[[low], [high]],
            error_kw={"linewidth": 0.8},
        )
    panel.set_xscale("log")
    plain_log(panel.xaxis)
    panel.axvline(1.0, color=GREEN, linewidth=0.8)
    panel.grid(axis="y", visible=False)
