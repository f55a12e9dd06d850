"""``recommend``: which setting to use for a model on a network, and what it costs in quality.

``python -m dgc_repro recommend network=ethernet_1gbit workers=8 model=resnet101`` answers in seconds: it
reads the published benchmark and models the rest. It leads with the smallest cost that any setting is shown
to meet, and lists the settings by cost. ``max_cost=1`` asks for the fastest setting that is shown to cost no
more; ``method=topk`` shows what one method is predicted to take. ``measure=true`` times the model and some
settings on this machine (measure.py), and with ``compressor=`` a method of the user's beside them.

Cost        of quality: measured on the benchmark's slim model, with its interval; for another model an
            extrapolation
Payload     counted in the benchmark's runs, their warm-ups included, and scaled to the sizes of the model
Compress    and decompress, on a GPU: modelled from counted launches, waits and bytes (a lower bound). On a
            CPU: measured in the benchmark and scaled
Compute     given (``compute_ms``), or counted operations over the stated rate of a GPU
Network     modelled (network/cost.py). Communication is hidden behind backward where buckets can overlap
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args
from dgc_repro.launch.paths import add_conf_dirs, conf_dirs_apart
from dgc_repro.paper import facts
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.workloads import DENSE
from dgc_repro.paper.screen import console_of_width, grid
from dgc_repro.predict.known import MODELS, SIDES, model_of, network_of, usual_sides
from dgc_repro.predict.modelled import BATCH, GPUS, USED, compute_seconds
from dgc_repro.predict.ranked import (
    CPU,
    FASTER,
    POOL,
    Benchmark,
    Question,
    Row,
    best,
    chosen,
    front,
)
from dgc_repro.predict.written import command_of, name_of, python_of

LARGEST_COST = 100.0
WIDTH = 79
METHOD = ("compressor", "wrap", "wrapper", "policy")
"""Keys of a run that make up a method."""
MEASURED = 3
"""Settings that ``measure=true`` times."""
YOURS = "yours"
"""The row of a method that is given as a run's."""


def one_of_devices(key: str, text: str) -> str:
    """A GPU of the table, or cpu."""
    if text.lower() not in (*GPUS, CPU):
        raise UserError(f"{key}: one of {', '.join((*GPUS, CPU))}, got {text!r}")
    return text.lower()


KEYS: cli_args.Keys = {
    "network": (
        *(cli_args.some_text, None),
        "A name of conf/network, a file, or what calibrate wrote. Also network.rate=100mbit, and other keys "
        "of a profile.",
    ),
    "workers": (cli_args.workers_range, [8], "8, or several: 2,4,8 or doublings as 2..256."),
    "model": (cli_args.some_text, "resnet101", f"One of {', '.join(MODELS)}, at full size."),
    "image": (
        *(cli_args.count, None),
        f"Pixels of a side of an image, {' or '.join(map(str, SIDES))}; by default "
        f"{', '.join(f'{side} for {name}' for name, side in usual_sides().items())}.",
    ),
    "parameters": (cli_args.positive, None, "Of a model like this one that is larger or smaller."),
    "max_cost": (
        *(cli_args.from_zero, None),
        "The largest cost that is allowed: points of accuracy, or % of perplexity. Without it: the "
        "smallest that is shown.",
    ),
    "method": (cli_args.some_text, None, "Only settings with this in their names, at any cost."),
    "device": (one_of_devices, "v100", f"What workers compute on: {', '.join(GPUS)}, or {CPU}."),
    "compute_ms": (
        *(cli_args.positive, None),
        "Forward, backward and optimizer of a step; without it modelled for the GPU.",
    ),
    "batch": (cli_args.count, BATCH, "Samples a worker and step, for the modelled compute."),
    "measure": (
        *(cli_args.yes_no, False),
        "Time the model and the first settings on this machine, in minutes. Then other keys of a run are "
        "allowed, such as dataset=cifar10, or compressor=, wrap= and policy= for a method of your own.",
    ),
    "paths.runs": (cli_args.some_text, "runs", "Where calibrate has written networks."),
}


def recommend(arguments: Sequence[str]) -> None:
    """Answer on the terminal. Raises UserError."""
    added, arguments = conf_dirs_apart(arguments)
    add_conf_dirs(added)
    own, overrides = _apart(arguments)
    settings, _ = cli_args.read(own, "recommend", KEYS, ())
    asked, measured = question(settings, overrides), settings["measure"]
    benchmark = Benchmark(asked.model.workload)
    workers = settings["workers"]
    every, left_out = benchmark.rows(asked, workers[-1])
    rows = chosen(every, asked)
    if measured:
        from dgc_repro.predict.measure import timed

        first = [rows[0], *([one] if (one := best(rows, asked, benchmark.workload.margin)) else [])]
        others = [row for row in rows if row not in first]
        gathered = [
            row
            for row in (*first, *sorted(others, key=lambda row: row.step))
            if row.run.setting("exchange.aggregation") == speed.GATHER
        ]
        rows = timed(gathered[: MEASURED + 1], settings, overrides, workers[-1], asked.network)
    console = console_of_width()
    lead = best(rows, asked, benchmark.workload.margin)
    shown = rows if asked.method or measured or asked.max_cost is not None else front(rows, lead)

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    say(head(asked, settings, benchmark, measured))
    say(answer(rows, lead, benchmark, asked))
    console.print(table(shown, workers[-1], benchmark))
    if len(workers) > 1:
        console.print(by_workers(benchmark, asked, workers, lead))
    say(foot(shown, every, left_out, benchmark, asked))
    say(origins(asked, settings, benchmark, measured))


def _apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Own arguments, and those of the network and of a run."""
    measured = any(one.replace(" ", "").lower() == "measure=true" for one in arguments)
    own: list[str] = []
    others: list[str] = []
    for one in arguments:
        key = one.partition("=")[0]
        if key.split(".")[0] in METHOD and not measured:
            raise UserError(
                f"{key}: recommend chooses among the benchmark's settings; name some with method=, such as "
                "method=topk, or time a method of your own with measure=true"
            )
        is_other = key.startswith("network.") or (measured and "=" in one and key not in KEYS)
        (others if is_other else own).append(one)
    return own, others


def question(settings: Mapping[str, Any], overrides: Sequence[str]) -> Question:
    """What the settings ask. Raises UserError."""
    pairs = (one.partition("=") for one in overrides if one.startswith("network."))
    profile = {key: text for key, _, text in pairs}
    if settings["network"]:
        profile["network"] = settings["network"]
    network = network_of(profile, Path(settings["paths.runs"]))
    model = model_of(settings["model"], settings["image"], settings["parameters"])
    if settings["compute_ms"] is not None:
        seconds = settings["compute_ms"] / 1e3
    elif settings["device"] != CPU:
        seconds = compute_seconds(model.gflop, settings["batch"], GPUS[settings["device"]])
    elif settings["measure"]:
        seconds = 0.0  # until it is measured
    else:
        raise UserError("compute_ms: give it for device=cpu, or let measure=true measure it")
    return Question(
        model, network, settings["device"], seconds, settings["max_cost"], settings["method"]
    )


def head(
    asked: Question, settings: Mapping[str, Any], benchmark: Benchmark, measured: bool
) -> Iterable[str]:
    """What is asked, with the defaults that were taken, and on what evidence the answer rests."""
    model, number = asked.model, settings["workers"][-1]
    unit = f"worker{'s' * (number > 1)} with {asked.device}"
    compute = f"A step computes for {_short(1e3 * asked.compute)} ms, modelled (yours: compute_ms=)"
    if settings["compute_ms"]:
        compute = f"A step computes for {_short(1e3 * asked.compute)} ms, as given"
    elif measured:
        compute = "The time that a step computes is measured here"
    defaults = [f"image={model.side}"] if model.side and not settings["image"] else []
    defaults += [f"{key}={settings[key]}" for key in ("device",) if settings[key] == KEYS[key][1]]
    yield from _filled(
        f"{settings['model']}, {model.sizes.parameters / 1e6:.4g} M parameters, {model.samples}; "
        f"{number} {unit}; network {settings['network'] or 'as given'}. {compute}."
        + (f" Defaults: {', '.join(defaults)}." if defaults else "")
    )
    size = benchmark.dense.summary["parameters"] / 1e6
    yield from _filled(
        f"Times are {'measured in part' if measured else 'modelled, not measured'}. Costs are measured "
        f"with a small model ({size:.2g} M parameters) and extrapolated to yours."
    )
    yield ""


def origins(
    asked: Question, settings: Mapping[str, Any], benchmark: Benchmark, measured: bool
) -> Iterable[str]:
    """Where each number is from: measured, modelled, extrapolated."""
    model, gpu = asked.model, asked.device.upper()
    compute = (
        f"counted operations of {settings['batch']} {model.samples} at {USED:.0%} of the stated "
        f"float32 rate of a {gpu}"
    )
    exchange = f"modelled for a {gpu} from counted launches, waits and bytes: a lower bound"
    if asked.device == CPU:
        exchange = "measured in the benchmark on a slim model, scaled to this model's parameters"
    payload = "counted in the benchmark with its warm-ups, scaled to this model"
    if measured:
        compute, exchange = "measured here", "measured here with this model's gradients"
        payload = "measured here"
    if settings["compute_ms"]:
        compute = "given by compute_ms"
    lines = {
        "compute": compute,
        "network": f"modelled; {asked.network.source or 'rates as given'}. As much as possible is hidden "
        "behind backward where buckets can overlap",
        "compress": exchange,
        "payload": payload,
        "cost": f"measured with {facts.model_text(benchmark.dense)}, {facts.data_text(benchmark.runs)}, "
        f"{facts.world_text(benchmark.dense)} (results/{POOL}). For your model it is an extrapolation: "
        "train with the setting and with dense before you rely on it",
    }
    yield from ("", "Where the numbers are from:")
    for name, text in lines.items():
        yield textwrap.fill(text, WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=12 * " ")
    yield ""


def answer(
    rows: Sequence[Row], lead: Row | None, benchmark: Benchmark, asked: Question
) -> Iterable[str]:
    """The setting to use, with the overrides and the line of Python that give it."""
    dense = rows[0]
    unit = benchmark.workload.unit_in_words
    if lead is None and len(rows) == 1:
        yield from _filled(
            f"Train uncompressed: the mean cost of every setting is above {asked.max_cost:g} {unit}."
        )
        yield ""
        return
    if lead is None:
        fastest = min(row.step for row in rows[1:])
        yield from _filled(
            "Train uncompressed: no setting with a known cost is faster on this network. The fastest is "
            f"{dense.step / fastest:.2f} times as fast, and a difference below {FASTER - 1:.0%} is within "
            "the errors of the model."
        )
        yield ""
        return
    if asked.max_cost is not None and lead.at_most > asked.max_cost:
        yield from _filled(
            f"No faster setting is shown to cost at most {asked.max_cost:g} {unit}. Next best:"
        )
    cost = lead.at_most if asked.max_cost is None else max(lead.at_most, asked.max_cost)
    yield from _filled(
        f"Use {name_of(lead.run)}: at most {cost:.3g} {unit}, {dense.step / lead.step:.1f} times as fast as "
        "uncompressed training."
        + (" No setting is shown to cost less." if cost == min(r.at_most for r in rows[1:]) else "")
    )
    if lead.share is not None:
        net, low, high = lead.share.net(dense.step / lead.step)
        yield from _filled(
            f"{lead.share.sentence} So a training is {net:.1f} times as fast ({low:.1f} to {high:.1f})."
        )
    yield ""
    yield f"  {command_of(lead.run)}{' exchange.overlap=true' if lead.hidden else ''}"
    yield ""
    yield from (f"  {line}" for line in python_of(lead.run, overlap=bool(lead.hidden)))
    yield ""
    rate, of_dense = (run.setting("optimizer.lr") for run in (lead.run, benchmark.dense))
    yield f"Learning rate in the benchmark: {rate} (dense training: {of_dense})."
    yield ""


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


def table(rows: Sequence[Row], workers: int, benchmark: Benchmark) -> Table:
    """The settings by cost."""
    dense = next(row for row in rows if row.cost is None)
    headings = ["setting", "cost", "95 %\ninterval", "sent\nMB"]
    headings += ["compress\nms", "step\nms", "times\nas fast"]
    has_shares = any(row.share is not None for row in rows)
    headings += ["net"] if has_shares else []
    cells: list[list[str]] = []
    for row in sorted(rows, key=lambda row: row.cost is not None):
        if row.cost is None:
            costs = ["0", "-"]
        elif not row.cost.n:
            costs = ["not known", "-"]
        else:
            costs = [f"{row.cost.mean:.2f}", row.cost.interval]
        numbers = (row.sent / 1e6, 1e3 * row.exchange, 1e3 * row.step)
        times = dense.step / row.step
        net = [row.share.net_text(times) if row.share else "-"] if has_shares else []
        cells.append([row.run.method, *costs, *map(_short, numbers), f"{times:.1f}", *net])
    return grid(
        f"{workers} worker{'s' * (workers > 1)}, by cost in {benchmark.workload.unit_in_words}",
        headings,
        cells,
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def by_workers(
    benchmark: Benchmark, asked: Question, workers: Sequence[int], lead: Row | None
) -> Table:
    """Milliseconds of a step of dense training and of the answer."""
    names = [DENSE, *([lead.run.method] if lead else [])]
    cells = []
    for number in workers:
        steps = {row.run.method: 1e3 * row.step for row in benchmark.rows(asked, number)[0]}
        cells.append([str(number), *(_short(steps[name]) for name in names)])
    return grid("Milliseconds of a step", ["workers", *names], cells)


def foot(
    shown: Sequence[Row],
    every: Sequence[Row],
    left_out: Sequence[str],
    benchmark: Benchmark,
    asked: Question,
) -> Iterable[str]:
    """What the columns mean, and which settings the table does not have."""
    yield from _filled(
        f"cost: {benchmark.workload.unit_in_words} against dense training. The interval holds for one "
        "setting at a time. compress: and decompress. net: times as "
        "fast, less the share of the steps that the setting costs."
    )
    if asked.method is None and (missing := len(every) - len(shown)) > 0:
        why = (
            f"settings that cost more and are no faster (max_cost={LARGEST_COST:g} lists them)"
            if asked.max_cost is None
            else f"settings whose mean cost is above {asked.max_cost:g}"
        )
        yield from _filled(f"Not in the table: {missing} {why}.")
    yield from _filled(
        "Not predicted (another optimizer, a setting that changes with the steps, or no counts for GPUs): "
        f"{', '.join(left_out) or 'none'}."
    )
