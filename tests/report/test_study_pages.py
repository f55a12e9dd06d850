"""Pages of studies: verdicts of seeds and of models, files, the terminal, and no torch."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from dgc_repro.errors import UserError
from dgc_repro.paper import gravac, lecture
from dgc_repro.paper.claim import Check, Claim, Source
from dgc_repro.report import density, scaling
from dgc_repro.report.__main__ import main
from dgc_repro.report.allreduce import size_text, time_text
from dgc_repro.report.publish import publish, rebuild
from dgc_repro.report.saturation import saturation
from dgc_repro.report.scaling import tie_compute_ms
from dgc_repro.report.study import judged
from dgc_repro.report.verdict import verdict_of_values
from dgc_repro.report.waiting import fit, half_interval
from dgc_repro.study.waiting import Waiting

SOURCE = Source("A paper", "a page")


def claim(**check: Any) -> Claim:
    return Claim("c", "as said", SOURCE, (Check("density", "a", "b", **check),), "as said")


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def write_waiting(runs: Path, seed: int, *, trials: int = 300, status: str = "finished") -> Path:
    """A record of the real study, without what launch/ writes of the machine."""
    folder = runs / f"lecture-waiting-waiting-quick-s{seed}"
    folder.mkdir(parents=True)
    settings = {"workers": [1, 4, 16, 64], "trials": trials, "mean_ms": 100, "deviation_ms": 10}
    config = {
        "seed": seed,
        "scale": {"name": "quick"},
        "experiment": {"paper": "lecture", "artifact": "waiting", "row": "waiting"},
        "study": {"part": "waiting", **settings},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text(json.dumps({"hardware": "a CPU", "commit": "0" * 40}))
    (folder / "summary.json").write_text(json.dumps({"status": status}))
    rows = Waiting(**settings).run(seed)  # type: ignore[arg-type]
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waiting")
    records = [write_waiting(folder / "runs", seed) for seed in range(3)]
    return publish(records, "lecture", "waiting", "quick", folder / "results")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("a", "b", "word", "reason"),
    [
        (seeds(1.2, 1.3, 1.1), seeds(1, 1, 1), "agrees", "n=3: holds"),
        (seeds(0.8, 0.7, 0.9), seeds(1, 1, 1), "differs", "reversed"),
        (seeds(0.8, 1.7, 0.9), seeds(1, 1, 1), "differs", "not established"),
        (seeds(1.2, 1.3), seeds(1, 1), "indicative", "points the claim's way"),
        (seeds(1.2, 1.3, 1.1), {}, "not run", "no finished record"),
    ],
)
def test_a_study_is_judged_by_its_seeds(
    a: dict[int, float], b: dict[int, float], word: str, reason: str
) -> None:
    found = verdict_of_values(claim(), {"density": {"a": a, "b": b}}, "small")
    assert (found.word, found.text) == (word, f"{word} (reduced scale: small)")
    assert reason in found.detail


@pytest.mark.parametrize(
    ("value", "word", "reason"),
    [(1.2, "agrees", "holds"), (0.9, "differs", "reversed"), (1.0, "differs", "no difference")],
)
def test_one_modelled_number_is_judged_as_it_is_and_says_modelled(
    value: float, word: str, reason: str
) -> None:
    values = {"density": {"a": seeds(value), "b": seeds(1.0)}}
    found = verdict_of_values(claim(), values, "quick", modelled=True)
    assert found.text == f"{word} (modelled, reduced scale: quick)"
    assert found.detail.endswith(reason)
    assert "n=" not in found.detail
    assert "[" not in found.detail


@pytest.mark.parametrize(
    ("value", "reason"), [(1.2, "holds"), (0.9, "reversed"), (1.0, "no difference")]
)
def test_what_rests_on_an_assumption_is_indicative_and_says_on_which(
    value: float, reason: str
) -> None:
    values = {"density": {"a": seeds(value), "b": seeds(1.0)}}
    assumed = replace(claim(), assumed="compute")
    found = verdict_of_values(assumed, values, "quick", modelled=True)
    assert found.text == "indicative (modelled, assumed compute, reduced scale: quick)"
    assert found.detail.endswith(reason)
    # As many seeds as you like do not make it more.
    values = {"density": {"a": seeds(*[value] * 5), "b": seeds(*[1.0] * 5)}}
    assert verdict_of_values(assumed, values, "quick").word == "indicative"


@pytest.mark.parametrize(("value", "word"), [(1.2, "by construction"), (0.9, "differs")])
def test_what_holds_by_construction_agrees_with_nobody_and_a_defect_still_shows(
    value: float, word: str
) -> None:
    values = {"density": {"a": seeds(value), "b": seeds(1.0)}}
    formulas = replace(claim(), by_construction=True)
    found = verdict_of_values(formulas, values, "quick")
    assert found.text == f"{word} (reduced scale: quick)"
    with pytest.raises(ValueError, match=r"^assumed: nothing of what holds by construction"):
        replace(formulas, assumed="compute")


def test_a_ratio_and_a_magnitude_are_judged_too() -> None:
    values = {"density": {"a": seeds(3.0), "b": seeds(1.5)}}
    for magnitude, word in ((2.2, "agrees"), (3.0, "differs")):
        judged = claim(above=1.0, ratio=True, magnitude=magnitude, tolerance=0.3)
        found = verdict_of_values(judged, values, "paper", modelled=True)
        assert found.text == f"{word} (modelled, paper scale)"
        assert "a / b: 2.00x" in found.detail


def test_the_folder_has_page_numbers_verdicts_and_figure_and_rebuilds_to_the_same_bytes(
    waiting: Path,
) -> None:
    before = contents(waiting)
    assert {p.name for p in waiting.iterdir()} == {
        *("records", "table.md", "table.csv", "verdicts.json", "waiting.svg", "waiting.png"),
    }
    rebuild(waiting)
    assert contents(waiting) == before
    verdicts = json.loads((waiting / "verdicts.json").read_text())
    assert [v["claim"] for v in verdicts] == [c.id for c in lecture.WAITING_CLAIMS]
    text = (waiting / "table.md").read_text()
    for said in lecture.WAITING_CLAIMS:
        assert said.text in text
        assert said.reading in text
    with (waiting / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["n"] for row in rows} == {"3"}
    assert {row["scale"] for row in rows} == {"quick"}
    found = {(r["law"], r["workers"], r["column"]): float(r["mean"]) for r in rows}
    assert found["exponential", "4", "theory"] == pytest.approx(25 / 12, abs=1e-4)
    assert found["exponential", "4", "slowest"] == pytest.approx(25 / 12, abs=0.2)


def test_parts_that_are_not_alike_are_no_page(tmp_path: Path) -> None:
    records = [write_waiting(tmp_path, 0), write_waiting(tmp_path, 1, trials=400)]
    with pytest.raises(UserError, match="^study: the same in every run of one table"):
        publish(records, "lecture", "waiting", "quick", tmp_path / "results")


def test_what_is_not_finished_is_left_out_and_a_broken_table_is_named(tmp_path: Path) -> None:
    record = write_waiting(tmp_path, 0, status="started")
    with pytest.raises(UserError, match="at least one finished run"):
        publish([record], "lecture", "waiting", "quick", tmp_path / "results")
    record = write_waiting(tmp_path, 1)
    (record / "rows.csv").write_text("")
    with pytest.raises(UserError, match=r"rows\.csv: a table of rows"):
        publish([record], "lecture", "waiting", "quick", tmp_path / "results")


def test_the_report_of_a_study_fits_a_terminal_and_never_imports_torch(
    waiting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(waiting)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "…" not in printed
    code = (
        "import sys; sys.modules['torch'] = None; from dgc_repro.report.__main__ import main; "
        f"sys.exit(main([{str(waiting)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


RESULTS = Path(__file__).resolve().parents[2] / "results"
COMPUTED = (
    "lecture/density",
    "lecture/waiting",
    "lecture/allreduce",
    "gravac/fig1a",
    "gravac/fig3",
)
STUDIES = [name for name in COMPUTED if (RESULTS / name / "quick").is_dir()]


@pytest.mark.parametrize("name", STUDIES)
def test_the_published_studies_rebuild_and_fit_a_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = RESULTS / name / "quick"
    copy = tmp_path / name / "quick"
    (copy / "records").mkdir(parents=True)
    for record in (published / "records").iterdir():
        (copy / "records" / record.name).mkdir()
        for path in record.iterdir():
            (copy / "records" / record.name / path.name).write_bytes(path.read_bytes())
    assert main([str(copy)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "…" not in printed
    for file in ("table.md", "table.csv", "verdicts.json"):
        assert (copy / file).read_bytes() == (published / file).read_bytes()


def test_a_fit_finds_the_slope_of_what_it_is_made_of() -> None:
    counts = [4, 16, 64, 256]
    slope, residual = fit(counts, [2 + 3 * math.log(c) for c in counts], lecture.LOG)
    assert (slope, residual) == (pytest.approx(3), pytest.approx(0, abs=1e-9))
    _, other = fit(counts, [2 + 3 * math.log(c) for c in counts], lecture.SQRT_LOG)
    assert other > 0.05


def test_error_bars_are_95_percent_of_all_trials_and_cover_as_often() -> None:
    """Of means over 5 seeds of 400 trials each; 1.96 sd / sqrt(5) of the seeds covers 88 % alone."""
    generator = np.random.default_rng(0)
    trials = generator.normal(size=(500, 5, 400))
    means, sds = trials.mean(axis=2), trials.std(axis=2, ddof=1)
    covered = 0
    for mean, sd in zip(means, sds, strict=True):
        half = 1.96 * sd / 20
        group = pd.DataFrame({"low": mean - half, "high": mean + half})
        covered += abs(mean.mean()) <= half_interval(group)
    assert 0.93 <= covered / 500 <= 0.97


def density_frame(real: float) -> pd.DataFrame:
    """Three seeds; real supports at 10x as dense as told, codes under their bound."""
    rows = []
    for seed in range(3):
        for kind in ("random", "gradient", "error-fed"):
            for factor in (10, 100, 1000):
                value = real if kind != "random" else 1 - (1 - 1 / factor) ** 256
                one = {"what": "density", "kind": kind, "factor": factor, "bits": 0}
                count = {"workers": 16, "summed": 16, "value": value, "theory": value}
                rows.append({**one, **count, "seed": seed})
        for bits in (4, 8):
            for count, value in ((2, 0.9), (16, 2.5)):
                one = {"what": "codes", "kind": "gradient", "factor": 0, "bits": bits}
                size = {"workers": count, "summed": count, "value": value}
                rows.append({**one, **size, "theory": math.log2(count), "seed": seed})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("real", "word"), [(0.7, "agrees"), (0.3, "differs")])
def test_dense_sums_are_judged_on_real_supports_and_arithmetic_is_called_so(
    real: float, word: str
) -> None:
    numbers = density.values(density_frame(real))
    found = {c.id: v for c, v in judged(lecture.DENSITY_CLAIMS, numbers, "quick")}
    assert found["dense.real"].word == found["dense.error-fed"].word == word
    assert {found[c].word for c in ("dense.random", "theory", "codes.4", "codes.8")} == {
        "by construction"
    }
    (note,) = density.how_near(density_frame(real))
    assert "N = 16: at most 4, met 4-bit codes 2.5 +- 0, 8-bit codes 2.5 +- 0" in note.arithmetic


def test_codes_are_judged_where_they_come_nearest_to_their_bound_and_beyond_it_differ() -> None:
    frame = density_frame(0.7)
    numbers = density.values(frame)["extra_bits"]
    assert numbers["bound, 4 bits"][0] - numbers["real, 4 bits"][0] == pytest.approx(0.1)
    codes = (frame["what"] == "codes") & (frame["workers"] == 2)
    for value, word in ((1.0, "by construction"), (1.01, "differs")):  # reached; exceeded
        frame.loc[codes, "value"] = value
        found = {
            c.id: v.word for c, v in judged(lecture.DENSITY_CLAIMS, density.values(frame), "quick")
        }
        assert found["codes.4"] == word


def test_costs_that_are_two_formulas_never_agree_with_the_lecture() -> None:
    formulas = {c.id for c in lecture.ALLREDUCE_CLAIMS if c.by_construction}
    assert formulas == {"bytes", "steps", "tree", "odd"}


def scaling_frame(resnet_ms: float) -> pd.DataFrame:
    rows = []
    for series, syncs in (("per step", (290.0, 429.0)), ("per tensor", (1262.0, 462.0))):
        for model, ms, sync in zip(("resnet101", "lstm"), (resnet_ms, 27.0), syncs, strict=True):
            one = {"row": model, "seed": 0, "series": series, "workers": 32, "compute_ms": ms}
            rows.append({**one, "sync_ms": sync, "efficiency": ms / (ms + sync)})
    return pd.DataFrame(rows)


def test_the_order_flips_at_the_compute_time_that_the_verdict_prints() -> None:
    text = scaling.order_flips_at(scaling_frame(16.0))
    assert text == "the order flips at 18 ms of compute of ResNet101 (assumed 16 ms, LSTM 27 ms)"
    for ms, better in ((17.0, False), (19.0, True)):
        frame = scaling_frame(ms)
        own = frame[frame["series"] == "per step"].set_index("row")["efficiency"]
        assert bool(own["resnet101"] > own["lstm"]) is better
    assert scaling.order_flips_at(scaling_frame(16.0).iloc[:1]) == ""


def test_no_verdict_of_gravacs_modelled_figures_is_more_than_indicative() -> None:
    for figure in (gravac.FIG1A_CLAIMS, gravac.FIG3_CLAIMS):
        assert {c.assumed for c in figure} == {"compute"}


def test_saturation_is_the_first_factor_near_the_last_ones_throughput() -> None:
    assert saturation([10, 100, 1000], [1.0, 1.9, 2.0]) == 100
    assert saturation([1000, 10, 100], [2.0, 1.0, 1.89]) == 1000
    assert saturation([10, 100], [1.0, 1.0]) == 10


def test_at_the_tie_both_scale_alike() -> None:
    compute = tie_compute_ms(300.0, 0.06)
    assert compute / (compute + 300) == pytest.approx(0.06)


def test_sizes_and_times_are_written_in_their_units() -> None:
    assert [size_text(v) for v in (0, 12, 4782, 1.5e6, math.inf)] == [
        *("always", "12 B", "4.78 kB", "1.5 MB", "never"),
    ]
    assert [time_text(v) for v in (2.5, 0.0312, 4e-5)] == ["2.5 s", "31.2 ms", "40 us"]


def test_the_claims_of_the_figures_are_those_of_the_paper() -> None:
    assert gravac.SATURATION == {"resnet101": 500, "vgg16": 500, "lstm": 1000}
    assert [gravac.stated_compress_ms(m) for m, *_ in gravac.MODELS] == [45, 61, 44]
    assert "LSTM (252 MB) scales better than ResNet101 (170 MB)" in gravac.FIG1A_CLAIMS[0].text
