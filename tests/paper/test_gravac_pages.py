"""GraVAC: arithmetic of the printed numbers, quantities of made-up runs, pages of unfinished sets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from synthetic import words
from torch import nn

from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.errors import UserError
from dgc_repro.model.lstm import LSTM as Lstm
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.model.vgg16 import VGG16 as Vgg
from dgc_repro.names import papers_in
from dgc_repro.paper import facts, frame, gravac, page, pool
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.gravac import (
    COMPRESSORS,
    GRAVAC,
    LSTM,
    MODELS,
    REDUCTIONS,
    RESNET101,
    TARGETS,
    VGG16,
    fig2,
    fig3,
    fig7_11,
    gains,
    norm_of,
    row_id,
    table2,
    table4,
    training,
)
from dgc_repro.paper.publish import artifact_of
from dgc_repro.paper.records import Run

PARAMETERS = {model: facts.FULL_MODELS[name][1] for model, name in MODELS.items()}
TRAINED = ("table2", "table4", *(f"fig{n}" for n in ("1b", *range(2, 12)) if n != 3), "gains")
EPOCHS = 10
DATA = {VGG16: "Cifar100", LSTM: "Ptb"}


def made(
    row: str, final: float = 80.0, seed: int = 0, *, used: Sequence[tuple[float, int]] = (),
    rates: Mapping[float, float] | None = None, **config: Any,
) -> Run:  # fmt: skip
    """A made-up run: quality comes evenly up to ``final`` and stays for two epochs. ``used``: factors and
    steps; ``rates``: compression throughput by factor."""
    number = np.arange(1.0, EPOCHS + 1)
    done, is_words = np.minimum(1.0, number / (EPOCHS - 1)), row.startswith(LSTM)
    quality = 1000 - (1000 - final) * done if is_words else final * done
    epochs = pd.DataFrame({
        "epoch": number, "step": 18 * number, "lr": 0.1,
        "train/loss": 1 + 1e-5 * sum(map(ord, row)) + seed, "test/loss": 1 + 1 / quality,
        "test/perplexity" if is_words else "test/accuracy_percent": quality,
        "comm/floats": 1e6 * number, "comm/payload_bytes": 4e6 * number,
        "comm/wire_bytes": 6e6 * number, "time/modelled_seconds": 10.0 * number,
    })  # fmt: skip
    factors = [factor for factor, count in used for _ in range(count)]
    decisions = pd.DataFrame({"step": np.arange(1, len(factors) + 1), "factor": factors})
    if factors:
        decisions["branch"] = np.where(decisions["factor"] == 1, "dense", "candidate")
        decisions["throughput"] = [(rates or {}).get(factor, factor) for factor in factors]
        decisions = decisions.assign(gain=0.8, gain_theta_min=0.9, theta_min=10.0, candidate=1000.0)
    settings = {
        "experiment": {"row": row}, "seed": seed, "scale": {"name": "small"}, "policy": {"window": 20},
        "launch": {"workers": 4, "kind": "simulated"}, "train": {"step_time": "modelled"},
        "network": {"message_scale": 100.0, "as_workers": 32},
        "dataset": {"_target_": f"dgc_repro.dataset.{DATA.get(row.partition('.')[0], 'Cifar10')}"},
        "model": {"_target_": f"dgc_repro.model.x.{MODELS.get(row.partition('.')[0])}"},
        "stopping": {"metric": "perplexity" if is_words else "accuracy", "plateau": 0.01},
    }  # fmt: skip
    summary = {"parameters": 100_000, "classes": 10_000 if is_words else 10}
    environment = {"data": "made up"}
    return Run(f"{row}-{seed}", settings | config, environment, summary, epochs, decisions)


def course(*runs: Run) -> training.Course:
    return training.courses(runs, "small")[0]


def made_page(name: str, runs: Sequence[Run], scale: str = "small") -> page.Page:
    found: page.Page = artifact_of("gravac", name).page(runs, scale)
    return found


# -- what is printed


@pytest.mark.parametrize("model", MODELS)
def test_printed_differences_and_savings_follow_from_the_printed_numbers(model: str) -> None:
    worst = 0.0
    for row in (row for row in table2.TABLE_2.rows if row.startswith(model)):
        quality, gap = (table2.TABLE_2(row, part) for part in ("quality", "difference"))
        if not math.isnan(quality):
            over, worst = quality - TARGETS[model], min(worst, gap)
            assert (-over if model == LSTM else over) == pytest.approx(gap)
    assert training.LARGEST_MISS[model] == -worst / (TARGETS[model] if model == LSTM else 1.0)
    saved = table4.TABLE_4(model, "accordion") / table4.TABLE_4(model, GRAVAC)
    assert saved == pytest.approx(table4.TABLE_4(model, "communication"), rel=0.01)


def note_of(model: str) -> str:
    (note,) = (n.arithmetic for n in table4.WORDS.notes if n.arithmetic.startswith(MODELS[model]))
    return note


@pytest.mark.parametrize("model", MODELS)
def test_accordions_arithmetic(model: str) -> None:
    """The note follows from printed numbers: steps, floats of a step, factor."""
    sent, accordions = (table4.TABLE_4(model, name) for name in (GRAVAC, "accordion"))
    steps = sent * REDUCTIONS(model, GRAVAC) / PARAMETERS[model]
    factor = PARAMETERS[model] * steps / accordions
    assert f" = {steps:,.0f} steps, " in note_of(model)
    assert f"are {accordions / steps / 1e6:.1f} M a step: factor {factor:.1f}, " in note_of(model)
    assert f"{factor:.1f}" in table4.WORDS.notes[-1].arithmetic
    assert 1 < factor < 4  # the factors of its published defaults bracket it


BUILT: dict[str, Callable[[], nn.Module]] = {
    RESNET101: lambda: ResNet101().build(1000),
    VGG16: lambda: Vgg(batch_norm=False).build(1000),
    LSTM: lambda: Lstm().build(10_000),
}


@pytest.mark.parametrize("model", MODELS)
def test_what_the_ranks_send_follows_from_the_shapes_of_the_models(model: str) -> None:
    with torch.device("meta"):
        shapes = [p.shape for p in BUILT[model]().parameters()]
    for rank in (4, 1):
        floats = 0
        for shape in shapes:
            is_matrix = PowerSGD(rank).matrix(shape) is not None
            floats += rank * (shape[0] + shape.numel() // shape[0]) if is_matrix else shape.numel()
        factor = round(sum(shape.numel() for shape in shapes) / floats)
        assert re.search(rf"rank {rank} (gives )?{factor}\b", note_of(model))


def test_notes_have_their_arithmetic() -> None:
    missed = [row for row in table2.TABLE_2.rows if table2.TABLE_2(row, "difference") < 0]
    speedups = {
        m: [table2.TABLE_2(row_id(m, row), "speedup") for row in (GRAVAC, "dgc1000")]
        for m in MODELS
    }
    beside = "; ".join(f"{MODELS[m]} {a:g}x, {b:g}x" for m, (a, b) in speedups.items())
    notes = [note.arithmetic for note in table2.WORDS.notes]
    assert notes[0].startswith(f"{len(missed)} rows miss it")
    assert beside in notes[1]
    assert table2.TABLE_2("lstm.topk10", "quality") == TARGETS[LSTM] == 22.0
    for model, sign in ((VGG16, "<"), (LSTM, ">")):
        quality = table2.TABLE_2(row_id(model, "randomk10"), "quality")
        assert f"{quality:g} {sign} {TARGETS[model]:g}" in fig2.AT_10_ONLY[model]
    assert pytest.approx(1 / 7) == training.FAILED_SHARE


def test_arithmetic_of_the_printed_reductions() -> None:
    exponential, geometric, random, root = (note.arithmetic for note in fig7_11.WORDS.notes)
    early = sum(1 / factor for factor in (10, 20, 40, 160))
    steps = (500 * early - 2_000 / 1000) / (1 / 163 - 1 / 1000)
    assert f"after {steps:,.0f} steps" in exponential
    windows = [2_000 / factor for factor in (*fig7_11.SIMILAR_FACTORS, 1280)]
    assert f"at most {18_000 / (sum(windows) + 2_000 / 2000):.0f}x" in geometric
    needed = (sum(windows) - 16_000 / 1280) / (1 / 76 - 1 / 1280)
    assert f"about {needed:,.0f} steps" in geometric
    factors = (1.5, 3, 6, 12, 24, 48)
    assert all(f"1/{f:g} = {1 / f:.3f}" in random for f in factors)
    assert max(1 / f for f in factors) < gains.EPS < math.sqrt(1 / 1.5)
    assert f"{math.sqrt(1 / 1.5):.3f}" in root


def test_a_claim_stands_on_one_page_and_rests_on_compression() -> None:
    """Two pages that judge one comparison, from other seeds, would disagree in their verdict."""
    runs = [made(row_id(m, method)) for m in MODELS for method in ("dense", "dense_variance")]
    known = {row_id(model, method) for model in MODELS for method in gravac.LOOKS}
    pages: dict[frozenset[Any], set[str]] = {}
    for name in TRAINED:
        claims = [verdict.claim for verdict in made_page(name, runs, "low").verdicts]
        assert len({claim.id for claim in claims}) == len(claims)
        for claim in claims:
            checks = frozenset(replace(check, printed=0.0) for check in claim.checks)
            pages.setdefault(checks, set()).add(name)
            assert claim.reading or claim.cannot_follow
            rows = {row for check in (*claim.checks, *claim.premises) for row in check.rows}
            assert rows <= known
            if any("seconds" in check.quantity for check in claim.checks):
                assert claim.assumed
            if name in ("table2", "table4") and any(GRAVAC in row for row in rows):
                is_volume = all(check.quantity == training.FLOATS for check in claim.checks)
                assert bool(claim.premises) is not is_volume
    assert [where for where in pages.values() if len(where) > 1] == []


def test_a_page_requires_the_rows_that_its_yaml_trains() -> None:
    fig7 = artifact_of("gravac", "fig7").page
    fig7.require_rows(["resnet101.dense", "resnet101.gravac07_short"])
    with pytest.raises(UserError, match=r"^experiment\.row: no row in ROWS 'resnet101\.topk10'"):
        fig7.require_rows(["resnet101.topk10"])


def test_the_norm_gain_has_the_same_claims_of_its_own_rows() -> None:
    claims = {claim.id: claim for claim in table2.claims(course(made("lstm.dense", 80)))}
    claim = claims["lstm.gravac.target.norm"]
    rows = {row for check in (*claim.checks, *claim.premises) for row in check.rows}
    assert rows == {"lstm.dense", row_id(LSTM, norm_of(GRAVAC))}
    assert claims["lstm.randomk1000.fails"].checks[0].quantity == training.ABOVE_FAILING


# -- quantities of training runs


@pytest.mark.parametrize(
    ("series", "target", "sign", "place"),
    [([10, 50, 80, 70], 80, 1, 2), ([10, 50, 79.9], 80, 1, None), ([300, 120, 100], 120, -1, 1),
     ([math.nan, 90], 80, 1, 1)],
)  # fmt: skip
def test_a_target_is_reached_at_the_first_epoch_that_is_as_good(
    series: list[float], target: float, sign: int, place: int | None
) -> None:
    assert training.met_at(np.array(series), target, sign) == place


@pytest.mark.parametrize(
    ("series", "sign", "place"),
    [([10, 50, 80, 80.5, 79], 1, 2), ([80, 80.5, 81, 81.5], 1, 2),  # small steps add up
     ([300, 100, 99.5, 98], -1, 3), ([math.nan, math.nan], 1, 0), ([10, math.nan, 20, math.inf], 1, 3)],
)  # fmt: skip
def test_the_plateau_begins_at_the_last_improvement_that_counts(
    series: list[float], sign: int, place: int
) -> None:
    assert training.plateau_at(np.array(series, dtype=float), sign, 0.01) == place


def test_the_target_is_dense_less_its_spread_and_for_a_perplexity_plus() -> None:
    sd = math.sqrt(2)
    assert course(made("resnet101.dense", 80), made("resnet101.dense", 82, 1)).target == 81 - sd
    assert course(made("lstm.dense", 80), made("lstm.dense", 82, 1)).target == 81 + sd
    alone = course(made("resnet101.topk10", 80))
    assert math.isnan(alone.target)
    assert training.target_text(alone).startswith("No dense run")
    with pytest.raises(UserError, match=r"launch\.kind"):
        course(made("lstm.dense", 80), made("lstm.dense", 80, 1, launch={"workers": 2}))


@pytest.mark.parametrize(
    ("row", "dense", "final", "failed"),
    [("resnet101.randomk10", 80.0, 19.9, True), ("resnet101.randomk10", 80.0, 20.1, False),
     ("resnet101.randomk10", 5.0, 9.0, True),  # dense itself guesses
     ("resnet101.randomk10", 80.0, math.nan, True), ("lstm.randomk10", 200.0, 5000.0, False),
     ("lstm.randomk10", 200.0, 6000.0, True)],  # chance: a vocabulary of 10,000
)  # fmt: skip
def test_less_than_a_seventh_of_the_way_from_chance_has_failed(
    row: str, dense: float, final: float, failed: bool
) -> None:
    run = made(row, final)
    model = run.model
    runs = [made(f"{model}.dense", dense), run, made(f"{model}.topk10", dense)]
    found = made_page("table2", runs).frame
    (above,) = frame.of(found, training.ABOVE_FAILING, row)
    assert (above <= 0) is failed
    assert (frame.of(found, training.PLATEAU_SECONDS, row) == [math.inf]) is failed


# -- recorded decisions


def test_throughput_counts_the_samples_of_the_workers_whose_step_is_modelled() -> None:
    run = made("resnet101.gravac07", used=((10, 80), (1000, 100)), rates={10.0: 100.0})
    table, throughput = fig7_11.factor_table(run, [40.0]), fig7_11.THROUGHPUT
    assert table.at[10.0, throughput] == 100 * 32 / 4
    assert table.at[40.0, fig7_11.SHARE] == 0
    measured = replace(run, config=run.config | {"network": {"as_workers": None}})
    assert fig7_11.factor_table(measured).at[10.0, throughput] == 100
    found = made_page("fig7", [made("resnet101.dense"), run]).frame
    assert frame.of(found, fig7_11.MOST, run.row) == [1000]


# -- pages


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("methods", [(), ("gravac07",), ("dense",)])
def test_a_page_of_few_runs_says_what_is_missing(name: str, methods: Sequence[str]) -> None:
    """No run at all; no dense run, so that there is no target; one model, and not that of every figure."""
    used = ((1, 20), (10, 160))
    found = made_page(name, [made(f"{RESNET101}.{method}", used=used) for method in methods])
    assert {"agrees", "differs"}.isdisjoint(words(found).values())
    assert [one.draw().axes for one in found.figures.values()] or not found.runs
    if (name, *methods) == ("table2", "gravac07"):
        assert "No dense run: no target." in page.markdown(found)


def test_how_far_a_run_is_above_the_failing_level_is_not_known_without_a_target() -> None:
    one = course(made(f"{RESNET101}.gravac07"))
    assert math.isnan(training.above_failing(one.runs[0], one))


@pytest.mark.parametrize("names", [("final acuracy", "dense"), ("final accuracy", "densse")])
def test_a_claim_that_names_no_quantity_or_row_is_an_error_at_import(names: Sequence[str]) -> None:
    quantity, method = names
    check = Check(quantity, row_id(RESNET101, method))
    claim = Claim("good", "It is good.", "here", (check,))
    with pytest.raises(UserError, match="claim good: no (quantity 'final acuracy'|row .*densse)"):
        training.page(table2.__file__, ("dense",), lambda one: [claim], models=(RESNET101,))


def test_a_setting_without_a_value_is_not_set_and_an_old_name_is_the_new_one(
    tmp_path: Path,
) -> None:
    old = made(f"{RESNET101}.gravac07", policy={"gain": "error_fed", "value": None})
    pool.write([old], tmp_path)
    (run,) = pool.read(tmp_path)
    used = [facts.used([run], f"policy.{name}") for name in ("gain", "value", "eps")]
    assert used == ["energy", "not set", "-"]


def test_saturated_is_95_percent_of_the_value_at_the_largest_factor() -> None:
    assert fig3.saturation(pd.Series({1000: 2.0, 10: 1.0, 100: 1.89})) == 1000
    assert fig3.saturation(pd.Series({1000: 2.0, 10: 1.0, 100: 1.9})) == 100


# -- docs/gravac.md


def test_the_methods_and_artifacts_are_in_the_docs_and_choices_name_settings(
    repository: Path,
) -> None:
    text = (repository / "docs" / "gravac.md").read_text(encoding="utf-8")
    sizes = {f"{name}{factor}" for name in COMPRESSORS for factor in gravac.FACTORS}
    known = [name for name in gravac.LOOKS if name not in sizes]
    assert [name for name in known if f"`{name}`" not in text] == []
    for name in papers_in(repository / "conf")["gravac"]["artifact"]:
        assert f"`{name}`" in text or f"`{name.partition('/')[2]}`" in text
    letters = [c.silent[1] for c in training.CHOICES if c.silent.startswith("(")]
    assert list(dict.fromkeys(letters)) == list("abcdefghij")
    conf = repository / "conf"
    for (
        choice
    ) in training.CHOICES:  # a key's last part stands in a YAML of its group, or in the config
        group, _, rest = choice.key.partition(".")
        files = [
            *(conf / group).rglob("*.yaml"), conf / "config.yaml", conf / "paper" / "gravac.yaml",
        ]  # fmt: skip
        said = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert f"{rest or group}" in said, choice.key
