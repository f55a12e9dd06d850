"""GraVAC's figures 1b and 4 to 6: verdicts follow the gains, and what was not run is '-'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up_decisions import decisions, read, write_run

from dgc_repro.report import gravac_variance
from dgc_repro.report.gravac_gains import Gains
from dgc_repro.report.study import Page, markdown

TEN, THOUSAND = "dgc10_gains", "dgc1000_gains"


def words(page: Page, norm: bool = False) -> dict[str, str]:
    """Verdicts on the energy gain, or on the norm gain."""
    found = {claim.id: verdict.word for claim, verdict in page.verdicts}
    return {name: word for name, word in found.items() if name.endswith(".norm") == norm}


def write_gains(
    runs: Path, model: str, weak: float, early: float, later: float, wave: float = 0.1
) -> None:
    """Three seeds; at 1000x the gain is ``early`` for 50 of 1,000 steps, then ``later`` with a wave."""

    def strong(step: np.ndarray) -> np.ndarray:
        return np.where(step <= 50, early, later + wave * np.sin(step))

    for seed in range(3):
        write_run(runs, f"{model}.dense", seed=seed)
        at_ten = decisions([10.0] * 1000, gain=lambda step: weak + 0.001 * np.sin(step))
        write_run(runs, f"{model}.{TEN}", seed=seed, decided=at_ten, floats=0.1)
        at_thousand = decisions([1000.0] * 1000, gain=strong)
        write_run(
            runs, f"{model}.{THOUSAND}", seed=seed, decided=at_thousand, floats=0.001, final=79.0
        )


def test_resnet101s_gains_as_the_paper_says_agree(tmp_path: Path) -> None:
    write_gains(tmp_path, "resnet101", weak=0.95, early=0.2, later=0.6)
    page = Gains("resnet101").page(read(tmp_path), "small")
    assert set(words(page).values()) == {"agrees"}
    assert len(words(page)) == 4
    assert set(words(page, norm=True).values()) == {"not run"}
    assert "shows 4 of 4 findings, the norm gain (as in the authors' code) 0 of 4" in markdown(page)


def test_the_norm_gain_is_judged_beside_the_energy_gain(tmp_path: Path) -> None:
    for seed in range(3):
        for row, factor, energy, norm in (
            (TEN, 10.0, lambda s: 0.49 + 0.001 * np.sin(s), lambda s: 0.98 + 0.001 * np.sin(s)),
            (
                THOUSAND,
                1000.0,
                lambda s: 0.02 + 0 * s,
                lambda s: np.where(s <= 50, 0.1, 0.8 + 0.1 * np.sin(s)),
            ),
        ):
            made = decisions([factor] * 1000, gain=energy, norm=norm)
            write_run(tmp_path, f"resnet101.{row}", seed=seed, decided=made, floats=1 / factor)
    page = Gains("resnet101").page(read(tmp_path), "small")
    assert set(words(page, norm=True).values()) == {"agrees"}
    assert words(page) == {
        "resnet101.10x": "differs",
        "resnet101.low": "agrees",
        "resnet101.grows": "differs",
        "resnet101.oscillates": "differs",
    }
    assert [row[1:] for row in page.blocks[0].rows] == [
        *(("no", "yes"), ("yes", "yes"), ("no", "yes"), ("no", "yes")),
    ]
    assert [row[0] for row in page.blocks[1].rows] == [
        *("10x, energy", "10x, norm", "1000x, energy", "1000x, norm"),
    ]
    assert float(page.blocks[1].rows[1][2].split()[0]) == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({"weak": 0.85}, "resnet101.10x"),
        ({"early": 0.55}, "resnet101.low"),
        ({"later": 0.15}, "resnet101.grows"),
        ({"wave": 0.0}, "resnet101.oscillates"),
    ],
)
def test_each_verdict_turns_with_its_number(
    tmp_path: Path, changed: dict[str, float], claim: str
) -> None:
    write_gains(
        tmp_path, "resnet101", **{"weak": 0.95, "early": 0.2, "later": 0.6, "wave": 0.1} | changed
    )
    found = words(Gains("resnet101").page(read(tmp_path), "small"))
    assert found.pop(claim) == "differs"
    assert set(found.values()) == {"agrees"}


@pytest.mark.parametrize(("later", "word"), [(0.84, "agrees"), (0.6, "differs"), (0.99, "differs")])
def test_the_lstms_gain_has_to_lie_in_the_printed_range(
    tmp_path: Path, later: float, word: str
) -> None:
    write_gains(tmp_path, "lstm", weak=0.95, early=later, later=later, wave=0.0)
    assert words(Gains("lstm").page(read(tmp_path), "small"))["lstm.1000x"] == word


@pytest.mark.parametrize(("final", "word"), [(79.0, "agrees"), (77.0, "differs")])
def test_vgg16_is_robust_while_it_loses_less_than_the_printed_loss_of_resnet101(
    tmp_path: Path, final: float, word: str
) -> None:
    for seed in range(3):
        for method, reached in ((TEN, 80.0), (THOUSAND, final)):
            write_run(
                tmp_path, f"vgg16.{method}", seed=seed, final=reached,
                decided=decisions([10.0] * 100), floats=0.1,
            )  # fmt: skip
    page = Gains("vgg16").page(read(tmp_path), "small")
    assert words(page)["vgg16.robust"] == word
    assert "1.8 points" in markdown(page)


def test_one_seed_is_indicative_and_thinned_steps_are_said(tmp_path: Path) -> None:
    thinned = decisions([10.0] * 50, every=20)
    write_run(tmp_path, f"resnet101.{TEN}", decided=thinned, floats=0.1)
    page = Gains("resnet101").page(read(tmp_path), "small")
    found = words(page)
    assert found.pop("resnet101.10x") == "indicative"
    assert set(found.values()) == {"not run"}
    text = markdown(page)
    assert "every 20th step" in text
    assert "| 1000x, norm | 0 | - | - | - | - |" in text
    assert "| 1000x | - | - |" in text
    assert "| dense | 0 | - | - |" in text


def test_norms_are_of_what_was_fed_and_of_what_was_sent(tmp_path: Path) -> None:
    write_run(
        tmp_path, f"lstm.{TEN}", decided=decisions([10.0] * 100, gain=lambda s: 0.81 + 0 * s),
        metric="perplexity", final=90.0, floats=0.1,
    )  # fmt: skip
    page = Gains("lstm").page(read(tmp_path), "small")
    assert page.blocks[2].rows[0] == ("10x", "3", "2.7")
    assert page.blocks[3].title == "Final test perplexity"
    assert page.blocks[3].rows[1] == ("10x", "1", "90", "-")


def write_variance(runs: Path, first: float, last: float) -> None:
    """Three models, three seeds: the variance goes from one to the other over 500 of 1,000 steps."""

    def falling(step: np.ndarray) -> np.ndarray:
        return first + (last - first) * np.minimum(step / 500, 1.0)

    for model in ("resnet101", "vgg16", "lstm"):
        for seed in range(3):
            write_run(
                runs, f"{model}.dense_variance", seed=seed,
                decided=decisions([1.0] * 1000, variance=falling),
            )  # fmt: skip


@pytest.mark.parametrize(("first", "last", "word"), [(9.0, 1.0, "agrees"), (1.0, 9.0, "differs")])
def test_the_variance_of_the_first_tenth_is_judged_against_the_last(
    tmp_path: Path, first: float, last: float, word: str
) -> None:
    write_variance(tmp_path, first, last)
    page = gravac_variance.page(read(tmp_path), "small")
    assert set(words(page).values()) == {word}
    block = page.blocks[0]
    assert [row[0] for row in block.rows] == ["ResNet101", "VGG16", "LSTM"]
    assert {row[2:4] for row in block.rows} == {("1,000", "500")}
    tenth = first + (last - first) * np.mean(np.arange(1, 51) / 500)
    assert float(block.rows[0][4].split()[0]) == pytest.approx(tenth, rel=0.01)


def test_only_the_starting_iterations_are_drawn_and_a_missing_model_is_a_dash(
    tmp_path: Path,
) -> None:
    write_run(
        tmp_path, "vgg16.dense_variance",
        decided=decisions([1.0] * 1000, variance=lambda step: 1.0 * step),
    )  # fmt: skip
    runs = read(tmp_path)
    steps, spread = gravac_variance.variance(runs[0])
    assert (steps.min(), steps.max()) == (1, 500)
    assert spread[-1] == pytest.approx(500)
    page = gravac_variance.page(runs, "small")
    assert words(page) == {
        "resnet101.falls": "not run",
        "vgg16.falls": "indicative",
        "lstm.falls": "not run",
    }
    assert page.blocks[0].rows[0] == ("ResNet101", "0", "-", "-", "-", "-")


def test_without_any_variance_there_is_still_a_page_and_a_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "vgg16.dense_variance", decided=decisions([1.0] * 10))
    runs = read(tmp_path)
    assert {v.word for _, v in gravac_variance.page(runs, "small").verdicts} == {"not run"}
    assert gravac_variance.figure(runs, "small").axes
