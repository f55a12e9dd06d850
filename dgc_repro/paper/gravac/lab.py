"""GraVAC in the lab: real links whose rate drops and rises again. The paper has no such experiment: set-up,
expectations and choices are ours.

Times are measured. Each step's factor, gain and time are recorded where the policy records them; Accordion
has no gains, and its factor in an epoch is all values over those that it sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.network.units import bits_per_second
from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim
from dgc_repro.paper.frame import SENT, Column, Quantity, number, pivot
from dgc_repro.paper.gravac.steps import BRANCHES, branch
from dgc_repro.paper.interfaces import COUNTED, difference_percent
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike
from dgc_repro.paper.verdict import judge

DENSE, STATIC10, STATIC1000 = "dense", "static10", "static1000"
GRAVAC, THAWED, ACCORDION, BUCKET = "gravac", "gravac_thawed", "accordion", "gravac_bucket"
LOOKS = {
    DENSE: Look("dense", plot.BLACK, "X"),
    STATIC10: Look("static 10x", plot.SKY, "s"),
    STATIC1000: Look("static 1000x", plot.PURPLE, "D"),
    ACCORDION: Look("Accordion", plot.GREEN, "^"),
    GRAVAC: Look("GraVAC", plot.BLUE, "o"),
    THAWED: Look("GraVAC, not frozen", plot.ORANGE, "v", "--"),
    BUCKET: Look("GraVAC, per bucket", plot.YELLOW, "P", ":"),
}
LABELS = {row: look.label for row, look in LOOKS.items()}
ALIKE = ("dataset", "model", "train", "launch", "network", "schedule", "optimizer")
STEP, SLOWDOWN, TARGET_SECONDS = "step", "slowdown at the low rate", "time to the target loss"
FACTOR, GAIN, REACTION = "factor", "gain", "factor at the low rate over after it"
SECONDS, LOSS, PERPLEXITY = "training time", "training loss", "test perplexity"
INTERFACE = "sent by the interface"
LEAST_SLOWDOWN = 2.0
LAST_SHARE = 4  # the target is of the last quarter of epochs
ROLLING = 5  # a single step's time is noise: throughputs are drawn as medians of so many

_matters = Check(SLOWDOWN, DENSE, above=LEAST_SLOWDOWN)
_compresses = Check("steps of dense", GRAVAC, above=-1.0, below=100.0)


def _claim(name: str, text: str, check: Check, reading: str, *premises: Check) -> Claim:
    return Claim(name, text, EXPECTED, (check,), reading, premises, OURS)


CLAIMS = (
    _claim(
        "drop",
        f"The links matter: dense's step takes at least {LEAST_SLOWDOWN:g} times as long at the low rate.",
        _matters, "Mean measured step of the middle third over that of the other two.",
    ),
    *(
        _claim(
            f"{row}.slowdown", f"{LABELS[row]} slows down less than dense.",
            Check(SLOWDOWN, DENSE, row, above=1.0, ratio=True),
            "The same slowdowns, dense's over the row's. Not tested where the links do not matter.", _matters,
        )
        for row in (GRAVAC, STATIC10)
    ),
    *(
        _claim(
            f"{GRAVAC}.sooner.{other}", f"GraVAC meets the target loss sooner than {LABELS[other]}.",
            Check(TARGET_SECONDS, other, GRAVAC, above=1.0, ratio=True),
            "Measured seconds in training steps until an epoch's mean training loss is at most the target: "
            "dense's in its last quarter of epochs plus one standard deviation (over seeds; of one seed over "
            "those epochs). Paired by seed; infinite for a row that never gets there. Not tested where the "
            "links do not matter or GraVAC compresses no step.", _matters, _compresses,
        )
        for other in (DENSE, STATIC10, STATIC1000, ACCORDION)
    ),
    *(
        _claim(
            f"{row}.reacts",
            f"{LABELS[row]} reacts: it sends a stronger factor while the rate is low than after it.",
            Check(REACTION, row),
            "log2 of the factor sent, mean over the steps in the middle third less that in the last. Factors "
            "and gains drift as training goes on, whatever the network does: static links would not give 0.",
            _matters, *([] if row == ACCORDION else [replace(_compresses, greater=row)]),
        )
        for row in (GRAVAC, THAWED, ACCORDION)
    ),
    _claim(
        f"{BUCKET}.quicker",
        f"{LABELS[BUCKET]}, deciding from the last step's gains, has a shorter step than {LABELS[GRAVAC]}.",
        Check(STEP, GRAVAC, BUCKET, above=1.0, ratio=True),
        "Mean measured step of the whole run, paired by seed. What each sends is its own choice.",
    ),
)  # fmt: skip


def timeline(run: Run) -> pd.DataFrame:
    """A line for each step: its ``seconds`` (between ends of epochs, in proportion), factor, gain and
    throughput where they are recorded, its ``stretch`` (the rate of the links, with the first and last step
    of that rate), and whether the rate is ``low``: lower than at other times."""
    ends = [0.0, *run.epochs["step"].astype(float)]
    times = [0.0, *run.epochs["time/train_seconds"].astype(float)]
    before = np.arange(int(ends[-1]))
    changes = run.setting("network.schedule") or []
    starts = [0, *(int(change["step"]) for change in changes)]
    rates = np.array([str(run.setting("network.rate")), *(str(c["rate"]) for c in changes)])
    bits = np.array([r != "None" and bits_per_second("network.rate", r) for r in rates], float)
    place = np.searchsorted(starts, before, side="right") - 1
    steps = pd.DataFrame({
        "step": before + 1, "seconds": np.diff(np.interp([*before, ends[-1]], ends, times)),
        "rate": rates[place], "low": (bits < bits.max())[place],
    })  # fmt: skip
    edges = steps.groupby(place)["step"].transform
    span = edges("min").astype(str) + "-" + edges("max").astype(str)
    steps["stretch"] = steps["rate"] + ": steps " + span
    return steps.merge(steps_of(run), on="step", how="left")


def slowdown(run: Run) -> float:
    """A step while the rate is low over one at other times; NaN without both."""
    means = timeline(run).groupby("low")["seconds"].mean().reindex([True, False])
    return float(means[True] / means[False])


def by_stretch(run: Run) -> pd.DataFrame:
    """Milliseconds of a step, factor and gain of each stretch, in order; and whether its rate is ``low``."""
    stretches = timeline(run).groupby("stretch", sort=False)
    return stretches.agg(
        ms=("seconds", lambda seconds: 1e3 * seconds.mean()), factor=("factor", _geometric),
        gain=("gain", "mean"), low=("low", "first"),
    )  # fmt: skip


def target_of(runs: Sequence[Run]) -> tuple[float, str]:
    """Dense's training loss in its last quarter of epochs plus one standard deviation, and how it came about;
    NaN without a run of dense."""
    losses = [run.epochs["train/loss"].astype(float) for run in runs if run.row == DENSE]
    if not losses:
        return math.nan, "no run of dense"
    last = [loss.tail(max(1, len(loss) // LAST_SHARE)) for loss in losses]
    means = pd.Series([own.mean() for own in last])
    spread = means.std() if len(means) > 1 else last[0].std()
    spread = 0.0 if math.isnan(spread) else float(spread)
    over = f"over {len(means)} seeds" if len(means) > 1 else "over those epochs"
    loss = float(means.mean()) + spread
    return loss, (
        f"training loss {loss:.4g}: dense's {means.mean():.4g} in its last {len(last[0])} epochs plus one "
        f"standard deviation ({spread:.2g}, {over})"
    )


def seconds_to(run: Run, loss: float) -> float:
    """Seconds in training steps until an epoch's training loss is at most this, infinite where none is; NaN
    without a target."""
    met = run.epochs[run.epochs["train/loss"].astype(float) <= loss]
    never = math.nan if math.isnan(loss) else math.inf
    return float(met["time/train_seconds"].iloc[0]) if len(met) else never


def steps_of(run: Run) -> pd.DataFrame:
    """Factor, gain and throughput by step. Where the policy records none, the factor is that of the epoch:
    all values over those that were sent."""
    recorded = run.decisions
    if _decides(run):
        return recorded[["step", "factor", "gain", "throughput"]]
    if run.row == DENSE and not recorded.empty:
        rate = recorded["samples"] / recorded["seconds"]
        return recorded[["step"]].assign(factor=1.0, gain=1.0, throughput=rate)
    epochs = run.epochs[["step", "comm/floats"]].astype(float).diff().fillna(run.epochs.iloc[0])
    factors = float(run.summary["parameters"]) * epochs["step"] / epochs["comm/floats"]
    each = np.repeat(factors.to_numpy(), epochs["step"].astype(int))
    steps = {"step": np.arange(len(each)) + 1, "factor": each}
    return pd.DataFrame(steps).assign(gain=math.nan, throughput=math.nan)


def _decides(run: Run) -> bool:
    return "branch" in run.decisions and bool(run.decisions["branch"].notna().any())


def _geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def reaction(run: Run) -> float:
    """log2 of the factor while the rate is low over that after it; NaN where the rate never rises again."""
    parts = by_stretch(run)
    if parts["low"].sum() != 1 or parts["low"].iloc[-1]:
        return math.nan
    return math.log2(parts.loc[parts["low"], "factor"].iloc[0] / parts["factor"].iloc[-1])


def _by_stretch(runs: Sequence[Run]) -> pd.DataFrame:
    """Step, factor and gain of each stretch."""
    tables = (
        by_stretch(r).reset_index(names="setting").assign(row=r.row, seed=r.seed) for r in runs
    )
    found = {"ms": (STEP, "ms", "measured"), "factor": (FACTOR, "x"), "gain": (GAIN, "")}
    return frames.longer(pd.concat(tables), found)


def _branch_percent(run: Run, name: str) -> float:
    return 100 * branch(run, name) if _decides(run) else math.nan


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    own = of_rows(runs, LABELS)
    first = [run for run in own if run.seed == min(r.seed for r in own if r.row == run.row)]
    target, target_text = target_of(own)
    quantities = {
        STEP: Quantity(
            "ms", lambda r: 1e3 * r.last("time/train_seconds") / r.last("step"), "measured"
        ),
        SLOWDOWN: Quantity("x", slowdown),
        TARGET_SECONDS: Quantity("s", lambda run: seconds_to(run, target), "measured"),
        SECONDS: Quantity("s", lambda run: run.last("time/train_seconds"), "measured"),
        LOSS: Quantity("nats", lambda run: run.last("train/loss")),
        PERPLEXITY: Quantity("", lambda run: run.last("test/perplexity")),
        REACTION: Quantity("doublings", reaction),
        INTERFACE: Quantity("bytes", lambda run: run.summary.get(COUNTED, math.nan)),
        **SENT,
        **{f"steps of {b}": Quantity("%", partial(_branch_percent, name=b)) for b in BRANCHES},
    }
    frame = frames.join(frames.measure(own, quantities), _by_stretch(own))
    return made(
        __file__,
        scale,
        own,
        frame,
        _sections(frame, own),
        verdicts=judge(CLAIMS, frame, labels=LABELS),
        said={"traces": "\n".join(f"- {line}" for line in facts.traces(first))},
        head=_more(own, target_text),
        warning=facts.busy(own),
        figures={"lab": partial(_figure, own, scale, target)},
    )


def _more(runs: Sequence[Run], target: str) -> list[tuple[str, str]]:
    """Links, target, and interfaces against the ledger, for the head of the page."""
    links = facts.distinct(
        ", then ".join(f"{part.replace(': ', ' (')})" for part in by_stretch(run).index)
        for run in runs
    )
    apart = {run.id: difference_percent(run.summary) for run in runs}
    read = [run for run in runs if not math.isnan(apart[run.id])]
    worst = max(read, key=lambda run: abs(apart[run.id]), default=None)
    said = "no interface was read"
    if worst is not None:
        said = (
            f"interfaces of {len(read)} of {len(runs)} runs were read; they differ from the ledger with "
            f"headers by at most {abs(apart[worst.id]):.2f} % ({LABELS[worst.row]}, "
            f"{frames.amount([worst.summary[COUNTED]])})"
        )
    return [("links", links), ("target", target), ("bytes", said)]


def _met(values: Sequence[float]) -> str:
    """Seconds of the runs that reached the target, and how many these are."""
    met = [value for value in values if math.isfinite(value)]
    if not met:
        return number(values)
    return number(met) + (f" ({len(met)} of {len(values)})" if len(met) < len(values) else "")


def _sections(frame: pd.DataFrame, runs: Sequence[Run]) -> list[Section]:
    parts = list(by_stretch(runs[0]).index)
    times = [
        frames.seeds(STEP),
        *(Column(f"{part}, ms", STEP, setting=part) for part in parts),
        Column("slowdown", SLOWDOWN),
        Column("s to target", TARGET_SECONDS, _met),
        Column("s in all", SECONDS),
        *(Column(name, name) for name in (LOSS, PERPLEXITY)),
        *(Column(name, name, frames.amount) for name in ("payload", INTERFACE)),
    ]
    by_part = [(name, part) for name in (FACTOR, GAIN) for part in parts]
    sent = [
        *(Column(f"{name}, {part}", name, setting=part) for name, part in by_part),
        *(Column(f"{branch} %", f"steps of {branch}", 1) for branch in BRANCHES),
    ]
    shown = {row: label for row, label in LABELS.items() if any(run.row == row for run in runs)}
    timed = "Training steps by the rate of the links, and time to the target loss"
    return [
        Section(timed, pivot(frame, shown, times, first="row")),
        Section("Factors and gains", pivot(frame, shown, sent, first="row")),
        Section("Policy traces"),
    ]


def _figure(runs: Sequence[Run], scale: str, target: float) -> Figure:
    """Factor, gain and throughput by step with the low rate shaded; training loss by time. One seed."""
    shown = {run.row: run for run in sorted(runs, key=lambda run: -run.seed)}
    shown = {row: shown[row] for row in dict.fromkeys(run.row for run in runs)}
    first = timeline(runs[0])
    low = first[first["low"]].groupby("stretch", sort=False)

    def by_step(axes: Axes, column: str, label: str, log: str = "y") -> None:
        for row, run in shown.items():
            steps = steps_of(run)
            drawn = steps[column]
            if column == "throughput":
                drawn = drawn.rolling(ROLLING, center=True, min_periods=1).median()
            how = LOOKS[row].line | {"marker": "", "linewidth": 1.4, "label": None}
            axes.plot(steps["step"], drawn, **how)
        for _, part in low["step"]:
            axes.axvspan(part.min() - 0.5, part.max() + 0.5, color="#E8E8E8", zorder=0, lw=0)
        plot.name_axes(axes, "step", label, log)

    def losses(axes: Axes) -> None:
        for row, run in shown.items():
            axes.plot(run.epochs["time/train_seconds"], run.epochs["train/loss"], **LOOKS[row].line)
        if not math.isnan(target):
            axes.axhline(target, color="#666666", linewidth=0.8)
        plot.name_axes(axes, "measured seconds in training steps", "training loss (nats)", "x")

    rate = "samples a second times gain"
    panels: plot.Panels = [
        ("factor", partial(by_step, column="factor", label="compression factor")),
        ("gain (Accordion has none)", partial(by_step, column="gain", label="gain of what was sent", log="")),
        (f"compression throughput, medians of {ROLLING} steps",
         partial(by_step, column="throughput", label=rate)),
        ("time to the target loss (grey line)", losses),
    ]  # fmt: skip
    rates = ", ".join(low["rate"].first()) or "nothing"
    caption = f"{facts.caption(runs, scale)}; drawn: the first seed; shaded: {rates}"
    title = "GraVAC in the lab: a rate that drops and rises again"
    return plot.figure(title, caption, panels, columns=2, size=(4.9, 3.5))
