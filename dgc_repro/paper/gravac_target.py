"""GraVAC's figure 2: speedup to the target by compression factor, normalized by 10x; 0 = not reached.

Of the figure there is text: its known points are here, and where they contradict Table II.
"""

from __future__ import annotations

from dgc_repro.paper.claim import Check, Claim, Contradiction, SilentChoice, Source
from dgc_repro.paper.gravac import LABELS, LSTM, PAPER, RESNET101, VGG16
from dgc_repro.paper.gravac_quality import printed
from dgc_repro.paper.gravac_training import (
    ASSUMED,
    FACTORS,
    METHOD_LABELS,
    REACHED,
    SETUP,
    SILENT_CHOICES,
    TO_TARGET,
    ZERO,
    row_id,
    unit,
)

BEST_TOPK = {RESNET101: 100, VGG16: 1000, LSTM: 10}
"""At which factor Top-k meets each model's target soonest."""
ONLY_AT_10 = (VGG16, LSTM)
"""Models that meet their target with Random-k at 10x, and at no other factor."""
_fig2 = Source(PAPER, "figure 2")
_REACHED = "1 where a run meets the target of our dense runs in an epoch, 0 where it does not."


def _best_claim(model: str) -> Claim:
    best = BEST_TOPK[model]
    return Claim(
        f"{model}.topk",
        f"{LABELS[model]}, Top-k: the target is met soonest at {best}x.",
        _fig2,
        tuple(
            Check(TO_TARGET, row_id(model, f"topk{best}"), row_id(model, f"topk{other}"))
            for other in FACTORS
            if other != best
        ),
        "Modelled seconds to the target at 10x over those at the factor, paired by seed; 0 where the target "
        "is not met. Indicative at most: compute times are assumed.",
        assumed=ASSUMED,
    )


def _table2_arithmetic(model: str) -> str:
    """What Table II prints of Random-k at 10x, beside the target."""
    value, target = printed(model, "randomk10", "quality"), SETUP.printed(model, "target")
    sign = "<" if value < target else ">"
    return (
        f"{LABELS[model]}, {METHOD_LABELS['randomk10']}: Table II prints {value:g}{unit(model)} for a "
        f"target of {target:.3g}{unit(model)}, {value:g} {sign} {target:.1f}."
    )


CONTRADICTIONS = {
    model: Contradiction(
        "Figure 2 has Random-k meet a target that Table II has it miss.", _table2_arithmetic(model)
    )
    for model in ONLY_AT_10
}

CLAIMS = (
    *(_best_claim(model) for model in BEST_TOPK),
    Claim(
        "resnet101.randomk",
        f"{LABELS[RESNET101]}, Random-k: the target is not met at any factor.",
        _fig2,
        tuple(
            Check(REACHED, row_id(RESNET101, f"randomk{factor}"), ZERO, above=-0.5, below=0.5)
            for factor in FACTORS
        ),
        _REACHED,
    ),
    *(
        Claim(
            f"{model}.randomk",
            f"{LABELS[model]}, Random-k: the target is met at 10x only.",
            _fig2,
            (
                Check(REACHED, row_id(model, "randomk10"), ZERO, above=0.5),
                *(
                    Check(REACHED, row_id(model, f"randomk{f}"), ZERO, above=-0.5, below=0.5)
                    for f in FACTORS
                    if f != 10
                ),
            ),
            _REACHED + " Cannot follow: Table II contradicts it.",
            cannot_follow=CONTRADICTIONS[model],
        )
        for model in ONLY_AT_10
    ),
)

CHOICES = (
    SilentChoice(
        "what the speedup of a factor is when 10x does not meet the target",
        "none: the cell says that the target was reached",
        "goal.target",
    ),
    SilentChoice(
        "how often quality is looked at",
        "after every epoch: times are whole epochs",
        "train.epochs",
    ),
    *SILENT_CHOICES,
)
