"""GraVAC's figures 1b and 4 to 6 as claims: the gradient's variance, and gains at fixed factors.

Rows are runs of one pool, named ``<model>.<method>``; a part of a run is a row of its own. A step that the
paper prints is read as its share of `STEPS`, so that a shorter run has the same moments.
"""

from __future__ import annotations

import math

from dgc_repro.paper.claim import Check, Claim, SilentChoice, Source
from dgc_repro.paper.gravac import LABELS, LSTM, OURS, PAPER, RESNET101, VGG16
from dgc_repro.paper.gravac_quality import printed
from dgc_repro.paper.gravac_training import MILESTONES, MODEL_IDS, QUALITY, row_id, with_norm_gain

STEPS = 18_000
"""Steps of a run of the paper. Ours: its learning rate decays at 9,000 and 14,000, and figure 10 speaks of
16,000 and later."""
VARIANCE = "dense_variance"
WEAK, STRONG = "dgc10_gains", "dgc1000_gains"
ZERO = "0"
"""A row that is a number: what a claim of one row is compared with."""


def part(name: str, where: str) -> str:
    """A part of a row's steps."""
    return f"{name}, {where}"


# -- figure 1b: the variance of the gradient over the starting iterations. No series, no number printed.

FIRST, LAST = "first tenth", "last tenth"
STARTING = MILESTONES[0]
"""The starting iterations: those before the learning rate first decays. Ours."""
TENTH = 0.1

FIG1B_CLAIMS = tuple(
    Claim(
        f"{model}.falls",
        f"{LABELS[model]}: the gradient varies most at the start.",
        OURS,
        (
            Check(
                "variance",
                part(row_id(model, VARIANCE), FIRST),
                part(row_id(model, VARIANCE), LAST),
                above=1.0,
                ratio=True,
            ),
        ),
        "Mean over workers of ||g_i||^2 less ||mean g||^2, averaged over the first and over the last tenth "
        f"of the starting iterations (the first {STARTING:,} of {STEPS:,} steps, or that share of a "
        "shorter run), of dense training. The figure has no number among our sources; what it shows is put "
        "in these words by us.",
    )
    for model in MODEL_IDS
)

FIG1B_CHOICES = (
    SilentChoice(
        "variance over what",
        "over workers: the mean of the squared norms of their gradients, less that of the mean gradient; all "
        "tensors together",
        "policy.spread",
    ),
    SilentChoice(
        "how many iterations are the starting ones",
        f"{STARTING:,} of {STEPS:,}, as a share of the run",
        "train.epochs",
    ),
)

# -- figures 4 to 6: norms before and after compression, quality and gain, at 10x and 1000x

FIGURE = {RESNET101: 4, VGG16: 5, LSTM: 6}
NEAR_ONE = 0.9
"""A gain near 1.0. Ours."""
LSTM_GAIN, HALF_DECIMAL = (0.8, 0.9), 0.05
LOW_GAIN = 0.5
"""A low gain: more is lost than sent. Ours."""
LOW_STEPS = 1_000
EARLY, LATER = f"first {LOW_STEPS:,} steps", "later"
RESNET101_DGC = tuple(printed(RESNET101, f"dgc{factor}", QUALITY) for factor in (10, 1000))
ROBUST_POINTS = RESNET101_DGC[0] - RESNET101_DGC[1]
"""Robust: less is lost between 10x and 1000x than ResNet101 loses in Table II. Ours."""


def _source(model: str) -> Source:
    return Source(PAPER, f"figure {FIGURE[model]}")


def _near_one(model: str) -> Claim:
    return Claim(
        f"{model}.10x",
        f"{LABELS[model]}: the gain is near 1.0 at 10x.",
        _source(model),
        (Check("gain", row_id(model, WEAK), ZERO, above=NEAR_ONE),),
        f"Mean over the recorded steps of DGC at a fixed 10x, with error feedback; near: above {NEAR_ONE:g}.",
    )


_RESNET101 = (
    Claim(
        "resnet101.low",
        f"ResNet101: at 1000x the gain is low for the first {LOW_STEPS:,} steps.",
        _source(RESNET101),
        (
            Check(
                "gain",
                part(row_id(RESNET101, STRONG), EARLY),
                ZERO,
                above=-math.inf,
                below=LOW_GAIN,
            ),
        ),
        f"Mean gain of the first {LOW_STEPS:,} of {STEPS:,} steps, or that share of a shorter run; low: less "
        "than half of the gradient's energy is sent.",
    ),
    Claim(
        "resnet101.grows",
        "ResNet101: at 1000x the gain grows after that.",
        _source(RESNET101),
        (
            Check(
                "gain",
                part(row_id(RESNET101, STRONG), LATER),
                part(row_id(RESNET101, STRONG), EARLY),
            ),
        ),
        "Mean gain of the later steps against that of the first ones.",
    ),
    Claim(
        "resnet101.oscillates",
        "ResNet101: at 1000x the gain oscillates.",
        _source(RESNET101),
        (
            Check(
                "gain_sd",
                part(row_id(RESNET101, STRONG), LATER),
                part(row_id(RESNET101, WEAK), LATER),
            ),
        ),
        "Standard deviation over the later steps, against that at 10x.",
    ),
)
_VGG16 = (
    Claim(
        "vgg16.robust",
        "VGG16 is robust to compression.",
        _source(VGG16),
        (
            Check(
                QUALITY,
                row_id(VGG16, WEAK),
                row_id(VGG16, STRONG),
                above=-math.inf,
                below=ROBUST_POINTS,
            ),
        ),
        "Final quality at 10x less that at 1000x, in points; robust: it loses less than the "
        f"{ROBUST_POINTS:.1f} points that ResNet101 loses in Table II "
        f"({RESNET101_DGC[0]:g} % and {RESNET101_DGC[1]:g} %, DGC).",
    ),
)
_LSTM = (
    Claim(
        "lstm.1000x",
        f"LSTM: the gain is {LSTM_GAIN[0]:g} to {LSTM_GAIN[1]:g} at 1000x.",
        _source(LSTM),
        (
            Check(
                "gain",
                row_id(LSTM, STRONG),
                ZERO,
                above=LSTM_GAIN[0] - HALF_DECIMAL,
                below=LSTM_GAIN[1] + HALF_DECIMAL,
            ),
        ),
        "Mean over the recorded steps of DGC at a fixed 1000x, with error feedback; half of the last printed "
        "decimal is allowed at either end.",
    ),
)
NORM_GAIN = {"gain": "gain_norm", "gain_sd": "gain_norm_sd"}
OF_GAINS = {
    RESNET101: (_near_one(RESNET101), *_RESNET101),
    VGG16: (_near_one(VGG16),),
    LSTM: (_near_one(LSTM), *_LSTM),
}
"""By model: claims on the energy gain, as printed."""
OF_NORM_GAINS = {
    model: tuple(with_norm_gain(claim, quantities=NORM_GAIN) for claim in claims)
    for model, claims in OF_GAINS.items()
}
GAINS_CLAIMS = {
    model: (*OF_GAINS[model], *OF_NORM_GAINS[model], *(_VGG16 if model == VGG16 else ()))
    for model in MODEL_IDS
}
"""By model: figures 4, 5 and 6."""

GAINS_CHOICES = (
    SilentChoice(
        "the compressor",
        "DGC's sampled threshold with error feedback, layerwise, one factor for the whole run",
        "compressor",
    ),
    SilentChoice(
        "the gain",
        "both: energy (as printed) and norm (as in the authors' code)",
        "policy.gain",
    ),
    SilentChoice(
        "which gradient's norm",
        "before: the error-fed one; after: what is sent of it; all tensors, mean over workers",
        "policy",
    ),
)
