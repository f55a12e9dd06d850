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

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import dgc_repro
from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args
from dgc_repro.launch.overrides import nearest
from dgc_repro.launch.paths import add_conf_dirs, conf_dirs_apart, option, options
from dgc_repro.names import conf_dir
from dgc_repro.network.cost import Calls, Costs
from dgc_repro.network.profile import Network
from dgc_repro.paper import facts, pool
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.equivalent import Share, calibrations, is_shortened
from dgc_repro.paper.benchmark.paired import judged_of
from dgc_repro.paper.benchmark.tradeoff import stated
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, workloads
from dgc_repro.paper.records import Run
from dgc_repro.paper.screen import console_of_width, grid
from dgc_repro.predict.known import MODELS, SIDES, Model, model_of, network_of, usual_sides
from dgc_repro.predict.modelled import BATCH, GPUS, USED, compute_seconds, exchange_seconds
from dgc_repro.results import RESULTS

POOL = "benchmark/small"
CPU = "cpu"
COST_STEP = 0.1
"""Shown costs are multiples of it, in the unit of the workload."""
LARGEST_COST = 100.0
FASTER = 1.05
"""A setting that is not so many times as fast as dense training is no faster: the model is not that exact."""
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


@dataclass(frozen=True)
class Question:
    """A model on a device and a network, seconds of its forward and backward, and the cost that is allowed
    (None: whatever is the smallest). ``method``: a part of the names of the only settings to look at."""

    model: Model
    network: Network
    device: str
    compute: float
    max_cost: float | None
    method: str | None


@dataclass(frozen=True)
class Row:
    """A setting among so many workers; seconds. ``run``: the first of its runs; ``cost``: what its seeds
    show, None for dense training, of no seeds for a method that the benchmark does not have; ``exchange``:
    compress and decompress; ``hidden``: communication behind backward; ``share``: its cost as a share of the
    steps, None where nobody has measured it."""

    run: Run
    cost: Shown | None
    calls: Calls
    compute: float
    exchange: float
    communicate: float
    hidden: float
    share: Share | None = None

    @property
    def step(self) -> float:
        return self.compute + self.exchange + self.communicate - self.hidden

    @property
    def sent(self) -> float:
        """Payload bytes of a worker and step."""
        return sum(size for _, size in self.calls.values())

    @property
    def high(self) -> float:
        """The upper end of the interval of its cost; infinite without an interval."""
        if self.cost is None:
            return 0.0
        return self.cost.high if self.cost.has_interval else math.inf

    @property
    def at_most(self) -> float:
        """The upper end as a multiple of `COST_STEP`."""
        if math.isinf(self.high):
            return math.inf
        return math.ceil(round(self.high / COST_STEP, 6)) * COST_STEP


class Benchmark:
    """The published runs of the workload that is like the model, and what they show. Raises UserError where
    there are none."""

    def __init__(self, name: str, results: Path = RESULTS) -> None:
        place = results / POOL
        pages = pool.records(place)
        if "methods" not in pages:
            raise UserError(
                f"results/{POOL} is not here (no {pool.VERDICTS_FILE}); recommend "
                "needs the published results, which a clone and the wheel have"
            )
        every = pages["methods"]["runs"]
        own = [run for run in every if f"-{name}." in run and TUNES not in run]
        every_run = pool.read(place, own)
        self.runs: Sequence[Run] = [run for run in every_run if not is_shortened(run)]
        self.workload = workloads()[name]
        calibration = calibrations(every_run, {name: self.workload}).get(name)
        self.shares = {} if calibration is None else calibration.shares(self.runs)
        self.judged = judged_of(self.runs, name)
        self._counted: dict[Any, dict[Any, Any]] = {}
        if (counts := speed.counts(results)) is not None:
            is_own = (counts["model"] == self.workload.full_size) & counts["launches"].notna()
            self._counted = counts[is_own].set_index("method").to_dict("index")
        self._work = speed.Workload(self.runs)
        self._first = {run.method: run for run in sorted(self.runs, key=lambda run: -run.seed)}

    @property
    def dense(self) -> Run:
        """Dense training."""
        return self._first[DENSE]

    def rows(self, asked: Question, workers: int) -> tuple[list[Row], list[str]]:
        """A row a setting, dense training first; and the names of those left out: they use another
        optimizer, change with the steps, or nobody has counted them."""
        try:
            costs = Costs(asked.network, workers)
        except ValueError as error:
            raise UserError(f"network.{error}") from error
        rows, left_out = [], []
        for name, run in sorted(self._first.items(), key=lambda item: item[0] != DENSE):
            exchange = self._exchange(asked, run, workers) if speed.is_predicted(run) else None
            if exchange is None:
                left_out.append(name)
                continue
            calls = speed.calls_at(run, workers)
            calls = speed.enlarged(
                run, calls, self._work.parameters, self._work.vectors, asked.model.sizes
            )
            communicate, hidden = speed.talked(run, calls, costs, asked.compute)
            cost = None if name == DENSE else self.judged.shown[run.row]
            share = self.shares.get(name)
            rows.append(Row(run, cost, calls, asked.compute, exchange, communicate, hidden, share))
        return rows, sorted(left_out)

    def _exchange(self, asked: Question, run: Run, workers: int) -> float | None:
        """Seconds of compress and decompress; None where they were not counted."""
        own = asked.model.sizes.parameters
        if asked.device == CPU:
            step = self._work.step(run, workers)
            return float(own / self._work.parameters * (step.compress + step.decompress))
        counted = self._counted.get(run.method)
        if counted is None:
            return None
        full = next(iter(MODELS[self.workload.full_size].values())).sizes.parameters
        return exchange_seconds(counted, own / full, GPUS[asked.device])


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


def chosen(rows: Sequence[Row], asked: Question) -> list[Row]:
    """Dense training and the settings that are asked for, by cost: the upper end of the interval, then the
    mean. Raises UserError for a method that has no setting."""
    dense, *others = rows
    if asked.method is not None:
        own = [row for row in others if asked.method in row.run.method]
        if not own and asked.method in options("compressor"):
            raise UserError(
                f"method: with {asked.model.samples} the published benchmark has no runs of "
                f"{asked.method}, so its cost is not known; "
                f"measure=true compressor={asked.method} times its step beside the others"
            )
        if not own:
            names = [row.run.method for row in others]
            raise UserError(
                f"method: no setting of {asked.method!r}; {nearest(asked.method, names)}"
            )
        others = own
    elif asked.max_cost is not None:
        others = [row for row in others if _mean(row) <= asked.max_cost]
    return [dense, *sorted(others, key=lambda row: (row.high, _mean(row)))]


def front(rows: Sequence[Row], lead: Row | None) -> list[Row]:
    """Dense training, the answer, and each setting that is faster than all settings that cost less."""
    dense, *others = rows
    found, fastest = [dense], dense.step
    for row in others:
        is_faster = math.isfinite(row.high) and row.step * FASTER < fastest
        if is_faster:
            fastest = row.step
        if is_faster or row is lead:
            found.append(row)
    return found


def best(rows: Sequence[Row], asked: Question, margin: float) -> Row | None:
    """The answer: the fastest setting that is shown to cost at most what is allowed (the margin of the
    workload, unless it is asked), or else at most the smallest cost that any setting is shown to meet. None:
    no setting with a known cost is faster than dense training."""
    dense, *others = rows
    faster = [r for r in others if r.step * FASTER < dense.step and math.isfinite(r.at_most)]
    if not faster:
        return None
    smallest = min(row.at_most for row in faster)
    allowed = max(smallest, margin if asked.max_cost is None else asked.max_cost)
    return min((row for row in faster if row.at_most <= allowed), key=lambda row: row.step)


def _mean(row: Row) -> float:
    return 0.0 if row.cost is None else row.cost.mean


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


def name_of(run: Run) -> str:
    """What the README's picture calls a setting, and its name in the table."""
    headline, method = stated(workloads()), str(run.method)
    words = headline.names.get(method.removesuffix("_sharded")) if headline else None
    shards = ", averaged in shards" if method.endswith("_sharded") else ""
    return f"{words}{shards} ({method})" if words else method


def python_of(run: Run, *, overlap: bool) -> list[str]:
    """The lines of Python that give a DDP model a run's method, after its warm-up."""
    names: set[str] = {"dgc_repro.exchange.door.attach"}

    def called(node: Mapping[str, Any], *first: str, usual: Mapping[str, Any]) -> str:
        """``usual``: settings that need not be named."""
        names.add(str(node["_target_"]))
        own = {k: v for k, v in node.items() if v is not None and k != "_target_"}
        words = [f"{key}={value!r}" for key, value in own.items() if usual.get(key) != value]
        return f"{str(node['_target_']).rpartition('.')[2]}({', '.join([*first, *words])})"

    own, policy = dict(run.config["compressor"]), run.config["policy"]
    if policy.get("values"):
        own[policy["field"]] = policy["values"][-1]
    nest = called(own, usual={})
    if run.setting("exchange.aggregation") == speed.SHARDED:
        names.add("dgc_repro.compressor.sharded.Sharded")
        nest = f"Sharded({nest})"
    for name in reversed(run.config["wrap"]):
        if name in run.config["wrapper"]:
            nest = called(run.config["wrapper"][name], nest, usual=option("wrapper", name))
    more = ", overlap=True" if overlap else ""
    unit = run.setting("exchange.unit", "layer")
    more += "" if unit == "layer" else f", unit={unit!r}"
    found: dict[str, list[str]] = {}
    for target in names:
        module, _, name = target.rpartition(".")
        is_public = name in dgc_repro._PUBLIC
        found.setdefault("dgc_repro" if is_public else module, []).append(name)
    imports = [
        f"from {module} import {', '.join(sorted(own))}" for module, own in sorted(found.items())
    ]
    return [*imports, f"exchange = attach(model, {nest}{more})"]


def command_of(run: Run) -> str:
    """The overrides of a run's method, as they are typed."""
    own, policy = run.config["compressor"], run.config["policy"]
    words = _typed_group("compressor", _file_of(run), own)
    words.append(f"wrap=[{','.join(run.config['wrap'])}]")
    if policy.get("values"):
        words += _typed_group("policy", _module(policy), policy)
    if (way := run.setting("exchange.aggregation")) != speed.GATHER:
        words.append(f"exchange.aggregation={way}")
    return " ".join(words)


def _file_of(run: Run) -> str:
    """The member of the group of compressors that a run's method is made from."""
    files = conf_dir().glob("compressor/*.yaml")
    names = [file.stem for file in files if f"{run.method}_".startswith(f"{file.stem}_")]
    return max(names, key=len, default=_module(run.config["compressor"]))


def _stated(group: str, name: str) -> dict[str, Any]:
    """What the file of a member says of its own group."""
    found = option(group, name)
    return dict(found.get(group, found))  # a compressor's file may bring its nest too


def _typed_group(group: str, name: str, own: Mapping[str, Any]) -> list[str]:
    """A member of a group, and the keys whose values its file does not have."""
    usual = _stated(group, name)
    changed = {k: v for k, v in own.items() if v is not None and usual.get(k, v) != v}
    words = [f"{group}.{key}={str(value).replace(' ', '')}" for key, value in changed.items()]
    return [f"{group}={name}", *words]


def _module(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).split(".")[-2]
