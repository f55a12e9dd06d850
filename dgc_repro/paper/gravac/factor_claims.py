"""Claims and notes of GraVAC's figures 7 to 10, and what each figure shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dgc_repro.paper import gravac
from dgc_repro.paper.claims import OURS, Check, Claim, Note, near
from dgc_repro.paper.gravac import DENSE, GRAVAC, GRAVAC_STRICT, RESNET101, VGG16, row_id
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import COMPRESSED_FROM, FLOATS, SHARE, STEPS, at_factor

LSTM, GEOMETRIC, REDUCTIONS = gravac.LSTM, gravac.GEOMETRIC, gravac.REDUCTIONS
SHORT_WINDOW = "gravac07_short"
EPS = 0.7
WINDOW, GEOMETRIC_WINDOW = 500, 2_000
TEN, FORTY, THOUSAND = 10.0, 40.0, 1000.0
EVEN, SIMILAR = (0.25, 0.75), 2.0
"""Ours: two factors are even if each has such a share; densities are similar if none is twice another."""
DECAY_STEP, AFTER_DECAY = gravac.MILESTONES[0], 1_000
SIMILAR_FACTORS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
LATE_STEP, LATE_FACTOR = 16_000, 1280.0
DIP = "dip"
EVENNESS, LATE = "largest share over smallest", f"share of steps at {LATE_FACTOR:g}x, late"
ARRIVED, CURVE = "share of steps at 1000x, last tenth", "mean quality over the run"


@dataclass(frozen=True)
class Shown:
    """A figure: its ``number``, ``model``, and ``printed`` methods (each is drawn with both gains).
    ``others``: methods of a further table; ``on_throughput``: what the paper prints of it."""

    number: int
    model: str
    printed: tuple[str, ...]
    claims: tuple[Claim, ...]
    notes: tuple[Note, ...] = ()
    others: tuple[str, ...] = ()
    on_throughput: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that adapt: with the energy gain, then with the norm gain."""
        return (*self.printed, *map(gravac.norm_of, self.printed))


# -- claims


def _volume_claims(model: str, method: str, where: str) -> tuple[Claim, Claim]:
    """Less is sent than in dense training, and by how much."""
    row, printed = row_id(model, method), REDUCTIONS[model][method]
    text = f"{gravac.MODELS[model]}, {gravac.LOOKS[method].label.partition(',')[0]}:"
    less = Check(FLOATS, row_id(model, DENSE), row, above=COMPRESSED_FROM, ratio=True)
    return (
        Claim(f"{row}.less", f"{text} less is sent than in dense training.", where, (less,), _LESS),
        Claim(
            f"{row}.volume", f"{text} {printed:g}x less is sent.", where,
            (training.fewer_floats(model, method, printed),),
            "Floats of the whole run, dense over GraVAC's, within a factor of two.", margin=OURS,
        ),
    )  # fmt: skip


def _share(model: str, method: str, factor: float, above: float, below: float = math.inf) -> Check:
    return Check(SHARE, row_id(model, method), above=above, below=below, setting=at_factor(factor))


def _mostly(model: str, method: str, factor: float) -> Check:
    return _share(model, method, factor, steps.MOSTLY)


def _rank(model: str, factor: float, rank: int) -> Check:
    check = Check(steps.RANK, row_id(model, GRAVAC), setting=at_factor(factor))
    return near(check, rank, 0.5)


_LESS = f"Floats sent over the whole run, paired by seed; less: by more than {COMPRESSED_FROM:g}x."
_SHARES = steps.SHARES_READING
_MOSTLY = f"{_SHARES} Mostly: more than half."
_THROUGHPUT = (
    "Rank by mean compression throughput among the factors that the run sent; untested where the "
    "factor was never sent."
)
DIP_READING = (
    "Test quality at the last evaluation before the learning rate first falls, less the lowest of the "
    f"evaluations in the next {AFTER_DECAY:,} of {STEPS:,} steps (one at least). Our notes do not say of "
    "which curve; the gains around the decay stand in a table."
)
_both = training.compressed(RESNET101, GRAVAC, GRAVAC_STRICT)
_OF_MODEL = {
    RESNET101: (
        Claim(
            "resnet101.even", "ResNet101, eps 0.9: trains evenly between 10x and 1000x.", "figure 7",
            tuple(_share(RESNET101, GRAVAC_STRICT, factor, *EVEN) for factor in (TEN, THOUSAND)),
            f"{_SHARES} Evenly: each of the two has {EVEN[0]:.0%} to {EVEN[1]:.0%} of them.", margin=OURS,
        ),
        Claim(
            "resnet101.theta_min", "ResNet101, eps 0.9: theta_min is left at 10.", "figure 7",
            (near(Check(steps.THETA_MIN, row_id(RESNET101, GRAVAC_STRICT)), TEN, 0.5),),
            "The largest theta_min of the run.", training.compressed(RESNET101, GRAVAC_STRICT),
        ),
        Claim(
            "resnet101.mostly", "ResNet101, eps 0.7: mostly at 1000x.", "figure 7",
            (_mostly(RESNET101, GRAVAC, THOUSAND),), _MOSTLY,
        ),
        Claim(
            "resnet101.dip", f"ResNet101: a dip at step {DECAY_STEP:,}, where the learning rate decays.",
            "figure 7", tuple(Check(DIP, row_id(RESNET101, m)) for m in (GRAVAC, GRAVAC_STRICT)), DIP_READING,
            _both,
        ),
        Claim(
            "resnet101.deeper", "ResNet101: the dip is deeper for eps 0.7.", "figure 7",
            (Check(DIP, row_id(RESNET101, GRAVAC), row_id(RESNET101, GRAVAC_STRICT)),), DIP_READING, _both,
        ),
        Claim(
            "resnet101.window", "ResNet101: a too small window hurts convergence.", "conclusion",
            (training.better(RESNET101, GRAVAC, SHORT_WINDOW),),
            "Final quality with the window of the figure against a tenth of it; the direction only.",
            training.compressed(RESNET101, GRAVAC, SHORT_WINDOW),
        ),
        Claim(
            "resnet101.throughput", "ResNet101, eps 0.7: compression throughput is largest at 1000x.",
            "figure 7, throughput by factor, in our words", (_rank(RESNET101, THOUSAND, 1),), _THROUGHPUT,
            margin=OURS, assumed=training.ASSUMED,
        ),
    ),
    VGG16: (
        Claim(
            "vgg16.tight", "VGG16, eps 0.9: mostly at 10x.", "figure 8",
            (_mostly(VGG16, GRAVAC_STRICT, TEN),), _MOSTLY,
        ),
        Claim(
            "vgg16.loose", "VGG16, eps 0.7: at 40x, then 1000x.", "figure 8",
            (
                Check(steps.LEAD, row_id(VGG16, GRAVAC), setting=at_factor(FORTY)),
                near(Check(steps.RUNNER_UP, row_id(VGG16, GRAVAC)), THOUSAND, 0.5),
            ),
            f"{_SHARES} Read as ranks: 40x has the most steps and 1000x the second most.",
        ),
        Claim(
            "vgg16.second", "VGG16, eps 0.7: 40x has the second largest compression throughput and meets the "
            "threshold.", "text on figure 8",
            (
                _rank(VGG16, FORTY, 2),
                Check(steps.AT_GAIN, row_id(VGG16, GRAVAC), above=EPS, setting=at_factor(FORTY)),
            ),
            f"{_THROUGHPUT} Threshold: the mean gain of the steps at 40x is above {EPS:g}.",
            assumed=training.ASSUMED,
        ),
        Claim(
            "vgg16.arrives", "VGG16, eps 0.7: training ultimately arrives at 1000x.", "text on figure 8",
            (Check(ARRIVED, row_id(VGG16, GRAVAC), above=steps.MOSTLY),),
            "More than half of the last tenth of the recorded steps.",
        ),
    ),
    LSTM: (
        Claim(
            "lstm.mostly", "LSTM: mostly at 1000x for both.", "figure 9",
            tuple(_mostly(LSTM, method, THOUSAND) for method in (GRAVAC, GRAVAC_STRICT)), _MOSTLY,
        ),
        Claim(
            "lstm.throughput", "LSTM, eps 0.7: compression throughput is largest at 1000x.",
            "figure 9, throughput by factor, in our words", (_rank(LSTM, THOUSAND, 1),), _THROUGHPUT,
            margin=OURS, assumed=training.ASSUMED,
        ),
    ),
}  # fmt: skip
_FIGURES = {RESNET101: 7, VGG16: 8, LSTM: 9}


def _model_claims(model: str) -> tuple[Claim, ...]:
    """The claims of a model's figure: its own, what is sent at both eps, and the sweep of eps. By how much
    less is sent is judged on Table II's page, which has more seeds."""
    where, (loose, strict) = f"figure {_FIGURES[model]}", (GRAVAC, GRAVAC_STRICT)
    larger, smaller = (REDUCTIONS[model][method] for method in (loose, strict))
    rows = (row_id(model, strict), row_id(model, loose))
    least = min(COMPRESSED_FROM, math.sqrt(larger / smaller))  # 289x and 279x are 1.04x apart
    lowest, high = next(iter(gravac.EPS_SWEEP)), gravac.norm_of(strict)
    return (
        *_OF_MODEL[model],
        *(_volume_claims(model, method, where)[0] for method in (loose, strict)),
        Claim(
            f"{model}.eps",
            f"{gravac.MODELS[model]}: eps 0.7 sends less than eps 0.9 ({larger:g}x and {smaller:g}x).", where,
            (Check(FLOATS, *rows, above=least, ratio=True),),
            f"Floats sent over the whole run, paired by seed; less: by more than {least:.3g}x.",
        ),
        Claim(
            f"{model}.small_eps", f"{gravac.MODELS[model]}: a too small eps degrades the model.",
            "text on eps", (training.better(model, high, lowest),),
            f"Final quality of eps 0.9 against eps {gravac.EPS_SWEEP[lowest]:g}, norm gain.",
            training.compressed(model, lowest),
        ),
    )  # fmt: skip


_slow = row_id(RESNET101, GEOMETRIC)
_GEOMETRIC = (
    Claim(
        "geometric.similar",
        f"Similar densities from {SIMILAR_FACTORS[0]:g}x to {SIMILAR_FACTORS[-1]:g}x.", "figure 10",
        (Check(EVENNESS, _slow, below=SIMILAR),),
        f"{_SHARES} The largest share of these factors over the smallest, below {SIMILAR:g}; infinite where "
        "a factor was never sent.", margin=OURS,
    ),
    Claim(
        "geometric.late", f"{LATE_FACTOR:g}x from iteration {LATE_STEP:,} on.", "figure 10",
        (Check(LATE, _slow, above=steps.MOSTLY),),
        f"After as many windows of the run as {LATE_STEP:,} steps are of {GEOMETRIC_WINDOW:,}, more than "
        f"half of the steps are sent at {LATE_FACTOR:g}x.",
    ),
    Claim(
        "geometric.slower", "Slower convergence than the exponential policy.", "figure 10",
        (Check(CURVE, row_id(RESNET101, GRAVAC), _slow),),
        "Mean of the test quality over all evaluations of a run. Both eps 0.7; the exponential one is on "
        "DGC, as figure 7's, so that the compressor differs too.",
        training.compressed(RESNET101, GRAVAC, GEOMETRIC),
    ),
    *_volume_claims(RESNET101, GEOMETRIC, "figure 10"),
)  # fmt: skip


def _steps_for(reduction: float, windows: Sequence[tuple[float, int]], last: float) -> float:
    """The steps after which these windows (factor, steps) and then the factor ``last`` have sent
    ``reduction`` times fewer floats than dense."""
    sent, done = sum(n / factor for factor, n in windows), sum(n for _, n in windows)
    return (sent - done / last) / (1 / reduction - 1 / last)


def exponential_steps() -> float:
    """Steps at which the printed reduction of ResNet101 at eps 0.7 comes of no dense step at all."""
    windows = [(factor, WINDOW) for factor in (10.0, 20.0, 40.0, 160.0)]
    return _steps_for(REDUCTIONS[RESNET101][GRAVAC], windows, THOUSAND)


def geometric_steps() -> tuple[float, float]:
    """The most that the geometric policy saves in the paper's steps, and the steps its reduction needs."""
    windows = [(factor, GEOMETRIC_WINDOW) for factor in (*SIMILAR_FACTORS, LATE_FACTOR)]
    rest, largest = STEPS - sum(n for _, n in windows), float(max(gravac.IDEAL))
    most = STEPS / (sum(n / factor for factor, n in windows) + rest / largest)
    return most, _steps_for(REDUCTIONS[RESNET101][GEOMETRIC], windows, LATE_FACTOR)


_most, _needed = geometric_steps()
EXPONENTIAL_NOTE = Note(
    f"{REDUCTIONS[RESNET101][GRAVAC]:g}x for ResNet101 at eps 0.7 leaves no room for a dense step.",
    f"{WINDOW} steps each at 10x, 20x, 40x and 160x, then 1000x, give it after {exponential_steps():,.0f} "
    "steps. A dense step sends as much as 1,000 steps at 1000x: nearly no step may be dense.",
)
GEOMETRIC_NOTE = Note(
    f"{REDUCTIONS[RESNET101][GEOMETRIC]:g}x is too much for geometric scaling in {STEPS:,} steps.",
    f"{GEOMETRIC_WINDOW:,} steps each at 10x, 20x, ... {LATE_FACTOR:g}x, then {max(gravac.IDEAL)}x: at most "
    f"{_most:.0f}x; the printed number needs about {_needed:,.0f} steps.",
)
_IDEAL = (
    f"Printed: {gravac.IDEAL[1280]} at 1280x and {gravac.IDEAL[2000]} at 2000x, "
    f"{100 * (1 - gravac.IDEAL[1280] / gravac.IDEAL[2000]):.2f} % apart, within omega = 1 %, so that the "
    "smaller factor is chosen."
)
SHOWN = {
    7: Shown(
        7, RESNET101, (GRAVAC, GRAVAC_STRICT), _model_claims(RESNET101), (EXPONENTIAL_NOTE,),
        (*gravac.EPS_SWEEP, "gravac07_bucket", SHORT_WINDOW),
    ),
    8: Shown(8, VGG16, (GRAVAC, GRAVAC_STRICT), _model_claims(VGG16), (), tuple(gravac.EPS_SWEEP)),
    9: Shown(9, LSTM, (GRAVAC, GRAVAC_STRICT), _model_claims(LSTM), (), tuple(gravac.EPS_SWEEP)),
    10: Shown(10, RESNET101, (GRAVAC, GEOMETRIC), _GEOMETRIC, (GEOMETRIC_NOTE,), (), _IDEAL),
}  # fmt: skip


def claims_of(shown: Shown) -> tuple[Claim, ...]:
    """The claims of a figure, with both gains."""
    single = (f"{shown.model}.window", f"{shown.model}.small_eps")
    both = [claim for claim in shown.claims if claim.id not in single]
    return (*shown.claims, *map(steps.of_norm, both))
