"""GraVAC's figures as claims: every sentence of the notes has its claims, and arithmetic is computed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from dgc_repro.paper import gravac_factors, gravac_figures, gravac_quality, gravac_randomk
from dgc_repro.paper.claim import Claim
from dgc_repro.paper.gravac import OURS
from dgc_repro.paper.gravac_factors import FACTOR_CLAIMS, GEOMETRIC_CLAIMS
from dgc_repro.paper.gravac_figures import FIG1B_CLAIMS, GAINS_CLAIMS
from dgc_repro.paper.gravac_training import COMPRESSED_FROM, FLOATS, LOG10_FLOATS
from dgc_repro.report.quantities import QUANTITIES, STUDIED

CLAIMS: tuple[Claim, ...] = (
    *FIG1B_CLAIMS,
    *(claim for claims in GAINS_CLAIMS.values() for claim in claims),
    *(claim for claims in FACTOR_CLAIMS.values() for claim in claims),
    *GEOMETRIC_CLAIMS,
    *gravac_randomk.CLAIMS,
)

# papers.md, section B, piece by piece: what each piece is judged by.
SAID: dict[str, tuple[str, ...]] = {
    "F4-6: gains near 1.0 at 10x": ("resnet101.10x", "vgg16.10x", "lstm.10x"),
    "LSTM 0.8-0.9 at 1000x": ("lstm.1000x",),
    "ResNet101's at 1000x low for the first 1,000 steps": ("resnet101.low",),
    "then growing and oscillating": ("resnet101.grows", "resnet101.oscillates"),
    "VGG16 robust": ("vgg16.robust",),
    "F7: eps 0.9 trains evenly between 10x and 1000x": ("resnet101.even",),
    "with theta_min left at 10": ("resnet101.theta_min",),
    "eps 0.7 mostly at 1000x": ("resnet101.mostly",),
    "a dip at step 9,000 (lr decay)": ("resnet101.dip",),
    "deeper for 0.7": ("resnet101.deeper",),
    "F8: VGG16 mostly 10x at eps 0.9": ("vgg16.tight",),
    "40x, then 1000x at 0.7": ("vgg16.loose",),
    "F9: LSTM mostly 1000x for both": ("lstm.mostly",),
    "F10: similar densities from 10x to 640x": ("geometric.similar",),
    "1280x from iteration 16,000 on": ("geometric.late",),
    "slower convergence than exponential": ("geometric.slower",),
    "A too small window hurts convergence (conclusion)": ("resnet101.window",),
    "ResNet101 163x (eps 0.7), 19x (0.9)": (
        *("resnet101.gravac07.less", "resnet101.gravac07.volume", "resnet101.eps"),
        *("resnet101.gravac09.less", "resnet101.gravac09.volume"),
    ),
    "VGG16 80x, 13.5x": (
        *("vgg16.gravac07.less", "vgg16.gravac07.volume", "vgg16.eps"),
        *("vgg16.gravac09.less", "vgg16.gravac09.volume"),
    ),
    "LSTM 289x (0.7), 279x (0.9)": (
        *("lstm.gravac07.less", "lstm.gravac07.volume", "lstm.eps"),
        *("lstm.gravac09.less", "lstm.gravac09.volume"),
    ),
    "geometric Redsync ResNet101 76x": (
        *("resnet101.gravac_geometric.less", "resnet101.gravac_geometric.volume"),
    ),
    "Random-k ResNet101 18x": ("reduction.energy", "reduction.norm"),
    "CFs used 1.5, 3, 6, 12, 24, 48; 12 densest": ("factors.energy", "factors.norm"),
    "GraVAC reaches 78 % on ResNet101, Accordion (low 1.5x, high 1000x) stays at 20 %": (
        *("quality.energy", "quality.norm", "better.energy", "better.norm"),
    ),
}


def notes(repository: Path) -> str:
    path = repository.parent / "shared" / "papers.md"
    if not path.is_file():
        pytest.skip("no shared/papers.md beside the checkout")
    return path.read_text(encoding="utf-8")


def test_every_piece_of_the_notes_on_these_figures_is_judged(repository: Path) -> None:
    text = notes(repository)
    starts = ("Claims of the figures: ", "Communication volume reduction against dense (floats): ")
    for start in starts:
        (left,) = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
        for piece in SAID:
            left = left.replace(piece, "")
        assert not re.sub(r"[\s.,;()]", "", left), f"nobody judges {left!r}"
    for piece in SAID:
        assert piece in text


NORM_GAINS = {claim.id for claims in gravac_figures.OF_NORM_GAINS.values() for claim in claims}


def test_every_claim_is_named_once_and_comes_from_a_piece_of_the_notes_or_is_ours() -> None:
    ids = [claim.id for claim in CLAIMS]
    assert len(ids) == len(set(ids))
    said = {name for names in SAID.values() for name in names}
    assert said <= set(ids)
    assert {f"{name}.norm" for name in said} >= NORM_GAINS
    assert {claim.id for claim in CLAIMS if claim.id not in said} == NORM_GAINS | {
        claim.id for claim in CLAIMS if claim.source == OURS
    }


def test_with_the_published_code_s_gain_all_else_of_a_claim_is_the_same() -> None:
    for model, energy in FACTOR_CLAIMS.items():
        norm = gravac_factors.norm_claims(model, energy)
        assert {c.id for c in norm} | {"resnet101.window.norm"} >= {f"{c.id}.norm" for c in energy}
        kept = [claim for claim in energy if claim.id != "resnet101.window"]
        for own, other in zip(kept, norm, strict=True):
            rows = [
                [c.greater.replace("_norm", ""), c.lesser.replace("_norm", "")]
                for c in other.checks
            ]
            assert rows == [[c.greater, c.lesser] for c in own.checks]
            named = {name for c in other.checks for name in (c.greater, c.lesser)}
            assert any(name.endswith("_norm") for name in named)


def test_every_quantity_has_a_label() -> None:
    for claim in CLAIMS:
        for check in claim.checks:
            assert {check.quantity, check.quantity.partition("@")[0]} & {*STUDIED, *QUANTITIES}


def test_steps_of_the_paper_are_shares_of_its_run() -> None:
    assert gravac_figures.STARTING == gravac_factors.DECAY_STEP == 9_000
    assert gravac_figures.STEPS == 18_000
    assert gravac_factors.LATE_WINDOWS * gravac_factors.GEOMETRIC_WINDOW == 16_000


def test_random_ks_gain_is_one_over_the_factor_and_below_eps_at_every_printed_one() -> None:
    assert [round(gravac_randomk.gain(f), 3) for f in gravac_randomk.FACTORS] == [
        *(0.667, 0.333, 0.167, 0.083, 0.042, 0.021),
    ]
    arithmetic = gravac_randomk.CANNOT_FOLLOW.arithmetic
    assert "1/1.5 = 0.667" in arithmetic
    assert "every step is dense" in arithmetic
    assert "= 0.816 at 1.5x, above eps = 0.7" in gravac_randomk.FROM_NORM.arithmetic
    judged = {claim.id for claim in gravac_randomk.CLAIMS if claim.cannot_follow is not None}
    assert judged == {"better.energy", "quality.energy", "reduction.energy", "factors.energy"}


def test_the_printed_throughputs_choose_1280x(repository: Path) -> None:
    text = notes(repository)
    assert "1029.9 against 1035.4 (0.53 %) chooses 1280x over 2000x" in text
    (note,) = gravac_factors.GEOMETRIC_NOTES
    assert "= 0.53 %" in note.arithmetic
    assert "1280x is chosen over 2000x" in note.arithmetic


def test_a_volume_holds_within_a_factor_of_two() -> None:
    check = gravac_quality.less_by(("dense", "gravac"), 100.0)
    assert check.magnitude == pytest.approx(2.0)
    assert check.tolerance == pytest.approx(math.log10(2))


def test_no_claim_of_less_is_pointed_at_by_nearly_nothing() -> None:
    """1.01x for a printed 163x is not the claim's way; the reduction is what is claimed, so no premise."""
    claims = [c for found in FACTOR_CLAIMS.values() for c in found] + [*GEOMETRIC_CLAIMS]
    claims += [*gravac_quality.DENSE_CLAIMS, *gravac_randomk.CLAIMS]
    judged = [
        (claim, check)
        for claim in claims
        for check in claim.checks
        if check.quantity in (FLOATS, LOG10_FLOATS)
    ]
    assert len(judged) > 20
    for claim, check in judged:
        if check.quantity == FLOATS:
            assert check.above == COMPRESSED_FROM, claim.id
        else:
            assert check.magnitude is not None
            assert check.tolerance is not None
            assert check.above == -math.inf, "a magnitude judges no direction"
            assert check.magnitude - check.tolerance > math.log10(COMPRESSED_FROM), claim.id
        assert not claim.premises, claim.id


def test_vgg16_may_lose_what_resnet101_loses_in_table_two() -> None:
    assert pytest.approx(80.4 - 78.6) == gravac_figures.ROBUST_POINTS
