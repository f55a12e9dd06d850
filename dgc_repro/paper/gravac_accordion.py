"""GraVAC's Table IV: floats sent by GraVAC and by Accordion between PowerSGD's ranks 1 and 4, and savings.

The printed floats of Accordion cannot come from those ranks: `arithmetic` says why, from printed numbers
and from what the two ranks send of these models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgc_repro.paper.claim import (
    Check,
    Claim,
    Contradiction,
    PublishedColumn,
    PublishedRow,
    PublishedTable,
    SilentChoice,
    Source,
)
from dgc_repro.paper.gravac import LABELS, LSTM, PAPER, RESNET101, VGG16
from dgc_repro.paper.gravac_training import (
    ACCORDION,
    ASSUMED,
    FLOATS,
    GAIN_SHARE,
    GRAVAC,
    MODEL_IDS,
    PARAMETERS,
    REDUCTIONS,
    RUN_SECONDS,
    SILENT_CHOICES,
    compressed,
    row_id,
)

TABLE_4 = PublishedTable(
    title="Table IV",
    source=Source(PAPER, "Table IV"),
    columns=(
        PublishedColumn(ACCORDION, "Accordion, floats sent", "floats"),
        PublishedColumn(GRAVAC, "GraVAC, floats sent", "floats"),
        PublishedColumn("communication", "communication saving", "x"),
        PublishedColumn("time", "time saving", "x"),
    ),
    rows=(
        PublishedRow(RESNET101, LABELS[RESNET101], (4.17e11, 9.38e9, 44.5, 1.94)),
        PublishedRow(VGG16, LABELS[VGG16], (3.83e11, 1.7e10, 22.4, 5.63)),
        PublishedRow(LSTM, LABELS[LSTM], (4.2e11, 4e9, 104.2, 2.06)),
    ),
)
WEAK_RANK, STRONG_RANK = 4, 1
RANK_FACTORS = {
    RESNET101: {WEAK_RANK: 57, STRONG_RANK: 161},
    VGG16: {WEAK_RANK: 414, STRONG_RANK: 1479},
    LSTM: {WEAK_RANK: 268, STRONG_RANK: 759},
}
"""Values of a model over the floats that PowerSGD sends of it, r (rows + cols) of a matrix and vectors as
they are: of our models with the printed sizes, VGG16 without batch normalization (whose vectors make 414 and
1479 to 404 and 1357), computed from their shapes (a test does it again)."""


@dataclass(frozen=True)
class Steps:
    """What Table IV's floats come to, a step. ``steps``: GraVAC's floats times its reduction are what dense
    would have sent; ``factor``: dense's floats of a step over Accordion's."""

    steps: float
    accordion_floats: float
    factor: float


def printed(model: str, column: str) -> float:
    """A number of Table IV."""
    return TABLE_4.printed(model, column)


def steps_of(model: str) -> Steps:
    """The arithmetic of one model: reduction of GraVAC against dense as printed elsewhere in the paper."""
    dense_floats = printed(model, GRAVAC) * REDUCTIONS[model][GRAVAC]
    steps = dense_floats / PARAMETERS[model]
    a_step = printed(model, ACCORDION) / steps
    return Steps(steps, a_step, PARAMETERS[model] / a_step)


def floats(value: float) -> str:
    """As the paper writes it: 4.17e11."""
    return f"{value:.3g}".replace("e+", "e").replace("e0", "e")


def arithmetic(model: str) -> str:
    """One sentence of it."""
    found, factors = steps_of(model), RANK_FACTORS[model]
    return (
        f"{LABELS[model]}: {floats(printed(model, GRAVAC))} floats x {REDUCTIONS[model][GRAVAC]:g} / "
        f"{PARAMETERS[model] / 1e6:.1f} M = {found.steps:,.0f} steps, over which Accordion's "
        f"{floats(printed(model, ACCORDION))} are {found.accordion_floats / 1e6:.1f} M a step: CF "
        f"{found.factor:.1f}, while rank {WEAK_RANK} gives {factors[WEAK_RANK]} and rank {STRONG_RANK} "
        f"{factors[STRONG_RANK]}."
    )


CONTRADICTIONS = {
    model: Contradiction(
        "What Accordion is printed to send does not follow from ranks 1 and 4.", arithmetic(model)
    )
    for model in MODEL_IDS
}

_table4 = Source(PAPER, "Table IV")
_SENT = (
    "Floats one worker sends over the whole run, of Accordion over GraVAC's, paired by seed; both take as "
    "many steps. Accordion is as published, ranks 1 and 4, and is not tuned towards the printed floats."
)
_TIME = (
    "Seconds of the whole run, as the network model has them for the paper's cluster, paired by seed; both "
    "take as many steps. Indicative at most: compute times are assumed. Not tested where GraVAC sends nearly "
    "as much as dense."
)


def _claims(model: str) -> tuple[Claim, ...]:
    accordion, gravac = row_id(model, ACCORDION), row_id(model, GRAVAC)
    saving, quicker = printed(model, "communication"), printed(model, "time")
    return (
        Claim(
            f"{model}.fewer",
            f"{LABELS[model]}: GraVAC sends fewer floats than Accordion.",
            _table4,
            (Check(FLOATS, accordion, gravac, above=1.0, ratio=True),),
            _SENT,
        ),
        Claim(
            f"{model}.saving",
            f"{LABELS[model]}: {saving:g} times fewer ({floats(printed(model, ACCORDION))} and "
            f"{floats(printed(model, GRAVAC))}).",
            _table4,
            (Check(FLOATS, accordion, gravac, above=-math.inf, ratio=True),),
            "The same quotient. Cannot follow: the floats of Accordion contradict its ranks, by the "
            "arithmetic in the page.",
            cannot_follow=CONTRADICTIONS[model],
        ),
        Claim(
            f"{model}.faster",
            f"{LABELS[model]}: GraVAC takes less time than Accordion.",
            _table4,
            (Check(RUN_SECONDS, accordion, gravac, above=1.0, ratio=True),),
            _TIME,
            assumed=ASSUMED,
            premises=compressed(model, GRAVAC),
        ),
        Claim(
            f"{model}.time",
            f"{LABELS[model]}: {quicker:g} times less.",
            _table4,
            (
                Check(
                    RUN_SECONDS, accordion, gravac, above=-math.inf, ratio=True,
                    magnitude=quicker, tolerance=GAIN_SHARE * (quicker - 1),
                ),
            ),
            "The same quotient, within half of the printed gain either way: ours.",
            assumed=ASSUMED,
            premises=compressed(model, GRAVAC),
        ),
    )  # fmt: skip


CLAIMS = tuple(claim for model in MODEL_IDS for claim in _claims(model))

CHOICES = (
    SilentChoice(
        "what time saving is of", "seconds of the whole run, as many steps for both", "train.epochs"
    ),
    SilentChoice(
        "how often Accordion judges", "as its own paper: eta 0.5, every few epochs", "policy"
    ),
    SilentChoice("which norm Accordion judges", "of the averaged gradient", "policy.norm"),
    *(choice for choice in SILENT_CHOICES if not choice.silent.startswith("what failed")),
)
