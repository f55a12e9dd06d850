"""GraVAC in the lab: what was sent, gained and waited for on links whose rate drops and rises again.

Times are measured on real links. Of each step the record has factor, gain and time where the policy tells
them; of Accordion, which looks at no gains, the factor of each epoch is what it sent of all values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_lab as lab
from dgc_repro.paper.gravac_lab import DENSE, LABELS
from dgc_repro.report import figures, style
from dgc_repro.report.lab_runs import (
    Target,
    factor,
    is_low,
    seconds_to,
    shares,
    slowdown,
    step_ms,
    steps_of,
    stretches,
    target_of,
)
from dgc_repro.report.network import COUNTED, EXPECTED, counted, megabytes
from dgc_repro.report.records import Run, require_alike
from dgc_repro.report.study import Block, Page, distinct, header, judged, mean_sd, scale_label
from dgc_repro.report.table import short
from dgc_repro.report.verdict import Values

ALIKE = ("dataset", "model", "train", "launch", "network", "schedule", "optimizer")
LOOKS = {
    DENSE: (style.BLACK, "-"),
    lab.STATIC10: (style.SKY, "-"),
    lab.STATIC1000: (style.PURPLE, "-"),
    lab.ACCORDION: (style.GREEN, "-"),
    lab.GRAVAC: (style.BLUE, "-"),
    lab.THAWED: (style.ORANGE, "--"),
    lab.BUCKET: (style.YELLOW, ":"),
}
ROLLING = 5
"""Steps: throughputs are drawn as medians of so many, a single step's time is noise."""
NEVER = "not reached"


def values(runs: Sequence[Run]) -> Values:
    """What the claims compare."""
    target = target_of(runs)
    found: dict[str, dict[str, dict[int, float]]] = {
        lab.SLOWDOWN: {lab.EVEN: {run.seed: 1.0 for run in runs}},
        lab.TARGET_SECONDS: {},
        lab.FACTOR: {},
        lab.STEP: {},
    }
    for run in runs:
        label, parts = LABELS[run.row], stretches(run)
        found[lab.SLOWDOWN].setdefault(label, {})[run.seed] = slowdown(run)
        milliseconds = 1e3 * _last(run, "time/train_seconds") / _last(run, "step")
        found[lab.STEP].setdefault(label, {})[run.seed] = milliseconds
        if target is not None:
            seconds = seconds_to(run, target.loss)
            found[lab.TARGET_SECONDS].setdefault(label, {})[run.seed] = seconds
        places = [number for number, part in enumerate(parts) if is_low(part, parts)]
        if len(places) != 1 or places[0] + 1 == len(parts):
            continue  # the rate never rises again
        for name, part in (
            (lab.while_low(run.row), parts[places[0]]),
            (lab.after_it(run.row), parts[-1]),
        ):
            found[lab.FACTOR].setdefault(name, {})[run.seed] = math.log2(factor(run, part))
    return found


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if they are not alike."""
    require_alike(runs, ALIKE)
    target = target_of(runs)
    blocks = [_step_block(runs), _target_block(runs, target), _sent_block(runs)]
    windows = _window_block(runs)
    return Page(
        title="GraVAC in the lab: a rate that drops and rises again (ours)",
        scale=scale,
        header=header(runs, scale, _facts(runs, target)),
        warning="",
        blocks=(*blocks, *([windows] if windows.rows else [])),
        verdicts=judged(lab.CLAIMS, values(runs), scale),
        notes=(),
        choices=lab.CHOICES,
        numbers=tuple(_numbers(runs, target)),
    )


def _facts(runs: Sequence[Run], target: Target | None) -> list[tuple[str, str]]:
    links = [
        ", then ".join(f"{part.rate} (steps {part.first}-{part.last})" for part in stretches(run))
        for run in runs
    ]
    parameters = distinct([f"{run.summary.get('parameters', 0):,}" for run in runs])
    read = [run for run in runs if counted(run.summary) is not None]
    worst = max(read, key=lambda run: abs(_apart(run)), default=None)
    return [
        ("links", f"{distinct(links)}; {runs[0].setting('launch.workers')} workers"),
        ("model", f"{distinct([short(r.setting('model')) for r in runs])}, {parameters} parameters"),
        ("data", distinct([run.environment.get("data") for run in runs])),
        ("target", "no run of dense" if target is None else target.text),
        (
            "bytes",
            "no interface was read"
            if worst is None
            else f"interfaces of {len(read)} of {len(runs)} runs were read; they differ from the ledger with "
            f"headers by at most {abs(_apart(worst)):.2f} % ({LABELS[worst.row]}, "
            f"{megabytes(worst.summary[COUNTED])})",
        ),
    ]  # fmt: skip


def _apart(run: Run) -> float:
    return 100 * float(run.summary[COUNTED] / run.summary[EXPECTED] - 1)


def rows_of(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """(row, its runs) for every row there is, in order."""
    for row in LABELS:
        own = [run for run in runs if run.row == row]
        if own:
            yield row, own


def _step_block(runs: Sequence[Run]) -> Block:
    parts = stretches(runs[0])
    rows = [
        (
            LABELS[row],
            str(len(own)),
            *(_amount([step_ms(run, part) for run in own]) for part in parts),
            mean_sd([slowdown(run) for run in own]),
        )
        for row, own in rows_of(runs)
    ]
    return Block(
        "A training step, measured ms, by the rate of the links",
        "Wall time of training steps without evaluation; mean +- standard deviation over seeds. Slowdown: "
        "while the rate is low over the rest of the run.",
        (
            "row",
            "n",
            *(f"{part.rate}: steps {part.first}-{part.last}" for part in parts),
            "slowdown",
        ),
        tuple(rows),
    )


def _amount(values: Sequence[float]) -> str:
    """Mean +- standard deviation without an exponent."""
    series = pd.Series(list(values), dtype=float)
    texts = [
        f"{v:.0f}" if abs(v) >= 100 else f"{v:.3g}" for v in (series.mean(), series.std(ddof=1))
    ]
    return texts[0] if len(series) < 2 else " +- ".join(texts)


def _quality(runs: Sequence[Run]) -> str:
    """The metric of what was trained: a text's perplexity, or accuracy."""
    has = all("test/perplexity" in run.epochs.columns for run in runs)
    return "test/perplexity" if has else "test/accuracy_percent"


def _target_block(runs: Sequence[Run], target: Target | None) -> Block:
    quality, rows = _quality(runs), []
    for row, own in rows_of(runs):
        times = [] if target is None else [seconds_to(run, target.loss) for run in own]
        met = [seconds for seconds in times if not math.isnan(seconds)]
        short_of = f" ({len(met)} of {len(own)})" if met and len(met) < len(own) else ""
        rows.append(
            (
                LABELS[row],
                str(len(own)),
                f"{_amount(met)}{short_of}" if met else NEVER if times else "-",
                _amount([_last(run, "time/train_seconds") for run in own]),
                mean_sd([_last(run, "train/loss") for run in own]),
                mean_sd([_last(run, quality) for run in own]),
                _amount([_last(run, "comm/payload_bytes") / 1e6 for run in own]),
                _amount([run.summary.get(COUNTED, math.nan) / 1e6 for run in own]),
            )
        )
    return Block(
        "Time to the target loss",
        "Target: " + ("-" if target is None else target.text) + ". Seconds in training steps; bytes a worker "
        "over the whole run, payloads by the ledger and all that its interface has sent.",
        (
            *("row", "n", "s to target", "s in all", "train loss"),
            *(quality.replace("/", " ").replace("_percent", " %"), "payload MB", "sent MB"),
        ),
        tuple(rows),
        narrow=(0, 2, 3, 4, 5),
    )  # fmt: skip


def _last(run: Run, metric: str) -> float:
    return float(run.epochs[metric].iloc[-1])


def _sent_block(runs: Sequence[Run]) -> Block:
    rows = []
    for row, own in rows_of(runs):
        for number, part in enumerate(stretches(own[0])):
            found = [shares(run, stretches(run)[number]) for run in own]
            gains = [gain for each in found if not math.isnan(gain := each.gain)]
            rows.append(
                (
                    LABELS[row],
                    f"{part.rate}: {part.first}-{part.last}",
                    _amount([factor(run, stretches(run)[number]) for run in own]),
                    mean_sd(gains),
                    *(
                        _amount([100 * each.branches[branch] for each in found])
                        if all(each.branches for each in found)
                        else "-"
                        for branch in ("candidate", "theta_min", "dense")
                    ),
                )
            )
    return Block(
        "What was sent",
        "Factor: geometric mean over steps (nominal; of Accordion, all values over those it sent). Gain: of "
        "what was sent, mean over steps. Last three: steps by branch, %, of policies that choose.",
        ("row", "rate: steps", "factor", "gain", "candidate %", "theta_min %", "dense %"),
        tuple(rows),
    )


def _window_block(runs: Sequence[Run]) -> Block:
    rows = []
    for row, own in rows_of(runs):
        if row not in (lab.GRAVAC, lab.THAWED, lab.BUCKET):
            continue
        first = min(own, key=lambda run: run.seed)
        for entry in first.policy.to_dict("records"):
            step = int(entry["step"])
            part = next((p for p in stretches(first) if p.first <= step <= p.last), None)
            reason = entry.get("reason")
            rows.append(
                (
                    LABELS[row],
                    str(step),
                    "-" if part is None else part.rate,
                    *(_bare(entry.get(key)) for key in ("label", "next_label")),
                    f"{float(entry['theta_min']):g}x",
                    "" if reason is None or pd.isna(reason) else str(reason),
                )
            )
    seeds = distinct([min(run.seed for run in own) for _, own in rows_of(runs)])
    return Block(
        "GraVAC's windows",
        f"Of seed {seeds}. What decides: in a step, gains alone. Between windows a candidate grows until the "
        "two largest compression throughputs on record differ by at most omega. Those of factors that are "
        "sent no longer stay on record as they were, at the rate of then. Nothing ever makes a candidate "
        "smaller but that test.",
        ("row", "after step", "rate", "tried", "next", "theta_min", "because"),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5),
    )


def _bare(label: object) -> str:
    """A rung's label without the setting's name."""
    return str(label).rpartition("=")[2] + ("x" if "=" in str(label) else "")


def _numbers(runs: Sequence[Run], target: Target | None) -> Iterator[dict[str, object]]:
    for run in runs:
        place = {"row": run.row, "seed": run.seed}
        for part in stretches(run):
            at = {**place, "rate": part.rate, "first": part.first, "last": part.last}
            yield {**at, "column": "step_ms", "value": step_ms(run, part)}
            yield {**at, "column": "factor", "value": factor(run, part)}
            yield {**at, "column": "gain", "value": shares(run, part).gain}
        yield {**place, "column": "slowdown", "value": slowdown(run)}
        if target is not None:
            yield {**place, "column": "target_loss", "value": target.loss}
            yield {**place, "column": "target_seconds", "value": seconds_to(run, target.loss)}
        for column, metric in (
            ("train_seconds", "time/train_seconds"),
            ("train_loss", "train/loss"),
            (_quality(runs).replace("/", "_"), _quality(runs)),
            ("payload_bytes", "comm/payload_bytes"),
        ):
            yield {**place, "column": column, "value": _last(run, metric)}


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """Factor, gain and throughput by step with the low rate shaded; training loss by time."""
    target = target_of(runs)
    shown = [(row, min(own, key=lambda run: run.seed)) for row, own in rows_of(runs)]
    with style.house_style():
        drawing = Figure(figsize=(10.0, 7.4), layout="constrained")
        factors, gains, throughputs, losses = drawing.subplots(2, 2).flat
        for row, run in shown:
            colour, dashes = LOOKS[row]
            look = {"color": colour, "linestyle": dashes, "linewidth": 1.4}
            steps = steps_of(run)
            factors.plot(steps["step"], steps["factor"], drawstyle="steps-mid", **look)
            gains.plot(steps["step"], steps["gain"], **look)
            smooth = steps["throughput"].rolling(ROLLING, center=True, min_periods=1).median()
            throughputs.plot(steps["step"], smooth, **look)
            losses.plot(
                run.epochs["time/train_seconds"], run.epochs["train/loss"], marker="o", markersize=3,
                label=LABELS[row], **look,
            )  # fmt: skip
        for axes in (factors, gains, throughputs):
            for part in (parts := stretches(shown[0][1])):
                if is_low(part, parts):
                    axes.axvspan(
                        part.first - 0.5, part.last + 0.5, color="#E8E8E8", zorder=0, linewidth=0
                    )
            axes.set_xlabel("step")
        for axes, name in (
            (factors, "compression factor (log)"),
            (throughputs, "samples a second times gain (log)"),
            (losses, "training loss of an epoch (log)"),
        ):
            axes.set_yscale("log")
            style.plain_log(axes.yaxis)
            axes.set_ylabel(name)
        gains.set_ylabel("gain of what was sent")
        gains.set_ylim(0, 1.03)
        losses.set_xscale("log")
        style.plain_log(losses.xaxis)
        losses.set_xlabel("seconds in training steps, measured (log)")
        if target is not None:
            losses.axhline(target.loss, color="#666666", linewidth=0.8)
        seed = f"seed {shown[0][1].seed}"
        workers, counts = runs[0].setting("launch.workers"), [len(own) for _, own in rows_of(runs)]
        caption = f"{scale_label(scale)}; {workers} workers; {figures.counts_label(counts)}"
        style.title(factors, "Factor", caption)
        rates = ", ".join(part.rate for part in parts if is_low(part, parts)) or "nothing"
        style.title(gains, "Gain", f"{seed}; Accordion looks at none; shaded: {rates}")
        style.title(throughputs, "Compression throughput", f"{seed}; medians of {ROLLING} steps")
        style.title(losses, "Time to the target loss", f"{seed}; grey line: the target")
        drawing.legend(
            *losses.get_legend_handles_labels(), loc="outside lower center", ncols=len(shown)
        )
    return drawing
