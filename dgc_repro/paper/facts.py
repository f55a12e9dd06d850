"""What a page and a figure say of the runs they are made of: model, data, workers, n, hardware, code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dgc_repro.paper.records import FREE_KEYS, Run

PAPER_SCALE = "paper"
FULL_MODELS = {
    "ResNet18": 11_173_962,
    "ResNet101": 44_549_160,
    "VGG16": 138_365_992,
    "LSTM": 66_034_000,
    "LSTM, tied": 51_034_000,
}
"""Parameters of the models at full size, as the papers train them. Tied: one matrix for words in and out."""
BUSY_CORES = 0.5
"""Cores of other work from which timings are disturbed."""
ALIKE = (
    *("scale.name", "launch.kind", "launch.workers", "dataset", "model", "optimizer", "schedule"),
    *("train.epochs", "train.batch_size"),
)
"""Settings that all training runs of one table share."""


def distinct(values: Iterable[Any]) -> str:
    """Every distinct value, in order; '-' for none."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "-"


def scale_text(scale: str) -> str:
    """The scale as it stands beside every number."""
    return "paper scale" if scale == PAPER_SCALE else f"reduced scale: {scale}"


def model_text(run: Run) -> str:
    """The model with layers, width and parameters. A reduced model does not carry the full model's name:
    "17-layer ResNet, width 12, 0.33 M parameters, in place of ResNet101 (44.5 M)"."""
    model = run.setting("model") or {}
    name = str(model.get("_target_", "")).rpartition(".")[2]
    count = run.summary.get("parameters")
    size = f"{count / 1e6:.3g} M parameters" if count else "parameters not recorded"
    full = FULL_MODELS.get(f"{name}, tied" if model.get("tied") else name)
    if full is None:
        return f"{name or 'model not recorded'}, {size}"
    width = model.get("width") or model.get("hidden")
    family, layers = _family(name, model)
    if count and count >= 0.9 * full:
        return f"{name}, {size}"
    wide = f", width {width}" if width else ""
    return f"{layers}-layer {family}{wide}, {size}, in place of {name} ({full / 1e6:.3g} M)"


def _family(name: str, model: Mapping[str, Any]) -> tuple[str, int]:
    """The family of a model, and its layers: weighted ones, the stem and the classifier included."""
    if name == "ResNet101":
        return "ResNet", 3 * sum(model.get("blocks") or (3, 4, 23, 3)) + 2
    if name == "ResNet18":
        return "ResNet", 18
    if name == "VGG16":
        return "VGG", 16
    return "LSTM", int(model.get("layers", 2))


def world_text(run: Run) -> str:
    """How many workers of which kind."""
    return f"{run.setting('launch.workers')} {run.setting('launch.kind')} workers"


def data_text(runs: Sequence[Run]) -> str:
    """The data sets as read; '-' where none was."""
    found = (run.environment.get("data") for run in runs)
    return distinct(data for data in found if data != "none")


def seeds_text(runs: Sequence[Run]) -> str:
    """n by row, where rows differ."""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.row] = counts.get(run.row, 0) + 1
    low, high = min(counts.values(), default=0), max(counts.values(), default=0)
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def code_text(environments: Sequence[Mapping[str, Any]]) -> str:
    """Every commit and version of torch."""
    commits = [
        str(e.get("commit", "unknown"))[:12]
        + (" + uncommitted changes" if e.get("dirty") else "")
        + ("" if e.get("commit_in_history", True) else " (not in this history)")
        for e in environments
    ]
    return f"{distinct(commits)}; torch {distinct(e.get('torch') for e in environments)}"


def time_text(runs: Sequence[Run]) -> str:
    """Which seconds are modelled, and from what."""
    computes = {
        (run.model or run.row): ms
        for run in runs
        if (ms := run.setting("train.compute_ms")) is not None
    }
    if not computes:
        return "measured on this machine; no network is modelled"
    scales = {
        (run.model or run.row): times
        for run in runs
        if (times := run.setting("network.message_scale")) is not None
    }
    workers = distinct(run.setting("network.as_workers") for run in runs)
    return (
        f"modelled: network {distinct(run.setting('network.source') for run in runs)}, collectives of "
        f"{workers} workers, one a step; compute time assumed "
        f"({', '.join(f'{name} {ms:g} ms' for name, ms in computes.items())} a step); compression and "
        "decompression count as free; message sizes of the reduced models times "
        f"{', '.join(f'{name} {times:g}' for name, times in scales.items())}. Measured seconds are wall time "
        "here, where simulated workers take turns"
    )


def facts(
    runs: Sequence[Run], scale: str, more: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """The head of a page of trained runs."""
    environments = [run.environment for run in runs]
    # A run that was stopped and continued has an environment for each stretch.
    stretches = [stretch for e in environments for stretch in (*e.get("before", ()), e)]
    models = {run.model: model_text(run) for run in runs if run.setting("model")}
    said = [f"{name}: {text}" if name else text for name, text in models.items()]
    continued = sum(bool(e.get("before")) for e in environments)
    stopped = f"; {continued} of {len(runs)} runs were stopped and continued" if continued else ""
    return (
        (
            "scale",
            scale_text(scale) + ("" if scale == PAPER_SCALE else ", not the paper's setting"),
        ),
        *([("model", "; ".join(said))] if said else []),
        *([("data", data_text(runs))] if data_text(runs) != "-" else []),
        *([("workers", distinct(map(world_text, runs)))] if said else []),
        *([("seconds", time_text(runs))] if said else []),
        ("seeds", f"{seeds_text(runs)} a row{stopped}"),
        *more,
        ("hardware", distinct(map(_hardware, stretches))),
        ("code", code_text(stretches)),
    )


def _hardware(environment: Mapping[str, Any]) -> str | None:
    """Processor and cores; of later records the instruction set, which decides how sums are rounded."""
    vectors = environment.get("vectors")
    hardware = environment.get("hardware")
    return f"{hardware}, {vectors}" if hardware and vectors else hardware


def caption(runs: Sequence[Run], scale: str) -> str:
    """One line for a figure: scale, model, data, workers, n."""
    models = distinct(model_text(run) for run in runs if run.setting("model"))
    parts = [
        scale_text(scale),
        *([models] if models != "-" else []),
        *([data_text(runs)] if data_text(runs) != "-" else []),
        *([distinct(map(world_text, runs))] if models != "-" else []),
        seeds_text(runs),
    ]
    return ", ".join(parts)


def busy(runs: Sequence[Run]) -> str:
    """A warning where other work ran while something was timed, else empty."""
    cores = max((float(run.environment.get("busy_cores") or 0.0) for run in runs), default=0.0)
    if cores <= BUSY_CORES:
        return ""
    return (
        f"WARNING: other work used up to {cores:.2f} cores during the measurement; its milliseconds are too "
        "long. Repeat it on an idle machine: delete its folders under runs/ first."
    )


def short(value: Any) -> str:
    """A config value in one line: a group by its class and settings, without the folder of the data."""
    if isinstance(value, dict):
        settings = {k: v for k, v in value.items() if k not in ("_target_", "name", *FREE_KEYS)}
        name = str(value.get("_target_", value.get("name", ""))).rpartition(".")[2]
        inside = ", ".join(f"{k}={short(v)}" for k, v in sorted(settings.items()))
        return f"{name}({inside})" if name and inside else name or inside
    if isinstance(value, list):
        return "[" + ", ".join(short(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def used(runs: Sequence[Run], key: str) -> str:
    """The value of a config key in these runs, by row where rows differ. A wrapper's settings count for the
    runs that have the wrapper."""
    group, _, rest = key.partition(".")
    wrapper = rest.partition(".")[0] if group == "wrapper" else ""
    rows: dict[str, list[str]] = {}
    for run in runs:
        value = run.setting(key, "")
        if value == "" or (wrapper and wrapper not in run.setting("wrap", [wrapper])):
            continue
        found = rows.setdefault(short(value), [])
        if run.row not in found:
            found.append(run.row)
    if len(rows) == 1 and {run.row for run in runs} == set(*rows.values()):
        return next(iter(rows))
    return "; ".join(f"{_named(names)}: {value}" for value, names in rows.items()) or "-"


def _named(rows: Sequence[str]) -> str:
    """Rows by name, or their number where they are many."""
    return ", ".join(rows) if len(rows) <= 3 else f"{len(rows)} rows"


def traces(runs: Sequence[Run]) -> list[str]:
    """One line a run whose policy changed its plan: when, from what to what, why."""
    found = []
    for run in runs:
        when = "epoch" if "epoch" in run.trace.columns else "step"
        if run.trace.empty or not {when, "label", "next_label"} <= set(run.trace.columns):
            continue
        changed = run.trace[run.trace["label"] != run.trace["next_label"]]
        steps = "; ".join(
            f"after {when} {line[when]:.0f} {line['label']} to {line['next_label']}"
            + (f" ({line['reason']})" if line.get("reason") else "")
            for line in json.loads(changed.to_json(orient="records"))
        )
        if steps:
            visited = ", ".join(dict.fromkeys(map(str, run.trace["label"])))
            found.append(f"{run.row}, seed {run.seed}: used {visited}. {steps}")
    return found
