"""`compare`: what lines are called, which runs are one line, and what its figure shows."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from published_results import BENCHMARK, runs_in_pool

from dgc_repro import names as names_of_keys
from dgc_repro.compare import command as compare
from dgc_repro.compare import figures
from dgc_repro.compare.tasks import judged_sweep
from dgc_repro.errors import UserError
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.overrides import composed
from dgc_repro.paper import plot, setting_names
from dgc_repro.paper.benchmark import paired
from dgc_repro.paper.benchmark.equivalent import is_shortened
from dgc_repro.paper.benchmark.workloads import TUNES, workloads
from dgc_repro.paper.records import Run, read_run
from dgc_repro.results import RESULTS

FINISHED = read_run(Path(__file__).resolve().parent / "finished_run")
NAN = float("nan")


def a_run(
    compressor: str = "Dense", seed: int = 0, quality: float = 90.0, payload: float = 1e6,
    wrap: tuple[str, ...] = (), summary: dict[str, Any] | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """A made-up run. ``settings``: config values by dotted key, with ``__`` for the dots."""
    config = deepcopy(FINISHED.config) | {"seed": seed, "wrap": ["per_layer", *wrap]}
    config["compressor"] = {"_target_": f"dgc_repro.compressor.made_up.{compressor}"}
    config["experiment"] = {"paper": "none", "artifact": "custom", "row": compressor.lower()}
    for key, value in settings.items():
        config = with_value(config, key.replace("___", "._").replace("__", "."), value)
    found = {"test/accuracy_percent": quality, "comm/payload_bytes": payload} | (summary or {})
    last = {key: value for key, value in found.items() if "/" in key}
    last["validation/accuracy_percent"] = found["test/accuracy_percent"]
    return replace(
        FINISHED,
        id=f"{compressor.lower()}-s{seed}-0a1b2c3d",
        config=config,
        summary=FINISHED.summary | found,
        epochs=FINISHED.epochs.tail(1).assign(**last),
    )


def lines(*runs: Run, by: str | None = None) -> dict[str, int]:
    """The lines of some runs of one data set, with their numbers of runs."""
    (task,) = compare.compared(runs, by)
    return {name: len(rows) for name, rows in task.lines}


def names(*runs: Run) -> list[str]:
    return setting_names.named(runs).names


def with_value(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of a config with another value at a dotted key."""
    copy = deepcopy(config)
    *groups, last = key.split(".")
    node = copy
    for group in groups:
        node = node.setdefault(group, {})
    node[last] = value
    return copy


# What a setting is called


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compressor__k", [*range(40_000)]),
        ("compressor___target_", "x" * 200_000),
        ("optimizer__names", "word, " * 30_000),
        ("dataset___target_", "x" * 200_000),
        ("wrap", ["x" * 100] * 2000),
        (f"optimizer__{'k' * 900}", 1),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_large_value_of_a_stranger_makes_a_short_name(key: str, value: Any) -> None:
    """A value of 200 kB had printed thousands of lines, and its figure was too large for PIL."""
    same = (
        a_run("TopK", 1) if not key.startswith("dataset") else a_run("TopK", 1, dataset__root="x")
    )
    tasks = compare.compared([a_run("TopK"), same, a_run("TopK", **{key: value})])
    for by in (None, key.replace("___", "._").replace("__", ".")):
        if by and by != "wrap":
            with contextlib.suppress(UserError):
                tasks += compare.compared([same, a_run("TopK", **{key: value})], by)
    for task in tasks:
        said = [task.name, task.facts, *task.notes, *task.table["line"], *task.table["settings"]]
        assert max(map(len, said)) < 1000
    width, height = compare.figure(tasks[:2], "payload_bytes").get_size_inches()
    assert width < 20
    assert height < 40


def test_names_without_their_middle_stay_different() -> None:
    long = [0] * 5000
    assert len({*names(*(a_run("TopK", compressor__k=[*long, n, *long]) for n in (1, 2)))}) == 2


def test_what_is_no_setting_is_in_no_name() -> None:
    usual = a_run()
    for key in (
        *("paths__runs", "sink__every_steps", "experiment__row", "dataset__root", "scale__name"),
        *("launch__timeout_seconds", "exchange__check", "something__new"),
    ):
        assert names(usual, a_run(seed=1, **{key: 12345})) == ["Dense", "Dense"], key
    ragged = a_run(seed=2, quality=70.0, payload=3.0, summary={"collectives": {"allgather": 1}})
    assert names(usual, ragged) == ["Dense", "Dense"]


def test_two_runs_that_differ_in_a_setting_have_two_names() -> None:
    """Each key that may name a setting, set to another value."""
    wrap = ("momentum_correction", "error_feedback")
    usual = a_run("TopK", wrap=wrap, compressor__density=0.01)
    usual.config["wrapper"]["momentum_correction"] = {"_target_": "x.M", "momentum": 0.9}
    keys = setting_names.settings_of(usual.config)
    assert len(keys) > 40
    for key in keys.keys() - {"compressor._target_", "wrap"}:
        if key.startswith("wrapper.") and key.endswith("._target_"):
            continue  # another wrapper of the same name
        value = "x.Other" if key.endswith("._target_") else 12345.678901234
        other = replace(usual, config=with_value(usual.config, key, value))
        for runs in ((usual, other), (other, usual), (usual, a_run(), other)):
            found = names(*runs)
            assert found[0] != found[-1], key
            assert all(name.startswith(("TopK", "Dense")) for name in found)


NO_SETTING = (
    *("experiment.", "scale.", "generalization.", "seed", "network._target_", "network.source"),
    *("train.evaluation_batch_size", "train.profile"),
)
"""Keys of another run that need no name: where a run belongs, and what else is measured or said of it."""


def test_every_key_that_makes_another_run_may_name_a_setting() -> None:
    given = ("network.rate=1gbit", "stopping.target=50", "wrap=[per_layer,error_feedback]")
    config = composed(given)
    usual, named = config_hash(config), setting_names.settings_of(config)
    unnamed = []
    for key, _ in setting_names.flat(config):
        other = with_value(config, key, "another value")
        is_named = key in named or key in setting_names.settings_of(other)
        if config_hash(other, importable=()) != usual and not is_named:
            unnamed.append(key)
    assert [key for key in unnamed if not key.startswith(NO_SETTING)] == []


def test_error_feedback_is_in_the_name_and_other_wrappers_in_their_order() -> None:
    uniform = [
        a_run("Uniform", wrap=wrap, compressor__bits=4) for wrap in ((), ("error_feedback",))
    ]
    assert names(*uniform) == ["Uniform bits=4", "Uniform bits=4 + error feedback"]
    dgc = a_run("DGCSampled", wrap=("momentum_correction", "error_feedback"))
    assert names(a_run(), dgc)[1] == "DGCSampled + momentum correction + error feedback"
    dgc.config["wrap"] = ["momentum_correction", "per_layer", "error_feedback"]
    plain = a_run("TopK", wrap=("error_feedback",))
    assert names(plain, dgc)[0] == "TopK + error feedback"  # the usual wrapper has its usual places
    orders = [a_run("TopK", wrap=("error_feedback",)) for _ in range(2)]
    orders[1].config["wrap"] = ["error_feedback", "per_layer"]
    assert names(*orders) == [
        "TopK + per layer + error feedback",
        "TopK + error feedback + per layer",
    ]


def test_a_swept_key_is_in_every_name_of_its_compressor_and_another_where_it_is_unusual() -> None:
    runs = [
        a_run(),
        *(a_run("TopK", optimizer__lr=lr) for lr in (0.1, 0.2)),
        a_run("DGC", optimizer__momentum=0.0, launch__workers=8),
    ]
    found = setting_names.named(runs)
    assert found.names == ["Dense", "TopK, lr=0.1", "TopK, lr=0.2", "DGC, momentum=0, workers=8"]
    assert found.usual == "lr=0.1, momentum=0.9, workers=2"
    gravac = [
        a_run("TopK", launch__workers=n, policy={"_target_": "G", "workers": n}) for n in (2, 8)
    ]
    assert names(*gravac) == [f"TopK, policy.workers={n}, launch.workers={n}" for n in (2, 8)]


def test_a_strength_is_named_unless_the_policy_moves_it() -> None:
    static = a_run("Uniform", compressor__bits=8)
    policy = {"_target_": "x.Stepwise", "field": "bits"}
    moved = a_run("Uniform", compressor__bits=8, policy=policy)
    assert names(static, moved) == ["Uniform bits=8, policy=Fixed", "Uniform, policy=Stepwise"]
    assert names(moved) == ["Uniform"]
    densities = [a_run("TopK", compressor__density=density) for density in (None, 0.1)]
    assert names(*densities) == ["TopK", "TopK density=0.1"]


# Which runs are one line


def test_runs_of_other_components_are_other_lines() -> None:
    schedules = [a_run(schedule___target_=f"x.schedule.{name}") for name in ("Constant", "Cosine")]
    expected = {"Dense, schedule=Constant": 1, "Dense, schedule=Cosine": 2}
    assert lines(*schedules, a_run(seed=1, schedule___target_="x.schedule.Cosine")) == expected
    older = a_run(seed=1)
    del older.config["schedule"]
    assert lines(a_run(), older) == {"Dense": 2}  # a record without the group
    assert lines(a_run(), a_run("TopK")) == {"Dense": 1, "TopK": 1}


@pytest.mark.parametrize("key", ["train.fragments", "train.mixing", "exchange.aggregation"])
def test_a_record_that_is_older_than_a_key_has_its_default(key: str) -> None:
    """Seeds that were trained before and after an update had been two lines."""
    group, name = key.split(".")
    default = names_of_keys.defaults_of_sections()[group][name]
    runs = [a_run(seed=seed, **{key.replace(".", "__"): default}) for seed in range(2)]
    del runs[0].config[group][name]
    other = a_run(seed=2, **{key.replace(".", "__"): 7})
    assert sorted(lines(*runs, other).values()) == [1, 2]


def test_each_data_set_and_each_metric_has_a_table_of_its_own() -> None:
    perplexity = {"test/perplexity": 80.0}
    words = [
        a_run(seed=seed, summary=perplexity, dataset___target_="x.PTB", optimizer__lr=lr)
        for seed, lr in enumerate((1.0, 2.0))
    ]
    images = [a_run(), a_run("TopK"), a_run(seed=1)]
    tasks = compare.compared([*words, *images])
    assert [(task.name, task.metric) for task in tasks] == [
        ("Digits", "test/accuracy_percent"),
        ("PTB", "test/perplexity"),
    ]
    assert [name for name, _ in tasks[0].lines] == ["Dense", "TopK"]
    assert [name for name, _ in tasks[1].lines] == ["Dense, lr=1", "Dense, lr=2"]
    assert len(compare.figure(tasks, "payload_bytes").axes) == 2


def test_two_runs_of_one_seed_are_two_lines_and_copies_count_once(tmp_path: Path) -> None:
    again = a_run(quality=80.0)
    other = replace(again, id="dense-s0-ffffffff")
    found = lines(a_run(), other, a_run(seed=1))
    assert found == {"Dense 0a1b2c3d": 1, "Dense ffffffff": 1, "Dense": 1}
    assert lines(a_run(), again) == {"Dense 0a1b2c3d": 1, "Dense 0a1b2c3d (2)": 1}
    for place, run in (
        ("", a_run()), ("backup", a_run()), ("", replace(a_run(), id="renamed")), ("", a_run(seed=1)),
    ):  # fmt: skip
        write(tmp_path / place, run)
    compare.main([str(tmp_path)])
    assert list(pd.read_csv(tmp_path / "compare.csv")["line"]) == ["Dense"] * 2


def test_a_line_that_guesses_says_so() -> None:
    guess = {"classes": 10, "test/accuracy_percent": 9.5}
    (task,) = compare.compared([a_run(), a_run("TopK", summary=guess), a_run("TopK", 1)])
    assert "TopK: no better than guessing with seed 0" in task.notes


def test_a_run_that_diverged_is_counted_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = compare.compared([a_run("TopK", quality=NAN), a_run("TopK", seed=1)])
    compare.show(tasks, compare.Console(width=120))
    assert "diverged in 1 of 2" in capsys.readouterr().out


def test_a_line_that_pools_settings_says_so() -> None:
    runs = [
        a_run("Uniform", seed=seed, wrap=wrap, policy___target_=f"x.{policy}")
        for seed, wrap, policy in ((0, (), "Fixed"), (1, ("error_feedback",), "Fixed"), (2, (), "Stepwise"))
    ]  # fmt: skip
    (task,) = compare.compared([*runs, a_run()], by="compressor")
    assert {name: len(rows) for name, rows in task.lines} == {"Uniform": 3, "Dense": 1}
    (note,) = task.notes
    assert note.startswith("Uniform pools 3 settings")
    (separate,) = compare.compared([*runs, a_run()])
    assert not any("pools" in note for note in separate.notes)
    assert lines(a_run("TopK", compressor__density=0.1), a_run(), by="compressor.density") == {
        "density 0.1": 1,
        "density not set": 1,
    }
    with pytest.raises(UserError, match=r"no setting 'densities'|no setting 'density'"):
        lines(a_run("TopK", compressor__density=0.1), by="density")
    with pytest.raises(UserError, match="no setting 'collectives'"):  # a result
        lines(a_run(summary={"collectives": {}}), by="collectives")


def write(folder: Path, run: Run) -> None:
    shutil.copytree(Path(__file__).resolve().parent / "finished_run", folder / run.id)
    (folder / run.id / "config.yaml").write_text(yaml.safe_dump(run.config))


def test_runs_of_papers_are_left_out_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = a_run("Uniform", experiment__paper="dynamic")
    write(tmp_path, paper)
    with pytest.raises(UserError, match=r"all finished runs \(1\) are of papers; give --paper"):
        compare.main([str(tmp_path)])
    write(tmp_path, a_run("TopK"))
    compare.main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Uniform" not in printed
    assert "left out: 1 of 2 runs" in printed
    assert (tmp_path / "compare.csv").read_text().count("\n") == 2
    compare.main([str(tmp_path), "--paper"])
    printed = capsys.readouterr().out
    assert "Uniform" in printed
    assert "left out" not in printed


# Against a reference


def seeds(compressor: str, *qualities: float, first: int = 0, **settings: Any) -> list[Run]:
    """Runs of one setting, a seed for each quality."""
    return [
        a_run(compressor, seed, quality, **settings)
        for seed, quality in enumerate(qualities, first)
    ]


def judged(
    runs: Sequence[Run], name: str = "dense", margin: float | None = None
) -> compare.Against:
    """The comparison of runs of one data set with a reference."""
    ((_, one),) = compare.judged_against(compare.compared(runs), name, margin)
    return one


def shown(runs: Sequence[Run], name: str = "dense", margin: float | None = None) -> dict[str, str]:
    """Rows of the table against a reference: all cells but the name's, by name."""
    one = judged(runs, name, margin)
    return {name: " | ".join(cells) for name, *cells in one.rows}


def printed_at(width: int, runs: Sequence[Run], name: str = "dense") -> str:
    """What is printed of runs in a terminal of this width."""
    console = compare.Console(width=width, file=io.StringIO(), highlight=False)
    tasks = compare.compared(runs)
    compare.show(tasks, console)
    compare.show_judged(compare.judged_against(tasks, name), console)
    found = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(found, str)
    return found


def test_the_published_runs_of_low_have_the_classes_and_intervals_of_the_page() -> None:
    runs = [
        run
        for run in runs_in_pool(BENCHMARK)
        if run.model == "low" and TUNES not in run.method and not is_shortened(run)
    ]
    (task,) = compare.compared(runs)
    row_of = {line: {run.row for run in own} for line, own in task.runs_of.items()}
    (reference,) = (line for line, rows in row_of.items() if rows == {"low.dense"})
    ((_, one),) = compare.judged_against([task], reference)
    found = {row: one.judged.shown[line] for line, rows in row_of.items() for row in rows}
    judged = paired.judged_of(runs, "low").shown
    assert found == judged  # bit for bit
    # The page as it is printed.
    text = (RESULTS / "benchmark/small/methods/table.md").read_text(encoding="utf-8")
    section = text.partition("\n## images, recipe low\n")[2].partition("\n## ")[0]
    heads, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    page = {
        row: dict(zip(heads, line, strict=True)) for row, line in zip(judged, lines, strict=True)
    }
    assert len(page) == len(found) == 39
    rows = {line: cells for line, *cells in one.rows}
    for line, (row,) in row_of.items():
        n, less, _, interval, word, *_ = rows[line]
        printed = [page[row][head] for head in ("n", "times less", "95 % interval", "class")]
        assert [n, less, interval, word.partition(",")[0]] == printed


def test_the_table_has_cost_interval_class_and_seeds_that_are_missing() -> None:
    dense = seeds("Dense", 90.0, 91.0, 92.0)
    close = seeds("Uniform", 89.9, 91.0, 92.0, payload=2.5e5)
    worse = seeds("TopK", 80.0, 81.1, 82.0, payload=1e4)
    assert shown([*dense, *close, *worse]) == {
        "Dense": "3 | 1.00x | 0.00 | - | - | - | -",
        "Uniform": "3 | 4.00x | 0.03 | -0.11 to 0.18 | equivalent | yes | -",
        "TopK": "3 | 100x | 9.97 | 9.82 to 10.11 | costs | yes | -",
    }
    assert shown([*dense, *close], margin=0.15)["Uniform"].endswith("undecided | - | 1")
    assert shown([*dense, *close], "uniform")["Dense"].startswith(
        "3 | 0.25x | -0.03 | -0.18 to 0.11"
    )


def test_one_pair_of_seeds_is_undecided() -> None:
    rows = shown([*seeds("Dense", 90.0), *seeds("TopK", 50.0)])
    assert rows["TopK"] == "1 | 1.00x | 40.00 | - | undecided, n = 1 | - | 2+"
    two = [*seeds("Dense", 90.0, 91.0, 92.0), *seeds("TopK", 50.0, 51.0)]
    assert shown(two)["TopK"] == "2 | 1.00x | 40.00 | - | undecided, n = 2 | - | 1+"
    numbers = judged(two).numbers.set_index("settings").loc["TopK"]
    assert tuple(numbers[["n", "cost"]]) == (2, pytest.approx(40.0))
    assert numbers[["low", "high"]].isna().all()


def test_seeds_that_only_one_side_has_are_named() -> None:
    runs = [
        *seeds("Dense", 90.0, 91.0, 92.0),
        *seeds("TopK", 90.0, 91.0, 92.0, first=1),
        *seeds("Uniform", 9.0, first=7),
    ]
    assert judged(runs).notes == (
        "TopK: seed 3, which the reference lacks",
        "TopK: no seed 0, which the reference has",
        "Uniform: seed 7, which the reference lacks",
        "Uniform: no seeds 0, 1, 2, which the reference has",
    )
    rows = shown(runs)
    assert rows["Uniform"] == "0 | - | - | - | undecided, n = 0 | - | 3+"
    assert rows["TopK"].startswith("2 | 1.00x")


def test_a_seed_that_diverged_costs_and_of_the_reference_is_left_out() -> None:
    runs = [*seeds("Dense", 90.0, 91.0, NAN), *seeds("TopK", 90.0, NAN, 91.0)]
    assert judged(runs).notes[0] == "the reference diverged with seed 2, left out here"
    assert shown(runs)["TopK"].startswith("3 | 1.00x | diverged in 1 of 3 | - | costs")
    compare.figure(compare.compared(runs), "payload_bytes")


def perplexities(compressor: str, *values: float) -> list[Run]:
    """Runs of one setting, a seed for each perplexity."""
    return [
        a_run(compressor, seed, summary={"test/perplexity": value})
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "runs",
    [
        [*seeds("Dense", NAN, NAN), *seeds("TopK", 90.0, 91.0)],
        [*seeds("Dense", 90.0, 91.0), *seeds("TopK", 90.0, NAN)],
        [*seeds("Dense", 90.0, payload=0.0), *seeds("TopK", 90.0)],
        [*seeds("Dense", 90.0), *seeds("TopK", 90.0, payload=0.0)],
        [*seeds("Dense", 90.0), *seeds("TopK", 90.0, payload=NAN)],
        [*perplexities("Dense", 1e2, 1e2, 1e2), *perplexities("TopK", 1e308, 1e3, 1e3)],
        [*perplexities("Dense", 1e308, 1e2, 1e2), *perplexities("TopK", 1e2, 1e2, 1e2)],
    ],
    ids=[
        *("reference diverged", "diverged", "reference sends nothing", "sends nothing", "unknown bytes"),
        *("huge", "tiny"),
    ],
)  # fmt: skip
def test_what_has_no_place_in_the_figure_is_counted_in_it(runs: list[Run]) -> None:
    """Drawing them had ended in a traceback, after the table."""
    judged = compare.judged_against(compare.compared(runs), "dense")
    figure = compare.figure_against(judged)
    figure.draw_without_rendering()
    said = [text.get_text() for text in figure.findobj(Text)]
    assert any("not drawn (no cost or no bytes)" in text for text in said)
    for row in shown(runs).values():
        assert "never" not in row
        assert "undecided | 0" not in row
        assert len(row) < 100


def test_a_perplexity_that_is_not_above_0_is_no_perplexity() -> None:
    for dense, own in ((0.0, 100.0), (100.0, 0.0), (100.0, -1.0)):
        with pytest.raises(UserError, match=r"^(dense|topk)-s0-.*perplexity: above 0, got"):
            shown([*perplexities("Dense", dense), *perplexities("TopK", own)])


def test_perplexities_are_compared_in_percent() -> None:
    runs = [*perplexities("Dense", 100.0, 110.0, 120.0), *perplexities("TopK", 110.0, 121.0, 132.0)]
    assert judged(runs).headings[3] == "cost,\n%"
    assert judged(runs).workload.margin == 1
    assert shown(runs)["TopK"].startswith("3 | 1.00x | 10.00 | ")


def test_the_margin_is_the_benchmarks() -> None:
    assert judged(seeds("Dense", 90.0)).workload.margin == workloads()["low"].margin


def test_a_reference_is_a_line_or_its_compressor() -> None:
    runs = [*seeds("Dense", 90.0), *seeds("TopK", 90.0, wrap=("error_feedback",))]
    runs[1].config["compressor"]["_target_"] = "my_methods.top_blocks.TopBlocks"
    for name in ("dense", "Dense", "TopBlocks + error feedback", "topblocks", "top_blocks"):
        assert len(shown(runs, name)) == 2
    two = [a_run(optimizer__lr=lr) for lr in (0.1, 0.2)]
    assert set(shown(two, "Dense, lr=0.1")) == {"Dense, lr=0.1", "Dense, lr=0.2"}
    with pytest.raises(
        UserError, match=r"^--against: 'dense' may be .*: \"Dense, lr=0.1\"; \"Dense, lr=0.2\"$"
    ):
        shown(two, "dense")
    with pytest.raises(
        UserError, match=r"^--against: no setting 'dens'; there are: \"Dense\"; \"Top"
    ):
        shown(runs, "dens")


def test_a_data_set_without_the_reference_is_not_judged() -> None:
    runs = [*seeds("Dense", 90.0, 91.0), *seeds("TopK", 90.0, dataset___target_="x.Other")]
    assert set(shown(runs)) == {"Dense"}


MARGIN = "--margin: a number above 0, .* got "


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *((f"--against dense --margin={word}", f"{MARGIN}'{word}'") for word in ("nan", "inf", "0", "half")),
        ("--margin 0.5", "--margin: is for --against"),
        ("--against dense --by compressor", "--against: compares settings, .*leave --by out"),
        ("--against adam", "--against: no setting 'adam'; there are: \"Dense\""),
    ],
)  # fmt: skip
def test_a_mistake_in_the_comparison_is_one_line_and_writes_nothing(
    given: str, says: str, tmp_path: Path
) -> None:
    write(tmp_path, a_run())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=says) as error:
        compare.main([str(tmp_path), *given.split()])
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_named_after_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command had ended in a traceback, such as in a folder of runs that is read-only."""
    write(tmp_path, a_run())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out: a folder that can be written to, got .*file"):
        compare.main([str(tmp_path), "--out", str(tmp_path / "file")])
    assert "Dense" in capsys.readouterr().out


def test_a_record_without_the_numbers_is_named_in_one_line() -> None:
    whole = a_run("TopK")
    broken = replace(whole, epochs=whole.epochs.drop(columns="train/skipped_steps"))
    with pytest.raises(UserError, match=r"^topk-s0-0a1b2c3d: a record without the numbers"):
        shown([a_run(), broken])


def test_a_trained_run_whose_summary_lacks_its_quality_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = replace(a_run("TopK"), summary={"status": "finished"})
    (task,) = compare.compared([a_run(), broken])
    assert list(task.table["line"]) == ["Dense"]
    assert caplog.messages == [
        f"left out: {broken.id}: its summary.json has no test accuracy or perplexity; remove the folder and "
        "run again"
    ]


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (
            ["--againts", "dense"],
            "unrecognized arguments: --againts; python -m dgc_repro compare",
        ),
        (
            ["runs", "against=dense"],
            "unrecognized arguments: against=dense; python -m dgc_repro compare",
        ),
        (["--x", "payload"], "--x: invalid choice: 'payload' "),
    ],
)
def test_a_wrong_flag_is_one_line(given: list[str], begins: str) -> None:
    with pytest.raises(UserError, match=f"^{begins}.* --help lists the arguments$"):
        compare.main(given)


def test_the_command_prints_and_draws_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in (a_run(), a_run("TopK")):
        write(tmp_path, run)
    compare.main([str(tmp_path), "--against", "dense", "--margin", "2"])
    out = capsys.readouterr().out
    assert "against Dense, margin 2 points of accuracy" in out
    assert "undecided, n = 1" in out
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files >= {"compare.csv", "compare.png", "against.csv", "against.png"}


def test_a_setting_that_trains_another_way_is_named() -> None:
    runs = [*seeds("Dense", 90.0), *seeds("TopK", 90.0, train__epochs=7)]
    (note,) = judged(runs).notes
    assert note.startswith("TopK, epochs=7: train.epochs differs from the reference")


@pytest.mark.parametrize(
    ("runs", "is_judged"),
    [
        ([a_run(), a_run("TopK")], True),
        ([a_run(), a_run(seed=1), a_run("TopK"), a_run("Uniform")], True),
        ([a_run("TopK"), a_run("Uniform")], False),
        ([a_run(), a_run(seed=1)], False),
        ([a_run(optimizer__lr=0.1), a_run(optimizer__lr=0.2), a_run("TopK")], False),
        ([a_run(), a_run("TopK", train__epochs=7)], False),
    ],
    ids=["two", "four", "no dense", "dense alone", "two dense settings", "another training"],
)
def test_a_sweep_is_judged_against_its_only_dense_training(
    runs: list[Run], is_judged: bool
) -> None:
    assert bool(judged_sweep(compare.compared(runs))) is is_judged


# In a terminal


LONG = ("momentum_correction", "error_feedback")


def test_no_unit_and_no_column_is_cut_in_80_columns() -> None:
    runs = [
        *seeds("Dense", 90.0, 90.5, 91.0, payload=1.29e12, optimizer__weight_decay=0.0088693),
        *seeds("TopK", 70.0, 72.5, 71.0, payload=1.3e9, wrap=LONG, compressor__density=0.000123),
        *seeds("PowerSGD", 90.1, 90.4, payload=2.6e6, wrap=LONG, compressor__rank=4),
        *seeds("Uniform", 90.1, NAN, 88.0, payload=3.2e3, wrap=LONG, compressor__bits=4),
    ]
    more = {"comm/wire_bytes": 1.23e12, "comm/floats": 12.3e9, "time/train_seconds": 12345.6}
    runs = [replace(run, summary=run.summary | more) for run in runs]
    text = printed_at(80, runs)
    assert max(map(len, text.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    words = text.split()
    headings = (
        "settings n accuracy sent payload wire training s cost, points interval class family seeds"
    )
    for word in ("TB", "GB", "MB", "kB", "G", "%", "±", *headings.split()):
        assert word in words, word
    cells = "1.29 TB, 1.3 GB, 2.6 MB, 3.2 kB, 12.3 G, diverged, in 1 of 3, 90.50 ± 0.50, 12346 ± 0, 992x"
    for cell in cells.split(", "):
        assert cell in text, cell
    assert "undecided," in text
    assert "n = 2" in text
    wide = printed_at(150, runs)
    assert "undecided, n = 2" in wide
    assert "diverged in 1 of 3" in wide
    for word in ("momentum", "correction", "feedback", "PowerSGD"):  # names keep room for words
        assert word in words, word


# The figure


@pytest.mark.parametrize(
    ("payloads", "scale", "least_span"),
    [((1.0e6, 1.006e6), "linear", 1.99), ((1e6, 1e8), "log", 100)],
)
def test_nearly_equal_bytes_are_drawn_side_by_side_in_mb(
    payloads: tuple[float, float], scale: str, least_span: float
) -> None:
    runs = [a_run("TopK", payload=payloads[0]), a_run("Blocks", payload=payloads[1])]
    (axes,) = compare.figure(compare.compared(runs), "payload_bytes").axes
    low, high = axes.get_xlim()
    assert low < 1 < payloads[1] / 1e6 < high  # MB
    assert high / low > least_span
    assert (axes.get_xscale(), axes.get_xlabel()) == (scale, "payload of one worker (MB)")


def test_a_name_is_no_formula() -> None:
    name = "x.$frac{1}$"
    runs = [a_run(), a_run("TopK", model___target_=name)]
    runs[1].config["dataset"]["_target_"] = name
    for shown in (runs, [runs[0], a_run("TopK", model___target_=name)]):
        figure = compare.figure(compare.compared(shown), "payload_bytes")
        drawn = [text for text in figure.findobj(Text) if "frac" in text.get_text()]
        assert drawn
        assert all(cbook.is_math_text(text.get_text()) is False for text in drawn)


def test_a_line_that_sends_nothing_is_drawn() -> None:
    runs = [a_run(summary={"comm/wire_bytes": size}) for size in (0, 178_000)]
    runs[1].config["launch"]["workers"] = 3
    (axes,) = compare.figure(compare.compared(runs), "wire_bytes").axes
    low, high = axes.get_xlim()
    assert low < 0 < 0.178 < high
    assert {text.get_text() for text in words(axes)} == {"Dense, workers=2", "Dense, workers=3"}


def words(axes: Axes) -> list[Text]:
    """What names lines."""
    legend = axes.get_legend()
    assert legend is not None
    return list(legend.get_texts())


@pytest.mark.parametrize(("count", "x"), [(1, "seconds"), (60, "payload_bytes")])
def test_every_line_is_named_and_drawn_and_nothing_is_cut_off_or_overlaps(
    count: int, x: str
) -> None:
    wraps = ((), ("error_feedback",), ("momentum_correction", "error_feedback"))
    runs = [
        a_run("TopK", seed, 90 - place, 1e6 * place, wraps[place % 3], compressor__density=place)
        for place in range(1, count + 1)
        for seed in range(2)
    ]
    (task,) = compare.compared(runs)
    looks = figures._looks(task).values()
    assert len({(look.colour, look.marker, look.face) for look in looks}) == count
    figure = compare.figure([task], x)
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        figure.draw_without_rendering()
    (axes,) = figure.axes
    found = words(axes)
    said = [" ".join(text.get_text().split()) for text in found]
    assert sorted(said) == sorted(name for name, _ in task.lines)
    everything = figure.get_tightbbox()  # inches
    assert min(everything.min) > -0.01
    assert np.all(everything.max < figure.get_size_inches() + 0.01)
    boxes = [text.get_window_extent() for text in found]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert not any(box.overlaps(axes.bbox) for box in boxes)


def is_inside(figure: Figure) -> bool:
    """Whether each legend and each text lies within the canvas."""
    with plot.style():
        figure.draw_without_rendering()
    canvas = figure.bbox.padded(1)
    legends = [*figure.legends, *(legend for axes in figure.axes if (legend := axes.get_legend()))]
    boxes = [legend.get_window_extent() for legend in legends]
    boxes += [text.get_window_extent() for axes in figure.axes for text in axes.texts]
    return all(canvas.contains(*box.min) and canvas.contains(*box.max) for box in boxes)


@pytest.mark.parametrize(
    ("name", "count"),
    [("x", 20), ("W" * 300, 2), ("momentum correction, " * 8, 20), ("a_long_name_" * 20, 2)],
    ids=["short", "wide letters", "words", "a long word"],
)
def test_names_and_lists_stay_inside_the_canvas(name: str, count: int) -> None:
    runs = []
    for place in range(1, count + 1):
        settings: dict[str, Any] = {"payload": 1e6 * place, "model___target_": f"x.{name}{place}"}
        runs += seeds("TopK", 90.0 - place, 91.0, 92.0, **settings)
    tasks = compare.compared(runs)
    judged = compare.judged_against(tasks, tasks[0].lines[0][0])
    for figure in (compare.figure(tasks, "payload_bytes"), compare.figure_against(judged)):
        assert is_inside(figure)
        assert all(axes.bbox.width > 100 for axes in figure.axes)


def test_cost_is_drawn_against_times_fewer_bytes_with_the_reference_at_one() -> None:
    runs = [*seeds("Dense", 90.0, 91.0, 92.0), *seeds("TopK", 89.5, 90.0, 91.6, payload=1e4)]
    (axes,) = compare.figure_against(compare.judged_against(compare.compared(runs), "dense")).axes
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert low < 1 < 100 < high
    points = [
        float(xy[0, 0]) for line in axes.lines if len(xy := np.asarray(line.get_xydata())) == 1
    ]
    assert sorted(points) == pytest.approx([1.0, 100.0])
    assert {text.get_text() for text in axes.texts} == {"Dense", "TopK"}
    (band,) = [patch for patch in axes.patches if patch.get_zorder() == 0]
    assert band.get_extents().transformed(axes.transData.inverted()).ymax == pytest.approx(0.5)
