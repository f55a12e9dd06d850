"""GraVAC's figures 1b and 4 to 11: claims, arithmetic, numbers read from recorded decisions, pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import words

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, frame, page, pool
from dgc_repro.paper.claims import Check
from dgc_repro.paper.gravac import (
    DENSE,
    LSTM,
    MODELS,
    RESNET101,
    VGG16,
    fig1b,
    fig2,
    fig4_6,
    fig7_10,
    fig11,
    shared,
    table2,
    table4,
)
from dgc_repro.paper.gravac import (
    gains as gains_page,
)
from dgc_repro.paper.gravac.shared import courses
from dgc_repro.paper.page import Page
from dgc_repro.paper.panels import density
from dgc_repro.paper.publish import artifact_of
from dgc_repro.paper.records import Run

FIGURES = ("fig1b", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11")
EPOCHS, STEPS = 10, 180  # a hundredth of the paper's steps
WINDOW = 20
Used = Sequence[tuple[float, int]]
ALL_DENSE: Used = ((1, STEPS),)
EXPONENTIAL: Used = ((10, 5), (20, 5), (40, 5), (160, 5), (1000, 160))
EVEN: Used = ((10, 90), (1000, 90))
RANDOM_K: Used = ((1.5, 20), (3, 20), (6, 20), (12, 80), (24, 20), (48, 20))
GEOMETRIC: Used = (*((factor, 20) for factor in (10, 20, 40, 80, 160, 320, 640)), (1280, 40))
SETTINGS: dict[str, Any] = {
    "scale": {"name": "small"}, "launch": {"workers": 4, "kind": "simulated"}, "policy": {"window": WINDOW},
    "train": {"step_time": "modelled", "epochs": EPOCHS}, "network": {"as_workers": 32},
}  # fmt: skip
DATA = {VGG16: "Cifar100", LSTM: "Ptb"}
"""The class of a model's data set, as in the paper; ResNet101 has Cifar10."""


def made(
    row: str, seed: int = 0, final: float = 80.0, *, used: Used = (), fewer: float = 1.0, dip: float = 0.0,
    seconds: float = 10.0, rates: Mapping[float, float] | None = None, **config: Any,
) -> Run:  # fmt: skip
    """A made-up run: quality comes evenly up to ``final`` and falls by ``dip`` right after the rate falls.
    ``used``: factors and steps; ``rates``: compression throughput by factor, else the factor itself."""
    number, final = np.arange(1.0, EPOCHS + 1), final + 0.1 * seed
    quality = (
        1000 - (1000 - final) * number / EPOCHS if row.startswith(LSTM) else final * number / EPOCHS
    )
    quality[5] = quality[4] - dip if dip else quality[5]
    metric = "perplexity" if row.startswith(LSTM) else "accuracy"
    name = {"perplexity": "test/perplexity", "accuracy": "test/accuracy_percent"}[metric]
    epochs = pd.DataFrame({
        "epoch": number, "step": 18 * number, "lr": np.where(number <= 5, 0.1, 0.01), name: quality,
        "train/loss": 1 + 1e-5 * sum(map(ord, row)) + seed, "test/loss": 1.0, "test/top5_percent": quality,
        "comm/floats": 1e6 * number / fewer, "comm/payload_bytes": 4e6 * number / fewer,
        "comm/wire_bytes": 6e6 * number / fewer, "time/train_seconds": number,
        "time/modelled_seconds": seconds * number,
    })  # fmt: skip
    factors = [factor for factor, count in used for _ in range(count)]
    decisions = pd.DataFrame({"step": np.arange(1, len(factors) + 1), "factor": factors})
    if factors:
        decisions["branch"] = np.where(decisions["factor"] == 1, "dense", "candidate")
        decisions["throughput"] = [(rates or {}).get(factor, factor) for factor in factors]
        gain = {"gain": 0.8, "gain_theta_min": 0.9}
        decisions = decisions.assign(theta_min=10.0, candidate=1000.0, **gain)
    settings = (
        SETTINGS
        | {"experiment": {"row": row}, "seed": seed, "stopping": {"metric": metric}}
        | {"dataset": {"_target_": f"x.{DATA.get(row.partition('.')[0], 'Cifar10')}"}}
        | config
    )
    return Run(
        f"{row}-{seed}", settings, {"data": "made up"}, {"parameters": 100_000}, epochs, decisions
    )


def gains(row: str, seed: int, energy: float, late: float, final: float = 80.0) -> Run:
    """A run at a fixed factor: the energy gain early and late, which oscillates at 1000x; the norm gain is
    a tenth more."""
    wave = np.where(np.arange(STEPS) % 2, 0.05, -0.05) * ("1000" in row)
    gain = np.where(np.arange(1, STEPS + 1) <= 10, energy, late + wave)
    norms = {"norm_before": 10.0, "norm_after": 5.0, "raw_norms": 2.0}
    table = pd.DataFrame({"step": np.arange(1, STEPS + 1), "gain": gain, **norms})
    table["sent_norms"] = 2.0 * (gain + 0.1)
    return replace(made(row, seed, final), decisions=table)


def spread(variances: Sequence[float], model: str, seed: int = 0) -> Run:
    """A dense run with this variance over workers in each tenth of the first 90 steps, and 0 later."""
    own = np.concatenate([np.repeat(np.asarray(variances, float), 9), np.zeros(90)])
    table = pd.DataFrame(
        {"step": np.arange(1, STEPS + 1), "own_square": own + 1, "mean_square": 1.0}
    )
    return replace(made(f"{model}.dense_variance", seed), decisions=table)


def as_printed(name: str) -> list[Run]:
    """Runs of three seeds that show what the paper says of a figure, with both gains."""
    found: list[Run] = []
    for seed in range(3):
        for gain in ("", "_norm"):
            if name == "fig7":
                found += [
                    made(f"{RESNET101}.gravac07{gain}", seed, used=EXPONENTIAL, fewer=163, dip=5),
                    made(f"{RESNET101}.gravac09{gain}", seed, used=EVEN, fewer=19, dip=2),
                ]
            if name == "fig8":
                rates = {10.0: 1.0, 40.0: 5.0, 1000.0: 9.0}
                loose: Used = ((10, 10), (40, 90), (1000, 80))
                found += [
                    made(f"{VGG16}.gravac07{gain}", seed, used=loose, fewer=80, rates=rates),
                    made(f"{VGG16}.gravac09{gain}", seed, used=((10, 170), (20, 10)), fewer=13.5),
                ]
            if name == "fig9":
                found += [
                    made(f"{LSTM}.gravac0{eps}{gain}", seed, used=EXPONENTIAL, fewer=fewer)
                    for eps, fewer in ((7, 289), (9, 279))
                ]
            if name == "fig10":
                slow = f"{RESNET101}.gravac_geometric{gain}"
                found += [
                    made(f"{RESNET101}.gravac07{gain}", seed, 85.0, used=EXPONENTIAL, fewer=163),
                    made(slow, seed, used=GEOMETRIC, fewer=76),
                ]
        model = {"fig8": VGG16, "fig9": LSTM}.get(name, RESNET101)
        if name in ("fig7", "fig8", "fig9"):
            worse = 200.0 if model == LSTM else 60.0
            found.append(made(f"{model}.gravac05_norm", seed, worse, used=EXPONENTIAL, fewer=300))
        if name == "fig7":
            found.append(made(f"{model}.gravac07_short", seed, 60.0, used=EXPONENTIAL, fewer=163))
        if name == "fig11":
            found += [
                made(f"{model}.{fig11.ENERGY}", seed, used=ALL_DENSE),
                made(f"{model}.{fig11.NORM}", seed, 78.0, used=RANDOM_K, fewer=18,
                     rates={factor: 1 / abs(factor - 12.1) for factor, _ in RANDOM_K}),
                made(f"{model}.{fig11.ACCORDION}", seed, 20.0, fewer=2),
            ]  # fmt: skip
        found.append(made(f"{model}.dense", seed))
    return found


def fixed_factors(
    model: str, weak: float = 0.95, strong: float = 0.2, later: float = 0.85
) -> list[Run]:
    """Runs of figures 4 to 6 as the paper describes them: 1000x starts low and grows."""
    qualities = {
        RESNET101: (80.0, 79.0, 70.0),
        VGG16: (80.0, 79.5, 79.0),
        LSTM: (100.0, 110.0, 130.0),
    }[model]
    found = []
    for seed in range(3):
        dense, at_10, at_1000 = qualities
        found += [
            made(f"{model}.dense", seed, dense),
            gains(f"{model}.{fig4_6.WEAK}", seed, weak, weak, at_10),
            gains(f"{model}.{fig4_6.STRONG}", seed, strong, later, at_1000),
        ]
    return found


def factors_in_training(confirmed: float = 1.5) -> list[Run]:
    """Runs of the gains: 10x keeps half of the energy, 1000x little; the norm gain of 1000x is
    ``confirmed`` while it trains. Every other step measures each of the other factors."""
    found = []
    for seed in range(3):
        found.append(made(f"{RESNET101}.dense", seed, 81.0, scale={"name": "low"}))
        for trained in (10, 100, 1000):
            others = [float(f) for f in (10, 100, 1000) if f != trained]
            candidate = np.resize(others, STEPS)
            energy = {10: 0.5, 100: 0.1, 1000: 0.02 / trained}
            norm = {10: 1.0, 100: 0.5, 1000: confirmed if trained == 1000 else 0.2}
            table = pd.DataFrame({"step": np.arange(1, STEPS + 1), "candidate": candidate})
            table = table.assign(
                gain=energy[trained], gain_candidate=[energy[int(f)] for f in candidate],
                raw_norms=2.0, sent_norms=2.0 * norm[trained],
                candidate_norms=[2.0 * norm[int(f)] for f in candidate],
            )  # fmt: skip
            run = made(
                f"{RESNET101}.topk{trained}_gains", seed, 81.0 - trained / 100,
                policy={"value": trained}, scale={"name": "low"},
            )  # fmt: skip
            found.append(replace(run, decisions=table))
    return found


def test_the_gains_of_each_factor_are_those_of_the_steps_that_measured_it() -> None:
    runs = factors_in_training()
    found = gains_page.page(runs, "low")
    assert set(words(found).values()) == {"agrees"}
    text = page.markdown(found)
    assert (
        "the energy gain of 10x is 0.50, which does not pass eps 0.7; the norm gain of 10x is 1.00"
        in text
    )
    assert "0.20 while training at 10x, and 1.50 while training at 1000x" in text
    assert "| Top-k 100x | 0.500 ± 0.000 | 0.100 ± 0.000 | 0.000 ± 0.000 |" in text
    assert found.figures["gains"]().axes
    refuted = words(gains_page.page(factors_in_training(0.3), "low"))
    assert refuted["norm.confirms"] == "differs"
    assert refuted["norm.refused"] == "agrees"


@pytest.mark.parametrize("kept", [(), ("dense",), ("dense", "topk10_gains")])
def test_the_page_of_gains_is_made_of_an_unfinished_set(kept: tuple[str, ...]) -> None:
    runs = [run for run in factors_in_training() if run.method in kept and run.seed == 0]
    found = gains_page.page(runs, "low")
    assert set(words(found).values()) <= {"not run", "indicative (+)"}
    assert "nan" not in page.markdown(found)
    assert found.figures["gains"]().axes


def test_a_rate_that_falls_gradually_has_no_step_where_it_first_falls() -> None:
    run = made(f"{RESNET101}.dense")
    assert fig7_10.decay_step(run) == 90
    falling = run.epochs.assign(lr=[0.6, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.1])
    assert math.isnan(fig7_10.decay_step(replace(run, epochs=falling)))


def test_figure_7_at_scale_low_names_the_model_and_judges_no_dip_without_a_step() -> None:
    settings = {"scale": {"name": "low"}, "model": {"_target_": "dgc_repro.model.whitened.Low"}}
    rates = np.linspace(1.0, 0.1, EPOCHS)
    runs = [
        replace(run, config=run.config | settings, epochs=run.epochs.assign(lr=rates))
        for run in as_printed("fig7")
    ]
    found = fig7_10.page(7, runs, "low")
    text = page.markdown(found)
    assert "- model: Low, 0.1 M parameters, in place of ResNet101 (44.5 M)" in text
    assert "| low (ours)" in text or "low GraVAC eps 0.7" in text
    says = words(found)
    assert not [name for name in says if "dip" in name or "deeper" in name]
    assert says["resnet101.mostly"] == "agrees"
    assert "figure 7: low" in found.figures["fig7"]().get_suptitle()


def made_page(name: str, runs: Sequence[Run], scale: str = "small") -> Page:
    module = artifact_of("gravac", name)
    assert module.POOL == "training"
    found: Page = module.page(runs, scale)
    return found


def pool_of(name: str) -> list[Run]:
    if name == "fig1b":
        return [
            spread([64, 8, 2, 2, 2, 2, 2, 2, 2, 2.1], model, s)
            for model in MODELS
            for s in range(3)
        ]
    if name in ("fig4", "fig5", "fig6"):
        return fixed_factors({"fig4": RESNET101, "fig5": VGG16, "fig6": LSTM}[name])
    return as_printed(name)


def test_a_claim_stands_on_one_page() -> None:
    """Two pages that judge one comparison, from other seeds, would disagree in their verdict."""
    figures = {f"fig{n}": fig7_10.claims_of(n) for n in fig7_10.SHOWN}
    gains = {f"fig{n}": fig4_6.CLAIMS[model] for model, n in fig4_6.FIGURE.items()}
    others = {m.__name__: m.CLAIMS for m in (fig1b, fig2, fig11, table2, table4)}
    pages: dict[frozenset[Check], set[str]] = {}
    for name, claims in (figures | gains | others).items():
        for claim in claims:
            checks = frozenset(replace(check, printed=0.0) for check in claim.checks)
            pages.setdefault(checks, set()).add(name)
    assert len(pages) > 150
    assert [where for where in pages.values() if len(where) > 1] == []


@pytest.mark.parametrize("name", FIGURES)
def test_runs_as_the_paper_describes_them_agree_with_every_claim(name: str) -> None:
    runs = pool_of(name)
    found = made_page(name, runs)
    ids = [verdict.claim.id for verdict in found.verdicts]
    assert len(ids) == len(set(ids))
    for verdict in found.verdicts:
        expected = "agrees (given)" if verdict.claim.assumed else "agrees"
        expected = "cannot follow" if verdict.claim.cannot_follow else expected
        assert verdict.word == expected, (verdict.claim.id, verdict.detail)
        rows = {row for check in verdict.claim.checks for row in check.rows}
        assert rows <= {run.row for run in runs}
    assert "nan" not in page.markdown(found)
    assert list(found.figures) == [name]
    assert found.figures[name]().axes


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("rows", [(), ("dense",)])
def test_rows_that_were_not_run_are_dashes(name: str, rows: tuple[str, ...]) -> None:
    runs = [run for run in pool_of(name) if run.method in rows and run.seed == 0]
    found = made_page(name, runs)
    assert {"not run", "cannot follow"} >= set(words(found).values())
    assert "not run" in page.markdown(found)
    assert found.figures[name]().axes


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("fig7", {"gravac07": {"used": EVEN[:1], "fewer": 163},
                  "gravac05_norm": {"final": 90.0, "fewer": 300},
                  "gravac09": {"used": ((10, 150), (1000, 30)), "fewer": 19}},
         {"even": "differs", "mostly": "differs", "small_eps": "differs"}),
        ("fig7", {"gravac07": {"used": ALL_DENSE}, "gravac05_norm": {"final": 60.0}},
         {"gravac07.less": "differs", "dip": "not tested", "small_eps": "not tested"}),
        ("fig7", {"gravac07": {"used": EXPONENTIAL, "fewer": 70, "dip": 1}},
         {"deeper": "differs"}),
        ("fig8", {"gravac07": {"used": ((40, 90), (10, 90)), "fewer": 80, "rates": {40.0: 9e9}}},
         {"arrives": "differs", "loose": "differs", "second": "differs (given)"}),
        ("fig9", {"gravac09": {"used": EVEN[:1], "fewer": 289}}, {"mostly": "differs", "eps": "differs"}),
        ("fig10", {"gravac_geometric": {"final": 90.0, "used": GEOMETRIC[1:], "fewer": 76}},
         {"similar": "differs", "slower": "differs"}),
        ("fig11", {fig11.NORM: {"final": 20.0, "used": RANDOM_K, "fewer": 18},
                   fig11.ENERGY: {"used": RANDOM_K, "fewer": 18}},
         {"quality.norm": "differs", "energy.dense": "differs"}),
        ("fig11", {fig11.NORM: {"used": ALL_DENSE}},
         {"better.norm": "not tested", "norm.compresses": "differs"}),
    ],
)  # fmt: skip
def test_each_verdict_turns_with_its_number(
    name: str, changes: dict[str, dict[str, Any]], expected: dict[str, str]
) -> None:
    runs = [
        made(run.row, run.seed, **changes[run.method]) if run.method in changes else run
        for run in as_printed(name)
    ]
    found = words(made_page(name, runs))
    prefix = {"fig8": VGG16, "fig9": LSTM, "fig10": "geometric"}.get(name, RESNET101)
    for claim, word in expected.items():
        assert found[claim if name == "fig11" else f"{prefix}.{claim}"] == word


def test_a_run_that_compressed_nothing_has_answered_how_much_it_sends() -> None:
    """It is dense training bit for bit, which is no reason to leave the claim untested."""
    runs = [run for run in as_printed("fig7") if run.method != "gravac09"]
    dense = [run for run in runs if run.method == DENSE]
    for run in dense:
        twin = made(f"{RESNET101}.gravac09", run.seed, used=ALL_DENSE)
        runs.append(replace(twin, epochs=run.epochs))
    found = words(made_page("fig7", runs))
    assert found["resnet101.gravac09.less"] == "differs"
    assert found["resnet101.theta_min"] == "not tested"


def test_the_gain_that_shows_a_finding_is_named() -> None:
    runs = [
        made(run.row, run.seed, used=ALL_DENSE) if run.method == "gravac07" else run
        for run in as_printed("fig7")
    ]
    table = made_page("fig7", runs).sections[0].table
    assert table is not None
    shown = table.set_index("finding")
    assert list(shown.loc["ResNet101, eps 0.7: mostly at 1000x."]) == ["no", "yes"]
    assert list(shown.loc["ResNet101: the dip is deeper for eps 0.7."]) == ["-", "yes"]


@pytest.mark.parametrize(
    ("model", "change", "claim"),
    [
        (RESNET101, {"strong": 0.6, "later": 0.7}, "resnet101.low"),
        (RESNET101, {"later": 0.1}, "resnet101.grows"),
        (RESNET101, {"later": 0.99}, "resnet101.below"),
        (RESNET101, {"weak": 0.7, "later": 0.3}, "resnet101.10x"),
        (VGG16, {"weak": 0.1}, "vgg16.order"),
        (LSTM, {"later": 0.5}, "lstm.1000x"),
    ],
)
def test_claims_on_gains_turn_with_either_gain(
    model: str, change: dict[str, float], claim: str
) -> None:
    found = words(made_page(f"fig{fig4_6.FIGURE[model]}", fixed_factors(model, **change)))
    assert found[claim] == "differs"
    assert found[f"{claim}.norm"] == "differs"


def test_only_scale_paper_asks_whether_vgg16_crosses_90_percent() -> None:
    assert "vgg16.crosses" not in words(made_page("fig5", fixed_factors(VGG16)))
    assert words(made_page("fig5", fixed_factors(VGG16), "paper"))["vgg16.crosses"] == "differs"


@pytest.mark.parametrize(
    ("variances", "expected"),
    [
        ([8, 8, 8, 8, 8, 8, 8, 8, 8, 4], ("agrees", "differs", "differs")),
        ([1, 8, 9, 9, 9, 9, 9, 9, 9, 9], ("differs", "agrees", "agrees")),
    ],
)
def test_the_variance_is_judged_by_its_tenths(
    variances: list[float], expected: tuple[str, ...]
) -> None:
    runs = [spread([v * (1 + 0.01 * seed) for v in variances], LSTM, seed) for seed in range(3)]
    found = words(made_page("fig1b", runs))
    assert tuple(found[f"lstm.{name}"] for name in ("falls", "drastic", "saturates")) == expected
    assert fig1b.in_part(runs[0], fig1b.SECOND) == variances[1]


def test_the_printed_reductions_follow_or_not_from_the_steps_at_each_factor() -> None:
    needed = fig7_10.exponential_steps()
    assert needed == pytest.approx(17_260, abs=5)
    sent = 500 * (1 / 10 + 1 / 20 + 1 / 40 + 1 / 160) + (needed - 2000) / 1000
    assert needed / sent == pytest.approx(163)
    most, steps_needed = fig7_10.geometric_steps()
    assert (round(most), round(steps_needed, -3)) == (45, 31_000)


def test_random_ks_energy_gain_is_below_eps_at_every_printed_factor() -> None:
    assert not any(fig11.energy_gain(factor) >= fig11.EPS for factor in fig11.FACTORS)
    assert math.sqrt(fig11.energy_gain(1.5)) == pytest.approx(0.816, abs=5e-4)
    ids = {claim.id for claim in fig11.CLAIMS}
    assert all(claim.cannot_follow for claim in fig11.CLAIMS if f"{claim.id}.norm" in ids)


def test_the_density_is_a_bell_for_each_step_and_integrates_to_one() -> None:
    grid = np.linspace(-1, 4, 4001)
    found = density(grid, np.array([10.0, 10.0, 1000.0]), fig7_10.BANDWIDTH)
    assert np.trapezoid(found, grid) == pytest.approx(1)
    assert found[grid.searchsorted(1.0)] == pytest.approx(
        2 * found[grid.searchsorted(3.0)], rel=1e-3
    )


def test_throughput_counts_the_samples_of_the_workers_whose_step_is_modelled() -> None:
    run = made("resnet101.gravac07", used=EVEN, rates={10.0: 100.0})
    assert shared.factor_table(run).at[10.0, shared.THROUGHPUT] == 100 * 32 / 4
    assert shared.samples_unit([run]) == "samples/s of 32 modelled workers"
    measured = made("resnet101.gravac07", used=EVEN, rates={10.0: 100.0}, train={})
    assert shared.factor_table(measured).at[10.0, shared.THROUGHPUT] == 100
    assert math.isnan(shared.factor_table(run, [40.0]).at[40.0, shared.RANK])


@pytest.mark.parametrize(
    ("times", "regret", "best"),
    [
        ({"dense": 10.0, "topk10": 5.0, "gravac07": 8.0}, 1.6, "Top-k 10x (50 s)"),
        ({"dense": 4.0, "topk10": 5.0, "gravac07": 8.0}, 2.0, "dense (40 s)"),
        ({"dense": 10.0, "gravac09": 1.0, "gravac07": 8.0}, 0.8, "dense (100 s)"),
        ({"dense": 10.0, "gravac07": math.nan}, math.nan, "dense (100 s)"),
        ({"gravac07": 8.0}, math.nan, "-"),
    ],
)
def test_regret_is_over_the_best_static_row_dense_among_them(
    times: dict[str, float], regret: float, best: str
) -> None:
    runs = [made(f"{RESNET101}.{name}", seconds=seconds) for name, seconds in times.items()]
    found, which = fig7_10.regret(courses(runs, "small", [RESNET101])[0], ["gravac07"])
    values = frame.of(found, fig7_10.REGRET, f"{RESNET101}.gravac07")
    assert which == best
    assert values == ([] if math.isnan(regret) else [pytest.approx(regret)])


def test_dense_counts_by_its_other_seeds_where_its_own_run_misses_the_target() -> None:
    finals = {0: 70.0, 1: 80.0, 2: 80.0}
    runs = [made(f"{RESNET101}.dense", seed, final, seconds=4.0) for seed, final in finals.items()]
    runs += [
        made(f"{RESNET101}.gravac07", 0, 90.0, seconds=8.0),
        made(f"{RESNET101}.gravac09", 0, 20.0),
    ]
    one = courses(runs, "small", [RESNET101])[0]
    found, which = fig7_10.regret(one, ["gravac07", "gravac09"])
    assert which == "dense (36 s)"  # the target is 76.7 - 5.8, reached after 9 of 10 epochs
    assert frame.of(found, fig7_10.REGRET, f"{RESNET101}.gravac09") == [math.inf]


def test_dense_runs_of_other_seeds_set_the_target_and_are_not_shown() -> None:
    runs = [run for run in as_printed("fig7") if run.seed == 0 or run.method == DENSE]
    assert {run.seed for run in made_page("fig7", runs).runs} == {0}


def test_runs_of_unlike_settings_make_no_page() -> None:
    other = made(f"{RESNET101}.gravac09", used=EVEN, launch={"workers": 8, "kind": "simulated"})
    with pytest.raises(UserError, match=r"launch\.workers"):
        made_page("fig7", [made(f"{RESNET101}.dense"), other])


def test_a_setting_without_a_value_is_not_set_and_an_old_name_is_the_new_one(
    tmp_path: Path,
) -> None:
    old = made(f"{RESNET101}.gravac07", policy={"gain": "error_fed", "value": None})
    pool.write([old], tmp_path)
    (run,) = pool.read(tmp_path)
    assert facts.used([run], "policy.gain") == "energy"
    assert facts.used([run], "policy.value") == "not set"
    assert facts.used([run], "policy.eps") == "-"
