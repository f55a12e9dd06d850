"""What a page and a figure say of the runs they are made of: model, data, workers, n, hardware, code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from dgc_repro.names import SAME_VALUE, conf_dir, scale_of
from dgc_repro.paper.records import FREE_KEYS, Run

PAPER_SCALE = "paper"
COMPONENTS = ("dataset", "model", "optimizer", "schedule")
WITHOUT_EFFECT = ("resume_from", "reshard", "checkpoint_every_epochs", "profile")
FULL_MODELS = {
    "ResNet18": ("ResNet", 11_173_962),
    "ResNet101": ("ResNet", 44_549_160),
    "VGG16": ("VGG", 138_365_992),
    "VGG11": ("VGG", 9_756_426),  # of 10 classes
    "LSTM": ("LSTM", 66_034_000),
    "LSTM, tied": ("LSTM", 51_034_000),
}
"""Family and number of parameters of the models at full size, as the papers train them. Tied: one matrix for
words in and out."""
IN_HISTORY = "commit_in_history"
"""The key of a record whose commit is not in the git history; publish.py sets it."""
AUTOCAST = {
    name: f"{name} autocast in forward and backward{scaled}; parameters and gradients in float32"
    for name, scaled in (("bf16", ""), ("fp16", " of a scaled loss"))
}
"""What a page says of each half precision."""
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
    full_name = f"{name}, tied" if model.get("tied") else name
    if full_name not in FULL_MODELS:
        return f"{name or 'model not recorded'}, {size}"
    family, full = FULL_MODELS[full_name]
    if count and count >= 0.9 * full:
        return f"{name}, {size}"
    width = model.get("width") or model.get("hidden")
    wide = f", width {width}" if width else ""
    layers = _layers(name, model)
    return f"{layers}-layer {family}{wide}, {size}, in place of {name} ({full / 1e6:.3g} M)"


def _layers(name: str, model: Mapping[str, Any]) -> int:
    """The weighted layers, the stem and the classifier included."""
    if name == "ResNet101":
        blocks = model.get("blocks")
        return 3 * sum(blocks if isinstance(blocks, list) else (3, 4, 23, 3)) + 2
    return int(name[-2:]) if name != "LSTM" else int(model.get("layers", 2))


def worlds(runs: Sequence[Run]) -> str:
    """The worlds of the runs that have a model, by kind, the smallest first."""
    trained = [run for run in runs if run.setting("model")]
    counts: dict[str, dict[str, None]] = {}
    for run in sorted(trained, key=lambda run: int(run.setting("launch.workers") or 0)):
        kind, count = str(run.setting("launch.kind")), str(run.setting("launch.workers"))
        counts.setdefault(kind, {})[count] = None
    return distinct(_world(list(own), kind) for kind, own in counts.items())


def batch_of(run: Run) -> int:
    """Images, or columns of text, of a step, over all workers and micro-steps."""
    keys = ("train.batch_size", "train.accumulate", "launch.workers")
    return math.prod(int(run.setting(key)) for key in keys)


def world_text(run: Run) -> str:
    """How many workers of which kind."""
    return _world([str(run.setting("launch.workers"))], run.setting("launch.kind"))


def _world(counts: Sequence[str], kind: str) -> str:
    *others, last = counts
    said = f"{', '.join(others)} or {last}" if others else last
    return f"{said} {kind} worker{'' if counts == ['1'] else 's'}"


def _precision(trained: Sequence[Run]) -> str:
    """Which half precision is used, and of which models where others have another; empty where all are in
    float32."""
    by_precision = {name: [r for r in trained if r.precision == name] for name in AUTOCAST}
    half = {AUTOCAST[name]: runs for name, runs in by_precision.items() if runs}
    if len(half) == 1 and len(*half.values()) == len(trained):
        return next(iter(half))
    texts = [f"{words}, of {distinct(map(model_text, runs))}" for words, runs in half.items()]
    if texts and sum(map(len, half.values())) < len(trained):
        texts.append("all else in float32")
    return "; ".join(texts)


def data_text(runs: Sequence[Run]) -> str:
    """The data sets as read; '-' where none was."""
    found = (run.environment.get("data") for run in runs)
    return distinct(data for data in found if data != "none")


def seeds_text(runs: Sequence[Run]) -> str:
    """n by row, where rows differ."""
    counts = Counter(run.row for run in runs).values()
    low, high = min(counts, default=0), max(counts, default=0)
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def code_text(environments: Sequence[Mapping[str, Any]]) -> str:
    """Every commit and version of torch."""
    commits = [
        str(e.get("commit", "unknown"))[:12]
        + (" + uncommitted changes" if e.get("dirty") else "")
        + ("" if e.get(IN_HISTORY, True) else " (not in this history)")
        for e in environments
    ]
    return f"{distinct(commits)}; torch {distinct(e.get('torch') for e in environments)}"


def time_text(runs: Sequence[Run]) -> str:
    """Which seconds are modelled, and from what."""

    def by_model(key: str, unit: str = "") -> str:
        known = {
            run.model or run.row: f"{value:g}{unit}"
            for run in runs
            if (value := run.setting(key)) is not None
        }
        return ", ".join(f"{name} {text}" for name, text in known.items())

    computes = by_model("train.compute_ms", " ms")
    if not computes:
        return "measured on this machine; no network is modelled"
    source, workers = (
        distinct(run.setting(f"network.{key}") for run in runs) for key in ("source", "as_workers")
    )
    return (
        f"modelled: network {source}, collectives of {workers} workers, one a step; compute time assumed "
        f"({computes} a step); compression and decompression count as free; message sizes of the reduced "
        f"models times {by_model('network.message_scale')}"
    )


def facts(
    runs: Sequence[Run], scale: str, more: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """The head of a page of trained runs. ``more``: facts that come after the usual ones, or replace them."""
    environments = [run.environment for run in runs]
    # A run that was stopped and continued has an environment for each stretch.
    stretches = [stretch for e in environments for stretch in (*e.get("before", ()), e)]
    found_in = {run.model or run.row: run for run in runs if run.setting("model")}
    models = {
        name: distinct(model_text(run) for run in runs if (run.model or run.row) == name)
        for name in found_in
    }
    continued = sum(bool(e.get("before")) for e in environments)
    stopped = f"; {continued} of {len(runs)} runs were stopped and continued" if continued else ""
    full = scale == PAPER_SCALE
    texts = list(dict.fromkeys(models.values()))
    if len(texts) == len(models):  # else a name is of a method, or of a setting
        texts = [f"{name}: {text}" for name, text in models.items()]
    found = {
        "scale": scale_text(scale) + ("" if full else ", not the paper's setting"),
        "model": "; ".join(texts),
        "data": data_text(runs).strip("-"),
        "workers": worlds(runs).strip("-"),
        "precision": _precision([run for run in runs if run.setting("model")]),
        "seconds": time_text(runs) if models else "",
        "seeds": f"{seeds_text(runs)} a row{stopped}",
    }
    return (
        *((name, text) for name, text in (found | dict(more)).items() if text),
        ("hardware", distinct(map(_hardware, stretches))),
        ("code", code_text(stretches)),
    )


def departures(runs: Sequence[Run], scale: str) -> list[tuple[str, str]]:
    """The settings of all runs that depart from the scale and from the YAML files that it uses, each with the
    usual value: a fact of the page, or none."""
    if not runs:
        return []
    conf, run = conf_dir(), runs[0]
    family = run.setting("scale.family", "")
    if (sizes := scale_of(family, scale)) is None:  # custom
        scale, sizes = "none", {}
    base = yaml.safe_load((conf / "config.yaml").read_text("utf-8"))
    chosen: dict[str, str] = {}
    for node in (*base["defaults"], *sizes.get("defaults", ())):
        if isinstance(node, dict):
            chosen |= {key.removeprefix("override /"): name for key, name in node.items()}
    files = {group: conf / group / f"{chosen[group]}.yaml" for group in COMPONENTS}
    stated = {group: yaml.safe_load(path.read_text("utf-8")) for group, path in files.items()}
    found = []
    for group, of_file in {**stated, "train": base["train"]}.items():
        own, usual = run.setting(group), of_file | sizes.get(group, {})
        if own.get("_target_") != usual.get("_target_"):
            found.append(f"{group}={short(own)} ({chosen[group]})")
            continue
        found += [
            f"{group}.{key}={short(value)} ({short(usual.get(key)).replace('???', 'to give')})"
            for key, value in own.items()
            if value != usual.get(key)
            and key not in (*FREE_KEYS, *WITHOUT_EFFECT)
            and (value, usual.get(key)) != SAME_VALUE.get(f"{group}.{key}")
        ]
    name = f"{family}/{scale}".strip("/")
    return [(f"differs from scale {name}", ", ".join(found))] if found else []


def _hardware(environment: Mapping[str, Any]) -> str | None:
    """Processor and cores; of later records the instruction set, which decides how sums are rounded."""
    vectors = environment.get("vectors")
    hardware = environment.get("hardware")
    return f"{hardware}, {vectors}" if hardware and vectors else hardware


def caption(runs: Sequence[Run], scale: str) -> str:
    """Return a sentence for the caption of a figure: scale, model, data, workers, n."""
    trained = [run for run in runs if run.setting("model")]
    models = distinct(map(model_text, trained))
    parts = (models, data_text(runs), worlds(trained))
    said = "; ".join((scale_text(scale), *(p for p in parts if p != "-"), seeds_text(runs)))
    return f"{said[:1].upper()}{said[1:]}."


def line(runs: Sequence[Run], scale: str) -> list[str]:
    """Return what stands under the title of a figure, the most important first: scale, n, data, workers."""
    trained = [run for run in runs if run.setting("model")]
    found = (scale_text(scale), seeds_text(runs), data_text(runs), worlds(trained))
    return [part for part in found if part != "-"]


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
        return "[" + ", ".join(map(short, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def used(runs: Sequence[Run], key: str, labels: Mapping[str, str] | None = None) -> str:
    """The value of a config key in these runs, by row where rows differ (``labels``: in words). A wrapper's
    settings count for the runs that have the wrapper."""
    labels = labels or {}
    group, _, rest = key.partition(".")
    wrapper = rest.partition(".")[0] if group == "wrapper" else ""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        value = run.setting(key, "")
        if value != "" and (not wrapper or wrapper in run.setting("wrap", [wrapper])):
            text = "not set" if value is None else short(value)
            rows.setdefault(text, {})[run.row] = None
    if len(rows) == 1 and {run.row for run in runs} == set(*rows.values()):
        return next(iter(rows))
    # Many rows by their number.
    named = {
        value: " and ".join(labels.get(row, row) for row in own)  # a label may have a comma
        if len(own) <= 3
        else f"{len(own)} rows"
        for value, own in rows.items()
    }
    return "; ".join(f"{names}: {value}" for value, names in named.items()) or "-"


def traces(runs: Sequence[Run], labels: Mapping[str, str]) -> pd.DataFrame | None:
    """Return a line for each run whose policy changed its plan from epoch to epoch: the epochs with each
    plan. ``labels``: rows in words. None where no policy did."""
    found: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        if run.trace.empty or not {"epoch", "label", "next_label"} <= set(run.trace.columns):
            continue
        plan, nexts = str(run.trace["label"].iloc[0]), run.trace.set_index("epoch")["next_label"]
        name = f"{labels.get(run.row, run.row)}, seed {run.seed}"
        for epoch in range(1, len(run.epochs) + 1):
            found.setdefault(name, {}).setdefault(plan, []).append(epoch)
            plan = str(nexts.get(epoch, plan))
    found = {name: own for name, own in found.items() if len(own) > 1}
    plans = dict.fromkeys(plan for own in found.values() for plan in own)
    rows = [[name, *(spans(own.get(plan, ())) for plan in plans)] for name, own in found.items()]
    return pd.DataFrame(rows, columns=["epochs with", *plans]) if rows else None


def spans(numbers: Sequence[int]) -> str:
    """Ascending whole numbers in a text: "1 to 3, 7"; empty for none."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)
