"""GraVAC's figures 7 to 10 as claims: which factors GraVAC trains with, and how much less it sends."""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper.claim import Check, Claim, Contradiction, SilentChoice, Source
from dgc_repro.paper.gravac import LABELS, LSTM, PAPER, RESNET101, VGG16
from dgc_repro.paper.gravac_figures import STEPS, ZERO
from dgc_repro.paper.gravac_quality import VOLUME_FACTOR, less_by
from dgc_repro.paper.gravac_training import (
    COMPRESSED_FROM,
    DENSE,
    FLOATS,
    GRAVAC,
    GRAVAC_STRICT,
    MILESTONES,
    QUALITY,
    REDUCTIONS,
    compressed,
    row_id,
    with_norm_gain,
)

GEOMETRIC, BUCKET = "gravac_geometric", "gravac07_bucket"
SHORT_WINDOW = "gravac07_short"
VARIANTS = {BUCKET: "decides a step later", SHORT_WINDOW: "a tenth of the window"}
"""Of figure 7's eps 0.7: ours, deciding each step from the gains of the one before; and the conclusion's
window too small."""
NORM = {method: f"{method}_norm" for method in (GRAVAC, GRAVAC_STRICT, GEOMETRIC)}
"""The same rows with the gain of the authors' code (sums of L2 norms)."""
SWEEP = {
    "gravac05_norm": 0.5, "gravac06_norm": 0.6, "gravac07_norm": 0.7, "gravac08_norm": 0.8,
    "gravac09_norm": 0.9, "gravac095_norm": 0.95,
}  # fmt: skip
"""The eps sweep with the norm gain (ours), ascending."""
EPS = {GRAVAC: 0.7, GRAVAC_STRICT: 0.9, GEOMETRIC: 0.7}
SHORT = {GRAVAC: "eps 0.7", GRAVAC_STRICT: "eps 0.9", GEOMETRIC: "geometric"}
SHORT |= {norm: f"{SHORT[method]} norm" for method, norm in NORM.items()}
"""Rows in a table."""
FIGURE = {RESNET101: 7, VGG16: 8, LSTM: 9}
GEOMETRIC_FIGURE = 10
MOST = 0.5
"""Mostly: more than this share of the steps."""
EVEN = (0.25, 0.75)
"""Evenly between two factors: each has a share of the steps in this range. Ours."""
SIMILAR = 2.0
"""Similar densities: none is more than so many times another. Ours."""
DECAY_STEP, AFTER_DECAY = MILESTONES[0], 1_000
TEN, THOUSAND = 10.0, 1000.0


def share_at(factor: float) -> str:
    """The quantity: which share of the steps was sent at a factor."""
    return f"share@share of steps at {factor:g}x"


def lead_of(factor: float) -> str:
    """The quantity: by how much a factor's share of the steps exceeds every other's."""
    return f"lead@lead of {factor:g}x over any other factor, share of steps"


def named(method: str) -> str:
    """GraVAC's row in words."""
    if method not in EPS:
        return f"{named(next(own for own, norm in NORM.items() if norm == method))}, norm gain"
    what = "geometric with Redsync" if method == GEOMETRIC else "exponential with DGC"
    return f"GraVAC, eps {EPS[method]:g}, {what}"


def _source(model: str) -> Source:
    return Source(PAPER, f"figure {FIGURE[model]}")


def reduction_claims(model: str, method: str, source: Source) -> tuple[Claim, Claim]:
    """That less is sent than in dense training, and by how much."""
    printed = REDUCTIONS[model][method]
    text = f"{LABELS[model]}, {SHORT[method]}: "
    rows = (row_id(model, DENSE), row_id(model, method))
    return (
        Claim(
            f"{rows[1]}.less",
            f"{text}less is sent than in dense training.",
            source,
            (Check(FLOATS, *rows, above=COMPRESSED_FROM, ratio=True),),
            "Floats sent over the whole run, dense over GraVAC's, paired by seed; the direction only. Less: "
            f"more than {COMPRESSED_FROM:g}x.",
        ),
        Claim(
            f"{rows[1]}.volume",
            f"{text}{printed:g}x less is sent.",
            source,
            (less_by(rows, printed),),
            f"log10 of the floats of the whole run, within a factor of {VOLUME_FACTOR:g}: ours. In floats, "
            "the paper's unit: places are not counted; payload and wire bytes stand beside (table).",
        ),
    )


def _mostly(model: str, method: str, factor: float) -> Check:
    return Check(share_at(factor), row_id(model, method), ZERO, above=MOST)


_READ_SHARES = "Shares of the recorded steps by the factor of what was sent. "
_RESNET101 = (
    Claim(
        "resnet101.even",
        "ResNet101, eps 0.9: trains evenly between 10x and 1000x.",
        _source(RESNET101),
        tuple(
            Check(
                share_at(factor),
                row_id(RESNET101, GRAVAC_STRICT),
                ZERO,
                above=EVEN[0],
                below=EVEN[1],
            )
            for factor in (TEN, THOUSAND)
        ),
        f"{_READ_SHARES}Evenly: each of the two has {100 * EVEN[0]:g} to {100 * EVEN[1]:g} % of them.",
    ),
    Claim(
        "resnet101.theta_min",
        "ResNet101, eps 0.9: theta_min is left at 10.",
        _source(RESNET101),
        (Check("theta_min", row_id(RESNET101, GRAVAC_STRICT), f"{TEN:g}", above=-0.5, below=0.5),),
        "The largest theta_min of the run.",
        premises=compressed(RESNET101, GRAVAC_STRICT),
    ),
    Claim(
        "resnet101.mostly",
        "ResNet101, eps 0.7: mostly at 1000x.",
        _source(RESNET101),
        (_mostly(RESNET101, GRAVAC, THOUSAND),),
        f"{_READ_SHARES}Mostly: more than half.",
    ),
    Claim(
        "resnet101.dip",
        f"ResNet101: a dip at step {DECAY_STEP:,}, where the learning rate decays.",
        _source(RESNET101),
        tuple(Check("dip", row_id(RESNET101, method), ZERO) for method in (GRAVAC, GRAVAC_STRICT)),
        "Of the convergence curve: test quality at the last evaluation before the learning rate first falls, "
        f"less the lowest of the evaluations in the next {AFTER_DECAY:,} of {STEPS:,} steps (one at "
        "least). Our notes do not say of which curve; gains around the decay stand in a table.",
        premises=compressed(RESNET101, GRAVAC, GRAVAC_STRICT),
    ),
    Claim(
        "resnet101.deeper",
        "ResNet101: the dip is deeper for eps 0.7.",
        _source(RESNET101),
        (Check("dip", row_id(RESNET101, GRAVAC), row_id(RESNET101, GRAVAC_STRICT)),),
        "The same dips.",
        premises=compressed(RESNET101, GRAVAC, GRAVAC_STRICT),
    ),
    Claim(
        "resnet101.window",
        "ResNet101: a too small window hurts convergence.",
        Source(PAPER, "conclusion"),
        (Check(QUALITY, row_id(RESNET101, GRAVAC), row_id(RESNET101, SHORT_WINDOW)),),
        "Final quality with the window of the figure against a tenth of it; the direction only.",
        premises=compressed(RESNET101, GRAVAC, SHORT_WINDOW),
    ),
)
_VGG16 = (
    Claim(
        "vgg16.tight",
        "VGG16, eps 0.9: mostly at 10x.",
        _source(VGG16),
        (_mostly(VGG16, GRAVAC_STRICT, TEN),),
        f"{_READ_SHARES}Mostly: more than half.",
    ),
    Claim(
        "vgg16.loose",
        "VGG16, eps 0.7: at 40x, then 1000x.",
        _source(VGG16),
        (
            Check(lead_of(40.0), row_id(VGG16, GRAVAC), ZERO),
            Check("runner_up", row_id(VGG16, GRAVAC), f"{THOUSAND:g}", above=-0.5, below=0.5),
        ),
        f"{_READ_SHARES}Read as ranks: 40x has the most steps and 1000x the second most. Read as an order in "
        "time it holds whenever both occur, since the candidate only grows.",
    ),
)
_LSTM = (
    Claim(
        "lstm.mostly",
        "LSTM: mostly at 1000x for both.",
        _source(LSTM),
        tuple(_mostly(LSTM, method, THOUSAND) for method in (GRAVAC, GRAVAC_STRICT)),
        f"{_READ_SHARES}Mostly: more than half.",
    ),
)


def _reductions(model: str) -> tuple[Claim, ...]:
    """Of both eps, and that the looser one sends less."""
    larger, smaller = (REDUCTIONS[model][method] for method in (GRAVAC, GRAVAC_STRICT))
    return (
        *(
            c
            for method in (GRAVAC, GRAVAC_STRICT)
            for c in reduction_claims(model, method, _source(model))
        ),
        Claim(
            f"{model}.eps",
            f"{LABELS[model]}: eps 0.7 sends less than eps 0.9 ({larger:g}x and {smaller:g}x).",
            _source(model),
            (
                Check(
                    "floats",
                    row_id(model, GRAVAC_STRICT),
                    row_id(model, GRAVAC),
                    above=COMPRESSED_FROM,
                    ratio=True,
                ),
            ),
            "Floats sent over the whole run, paired by seed; the direction only. Less: more than "
            f"{COMPRESSED_FROM:g}x.",
        ),
    )


def norm_claims(model: str, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """The claims on the rows with the norm gain."""
    rows = {row_id(model, method): row_id(model, norm) for method, norm in NORM.items()}
    return tuple(with_norm_gain(claim, rows) for claim in claims if claim.id != f"{model}.window")


FACTOR_CLAIMS = {
    RESNET101: (*_RESNET101, *_reductions(RESNET101)),
    VGG16: (*_VGG16, *_reductions(VGG16)),
    LSTM: (*_LSTM, *_reductions(LSTM)),
}
"""By model: figures 7, 8 and 9."""

# -- figure 10: the geometric policy

GEOMETRIC_WINDOW = 2_000
LATE_STEP, LATE_FACTOR = 16_000, 1280.0
LATE_WINDOWS = LATE_STEP // GEOMETRIC_WINDOW
SIMILAR_FACTORS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
IDEAL = {1280: 1029.9, 2000: 1035.4}
"""Printed compression throughputs of the two largest factors; the smaller factor is chosen."""
OMEGA = 0.01
LATE = f"late@share of steps at {LATE_FACTOR:g}x after window {LATE_WINDOWS}"
_fig10 = Source(PAPER, f"figure {GEOMETRIC_FIGURE}")

GEOMETRIC_CLAIMS = (
    Claim(
        "geometric.similar",
        f"Similar densities from {SIMILAR_FACTORS[0]:g}x to {SIMILAR_FACTORS[-1]:g}x.",
        _fig10,
        (Check("evenness", row_id(RESNET101, GEOMETRIC), ZERO, above=0.0, below=SIMILAR),),
        f"{_READ_SHARES}The largest share of these factors over the smallest, below {SIMILAR:g}; a factor "
        "that was never sent makes it infinite.",
    ),
    Claim(
        "geometric.late",
        f"{LATE_FACTOR:g}x from iteration {LATE_STEP:,} on.",
        _fig10,
        (Check(LATE, row_id(RESNET101, GEOMETRIC), ZERO, above=MOST),),
        f"Iteration {LATE_STEP:,} is the end of window {LATE_WINDOWS} of {GEOMETRIC_WINDOW:,} steps: after "
        f"as many windows of the run, more than half of the steps are sent at {LATE_FACTOR:g}x.",
    ),
    Claim(
        "geometric.slower",
        "Slower convergence than the exponential policy.",
        _fig10,
        (Check("curve_mean", row_id(RESNET101, GRAVAC), row_id(RESNET101, GEOMETRIC)),),
        "Mean of the test quality over all evaluations of a run, the area under the convergence curve. Both "
        "eps 0.7; the exponential one is on DGC, as figure 7's, so that the compressor differs too.",
        premises=compressed(RESNET101, GRAVAC, GEOMETRIC),
    ),
    *reduction_claims(RESNET101, GEOMETRIC, _fig10),
)


def _ideal_arithmetic() -> str:
    small, large = sorted(IDEAL)
    apart = (IDEAL[large] - IDEAL[small]) / IDEAL[large]
    chosen = small if apart <= OMEGA else large
    return (
        f"({IDEAL[large]} - {IDEAL[small]}) / {IDEAL[large]} = {100 * apart:.2f} %, at most omega = "
        f"{100 * OMEGA:g} %: {chosen}x is chosen over {large}x."
    )


GEOMETRIC_NOTES = (
    Contradiction(
        f"The printed throughputs of {' and '.join(f'{f}x' for f in IDEAL)} fit the rule that picks the "
        "smaller.",
        _ideal_arithmetic(),
    ),
)
"""A check of our reading of the algorithm, no contradiction."""

FACTOR_CHOICES = (
    SilentChoice(
        "the gain",
        "both: energy (as printed) and norm (as in the authors' code)",
        "policy.gain",
    ),
    SilentChoice(
        "what a step without compression counts as", "1x", "dgc_repro.report.gravac_factors"
    ),
    SilentChoice(
        "the unit of the bandwidth 0.1",
        "log10 of the factor, a Gaussian a step",
        "dgc_repro.report.gravac_factors.BANDWIDTH",
    ),
    SilentChoice(
        "smoothing of the gain with few workers",
        "N / 100 at scale paper; at the reduced scales 0.32, that of the paper's 32 workers",
        "policy.smoothing",
    ),
    SilentChoice(
        "after the ideal factor is found", "it stays (the authors' code)", "policy.freeze"
    ),
    SilentChoice(
        "throughput of a factor", "mean over the window, on the network's model", "train.step_time"
    ),
)
