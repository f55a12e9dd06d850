"""GraVAC's figure 11 as claims: Random-k, GraVAC against Accordion. Its numbers contradict the printed gain.

Random-k sends k of n entries, chosen regardless of their values. Its energy gain is therefore k / n = 1 / CF,
at the printed factors below the printed eps: no step is compressed. Its norm gain is sqrt(1 / CF) without a
residual, and grows with the residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dgc_repro.paper.claim import Check, Claim, Contradiction, SilentChoice, Source
from dgc_repro.paper.gravac import OURS, PAPER, RESNET101
from dgc_repro.paper.gravac_factors import MOST, lead_of
from dgc_repro.paper.gravac_figures import ZERO
from dgc_repro.paper.gravac_quality import VOLUME_FACTOR, less_by
from dgc_repro.paper.gravac_training import DENSE, QUALITY, compressed, row_id

ENERGY, NORM = "randomk_gravac_fed", "randomk_gravac_norm"
ACCORDION = "randomk_accordion"
LABELS = {
    ENERGY: "GraVAC, energy gain (as printed)",
    NORM: "GraVAC, norm gain (authors' code)",
    ACCORDION: "Accordion, 1.5x and 1000x",
    DENSE: "dense",
}
EPS = 0.7
FACTORS = (1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
DENSEST = 12.0
GRAVAC_QUALITY, ACCORDION_QUALITY = 78.0, 20.0
REDUCTION = 18.0
DENSE_STEPS = "dense_share"
NEARLY_ALL = 0.95
"""Every step, but for the beginning of an average. Ours."""
_fig11 = Source(PAPER, "figure 11")


def gain(factor: float) -> float:
    """Random-k's expected energy gain."""
    return 1 / factor


def _arithmetic() -> str:
    gains = ", ".join(f"1/{f:g} = {gain(f):.3f}" for f in FACTORS)
    passing = [f"{f:g}x" for f in FACTORS if gain(f) >= EPS]
    then = f"only {', '.join(passing)} passes" if passing else "every step is dense"
    return f"Random-k's energy gain is 1/CF: {gains}; eps = {EPS:g}: {then}, a reduction of 1x."


CANNOT_FOLLOW = Contradiction(
    "With the printed gain GraVAC never compresses with Random-k.", _arithmetic()
)
FROM_NORM = Contradiction(
    "With the norm gain of the authors' code it begins to compress.",
    f"Without a residual the norm gain is sqrt(1/CF) = {math.sqrt(gain(FACTORS[0])):.3f} at {FACTORS[0]:g}x, "
    f"above eps = {EPS:g}. It grows with the residual, which the denominator does not include.",
)
_NORM_READING = (
    " With the gain of the authors' code: sums of L2 norms, over the gradient without its residual."
)
_lead = GRAVAC_QUALITY - ACCORDION_QUALITY


def _of_both(
    name: str,
    text: str,
    checks: Callable[[str], tuple[Check, ...]],
    reading: str,
    *,
    compresses: bool = False,
) -> tuple[Claim, Claim]:
    """A finding of the figure for the rows of both gains. It cannot follow from the printed gain.
    ``compresses``: its premise is that the row compressed something."""
    energy, norm = (checks(row_id(RESNET101, method)) for method in (ENERGY, NORM))
    of_norm = f"{text[:-1]} (norm gain)."
    return (
        Claim(f"{name}.energy", text, _fig11, energy, reading, cannot_follow=CANNOT_FOLLOW),
        Claim(
            f"{name}.norm", of_norm, _fig11, norm, reading + _NORM_READING,
            premises=compressed(RESNET101, NORM) if compresses else (),
        ),
    )  # fmt: skip


def _better(own: str) -> tuple[Check, ...]:
    return (Check(QUALITY, own, row_id(RESNET101, ACCORDION)),)


def _quality(own: str) -> tuple[Check, ...]:
    rows = (own, row_id(RESNET101, ACCORDION))
    return (Check(QUALITY, *rows, magnitude=_lead, tolerance=_lead / 2),)


def _reduction(own: str) -> tuple[Check, ...]:
    return (less_by((row_id(RESNET101, DENSE), own), REDUCTION),)


def _factors(own: str) -> tuple[Check, ...]:
    return (
        Check(lead_of(DENSEST), own, ZERO),
        Check("largest_factor", own, f"{FACTORS[-1]:g}", above=-0.5, below=0.5),
    )


CLAIMS = (
    *_of_both(
        "better",
        "GraVAC reaches a better model than Accordion.",
        _better,
        "Final test quality, paired by seed; the direction only.",
        compresses=True,
    ),
    *_of_both(
        "quality",
        f"GraVAC reaches {GRAVAC_QUALITY:g} %, Accordion stays at {ACCORDION_QUALITY:g} %.",
        _quality,
        f"The same difference, within half of the printed {_lead:g} points.",
        compresses=True,
    ),
    *_of_both(
        "reduction",
        f"GraVAC sends {REDUCTION:g}x less than dense training.",
        _reduction,
        f"log10 of the floats of the whole run, within a factor of {VOLUME_FACTOR:g}.",
    ),
    *_of_both(
        "factors",
        f"It uses {', '.join(f'{f:g}' for f in FACTORS)}x, {DENSEST:g}x most.",
        _factors,
        f"Share of the recorded steps at {DENSEST:g}x less the largest share of any other factor, dense "
        "steps included, and the largest factor that was sent.",
    ),
    Claim(
        "energy.dense",
        "With the printed gain (nearly) every step is dense.",
        OURS,
        (Check(DENSE_STEPS, row_id(RESNET101, ENERGY), ZERO, above=NEARLY_ALL),),
        f"Share of the recorded steps that took the dense branch, above {100 * NEARLY_ALL:g} %.",
    ),
    Claim(
        "norm.compresses",
        "With the norm gain most steps are compressed.",
        OURS,
        (Check(DENSE_STEPS, row_id(RESNET101, NORM), ZERO, above=-math.inf, below=MOST),),
        "The same share, below a half.",
    ),
)

CHOICES = (
    SilentChoice("omega", "1 %", "policy.omega"),
    SilentChoice(
        "the gain",
        "both: energy (as printed) and norm (as in the authors' code)",
        "policy.gain",
    ),
    SilentChoice("Accordion's eta and interval", "0.5, every 10 epochs of 300", "policy.eta"),
)
