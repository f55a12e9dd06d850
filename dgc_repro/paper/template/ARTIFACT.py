"""LABEL of the paper PAPER: test accuracy of top-k at a hundredth of the entries."""

from dgc_repro.paper.artifact import ACCURACY, LESS, Artifact
from dgc_repro.paper.claims import Check, Choice, claim, near, printed_table

# EXAMPLE numbers and claims: put those of the paper in their place.
# Each printed column, with its unit in brackets, is one of the quantities below.
NUMBERS = printed_table(
    "LABEL",
    "test accuracy [%]",
    """
    dense   92.96
    topk    92.40
    """,
)
ROWS = {"dense": "no compression", "topk": "top-k 1 %"}
CLAIMS = (
    claim(
        "1",
        "Top-k costs 0.56 points against dense training, give or take one.",
        near(Check("test accuracy", "dense", "topk"), printed=0.56, margin=1.0),
        where="LABEL",
        reading="Test accuracy after the last epoch; within one point of the printed difference.",
        ours=True,
    ),
    claim(
        "2",
        "Top-k sends at least ten times less.",
        Check(LESS, "topk", above=10.0),
        where="section 3",
        reading="Payload bytes of one worker over the whole run, indices included.",
    ),
)
CHOICES = (Choice("learning rate", "the default", "optimizer.lr"),)  # the paper does not say
page = Artifact(
    "LABEL of PAPER (example numbers: replace them)",
    rows=ROWS,
    quantities={"test accuracy": ACCURACY},
    data="",  # the paper's data set, such as "CIFAR-10": on another one, accuracy tests no claim
    printed=NUMBERS,
    claims=CLAIMS,
    choices=CHOICES,
)
