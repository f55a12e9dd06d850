"""GraVAC in the lab: what we expect of it on links whose rate drops and rises again. The paper has no such
experiment, so that all of this is ours: the set-up, the expectations, the choices."""

from __future__ import annotations

from dgc_repro.paper.claim import Check, Claim, SilentChoice
from dgc_repro.paper.gravac import OURS

DENSE, STATIC10, STATIC1000 = "dense", "static10", "static1000"
GRAVAC, THAWED, ACCORDION = "gravac", "gravac_thawed", "accordion"
BUCKET = "gravac_bucket"
LABELS = {
    DENSE: "dense",
    STATIC10: "static 10x",
    STATIC1000: "static 1000x",
    ACCORDION: "Accordion",
    GRAVAC: "GraVAC",
    THAWED: "GraVAC, not frozen",
    BUCKET: "GraVAC, per bucket",
}
"""The rows, in order, as they are printed."""

SLOWDOWN, TARGET_SECONDS, FACTOR = "lab_slowdown", "lab_target_seconds", "lab_factor"
STEP = "lab_step_ms"
"""Quantities (report/gravac_lab.py): a step's time while the rate is low over that at other times; seconds
to the target loss; log2 of the factor sent, mean over steps; a step's time, mean over the run."""
EVEN = "no slower"
"""The row that a slowdown of 1 stands for."""
LEAST_SLOWDOWN = 2.0
"""Of dense: below, the links do not matter and nothing here says anything."""


def while_low(row: str) -> str:
    """A row's steps while the rate is low."""
    return f"{LABELS[row]}, rate low"


def after_it(row: str) -> str:
    """A row's steps after the rate has risen again."""
    return f"{LABELS[row]}, rate high again"


_SOONER = (
    "Measured seconds in training steps until an epoch's mean training loss is at most the target: dense's "
    "in its last quarter of epochs plus one standard deviation (over seeds; of one seed over those epochs). "
    "Paired by seed; a row that never gets there has no such number, and the claim does not hold."
)
_SENT = (
    "log2 of the factor sent, mean over the steps in the middle third against the last. Both factors and "
    "gains drift as training goes on, whatever the network does: static links would not give 0."
)

CLAIMS = (
    Claim(
        "drop",
        f"The links matter: dense's step takes at least {LEAST_SLOWDOWN:g} times as long at the low rate.",
        OURS,
        (Check(SLOWDOWN, LABELS[DENSE], EVEN, above=LEAST_SLOWDOWN, ratio=True),),
        "Mean measured step of the middle third over that of the other two.",
    ),
    *(
        Claim(
            f"{row}.slowdown",
            f"{LABELS[row]} slows down less than dense.",
            OURS,
            (Check(SLOWDOWN, LABELS[DENSE], LABELS[row], above=1.0, ratio=True),),
            "Mean measured step of the middle third over that of the other two, dense's over the row's.",
        )
        for row in (GRAVAC, STATIC10)
    ),
    *(
        Claim(
            f"{GRAVAC}.sooner.{other}",
            f"{LABELS[GRAVAC]} meets the target loss sooner than {LABELS[other]}.",
            OURS,
            (Check(TARGET_SECONDS, LABELS[other], LABELS[GRAVAC], above=1.0, ratio=True),),
            _SOONER,
        )
        for other in (DENSE, STATIC10, STATIC1000, ACCORDION)
    ),
    *(
        Claim(
            f"{row}.reacts",
            f"{LABELS[row]} reacts: it sends a stronger factor while the rate is low than after it.",
            OURS,
            (Check(FACTOR, while_low(row), after_it(row)),),
            _SENT,
        )
        for row in (GRAVAC, THAWED, ACCORDION)
    ),
    Claim(
        f"{BUCKET}.quicker",
        f"{LABELS[BUCKET]}, deciding from the last step's gains, has a shorter step than {LABELS[GRAVAC]}.",
        OURS,
        (Check(STEP, LABELS[GRAVAC], LABELS[BUCKET], above=1.0, ratio=True),),
        "Mean measured step of the whole run, the first row's over the second's, paired by seed. What either "
        "sends is its own choice: the table has both.",
    ),
)

CHOICES = (
    SilentChoice(
        "links",
        "1 Gbit/s, 100 Mbit/s for the middle third of all steps, each way and each worker's own",
        "network.rate, network.schedule",
    ),
    SilentChoice(
        "model and data",
        "slim 2-layer LSTM, many parameters for little compute; Python's documentation at scale quick, Penn "
        "Treebank else",
        "model, dataset",
    ),
    SilentChoice(
        "window",
        "a fifteenth of the steps (the paper: 500, of 18,000 as figure 7 shows)",
        "policy.window",
    ),
    SilentChoice(
        "weight of a step in GraVAC's averages",
        "0.32, which is the paper's N / 100 with its 32 workers",
        "policy.smoothing",
    ),
    SilentChoice(
        "what GraVAC takes for a step's time",
        "what it took, mean over workers",
        "train.step_time",
    ),
    SilentChoice(
        "when a step's gains decide",
        "in the step, which needs all of them after backward; in a row of its own in the next one, so that "
        "buckets leave during backward",
        "policy.decide, exchange.junction",
    ),
    SilentChoice(
        "what follows from an ideal factor",
        "it stays for good; in a row of its own, the next window decides anew",
        "policy.freeze",
    ),
    SilentChoice("Accordion's regimes", "judged every epoch, between 10x and 1000x", "policy"),
)
