"""`compare`: what lines are called, which runs are one line, and what its figure shows."""

from __future__ import annotations

import contextlib
import itertools
import shutil
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
from matplotlib.text import Text

from dgc_repro import compare
from dgc_repro import names as names_of_keys
from dgc_repro.errors import UserError
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.overrides import composed
from dgc_repro.paper import setting_names
from dgc_repro.paper.records import Run, read_run

FINISHED = read_run(Path(__file__).resolve().parent / "finished_run")


def a_run(
    compressor: str = "Dense", seed: int = 0, quality: float = 90.0, payload: float = 1e6,
    wrap: tuple[str, ...] = (), summary: dict[str, Any] | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """A made-up run. ``settings``: config values by dotted key, with ``__`` for the dots."""
    config = deepcopy(FINISHED.config) | {"seed": seed, "wrap": ["per_layer", *wrap]}
    config["compressor"] = {"_target_": f"dgc_repro.compressor.made_up.{compressor}"}
    config["experiment"] = {"paper": "none", "artifact": "custom", "row": compressor.lower()}
    for key, value in settings.items():
        *groups, last = key.split("__")
        node = config
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    found = {"test/accuracy_percent": quality, "comm/payload_bytes": payload} | (summary or {})
    return replace(
        FINISHED,
        id=f"{compressor.lower()}-s{seed}-0a1b2c3d",
        config=config,
        summary=FINISHED.summary | found,
    )


def lines(*runs: Run, by: str | None = None) -> dict[str, int]:
    """The lines of some runs of one data set, with their numbers of runs."""
    (task,) = compare.compared(runs, by)
    return {name: len(rows) for name, rows in task.lines}


def names(*runs: Run) -> list[str]:
    return setting_names.named(runs).names


# What a setting is called


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compressor__k", [*range(40_000)]),
        ("compressor___target_", "x" * 200_000),
        ("optimizer__names", "word, " * 30_000),
        ("dataset___target_", "x" * 200_000),
        ("dataset__note", "x" * 200_000),
        ("model___target_", "x" * 200_000),
        ("model__blocks", [1] * 100_000),
        ("wrap", ["x" * 100] * 2000),
        *((f"optimizer__{'k' * 900}{n}", n) for n in range(1)),
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
    several = [a_run("TopK", compressor__k=[*long, end, *long]) for end in (1, 2)]
    assert len({*names(*several)}) == 2


def test_results_are_in_no_name() -> None:
    collectives = [{"allgather": {"calls": 1, "payload_bytes": size}} for size in (1, 2)]
    own = [
        {"collectives": c, "epoch": 3 + i, "step": 7 + i, "lr": 0.1 * i, "state_bytes": i}
        for i, c in enumerate(collectives)
    ]
    ragged = [
        a_run("Threshold", seed, 90 + seed, 1e5 + seed, ("error_feedback",), more)
        for seed, more in enumerate(own)
    ]
    assert lines(a_run(), *ragged) == {"Threshold + error feedback": 2, "Dense": 1}


def test_what_is_no_setting_is_in_no_name() -> None:
    usual = a_run()
    for key in ("paths__runs", "sink__every_steps", "experiment__row", "dataset__root",
                "scale__name", "launch__timeout_seconds", "exchange__check", "something__new"):  # fmt: skip
        assert names(usual, a_run(seed=1, **{key: 12345})) == ["Dense", "Dense"], key


def test_two_runs_that_differ_in_a_setting_have_two_names() -> None:
    """Each key that may name a setting, set to another value."""
    wrap = ("momentum_correction", "error_feedback")
    usual = a_run("TopK", wrap=wrap, compressor__density=0.01, compressor__indices="auto")
    usual.config["wrapper"]["momentum_correction"] = {"_target_": "x.M", "momentum": 0.9}
    keys = setting_names.settings_of(usual.config)
    assert len(keys) > 40
    for key in keys.keys() - {"compressor._target_", "wrap"}:
        if key.startswith("wrapper.") and key.endswith("._target_"):
            continue  # another wrapper of the same name
        other = deepcopy(usual)
        *groups, last = key.split(".")
        node: Any = other.config
        for group in groups:
            node = node[group]
        node[last] = "x.Other" if last == "_target_" else 12345.678901234
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
        other = deepcopy(config)
        *groups, last = key.split(".")
        node: Any = other
        for group in groups:
            node = node[group]
        node[last] = "another value"
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
    moved = a_run(
        "Uniform", compressor__bits=8, policy___target_="x.Stepwise", policy__field="bits"
    )
    assert names(static, moved) == ["Uniform bits=8, policy=Fixed", "Uniform, policy=Stepwise"]
    assert names(moved) == ["Uniform"]
    assert names(
        a_run("TopK", compressor__density=None), a_run("TopK", compressor__density=0.1)
    ) == [
        "TopK",
        "TopK density=0.1",
    ]


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


def test_two_runs_of_one_seed_are_no_two_seeds() -> None:
    again = replace(a_run(quality=80.0), id="dense-s0-ffffffff")
    assert lines(a_run(), again, a_run(seed=1)) == {
        "Dense 0a1b2c3d": 1,
        "Dense ffffffff": 1,
        "Dense": 1,
    }


def test_repeats_of_one_folder_are_two_lines_and_copies_count_once(tmp_path: Path) -> None:
    again = a_run(quality=80.0)
    assert lines(a_run(), again) == {"Dense 0a1b2c3d": 1, "Dense 0a1b2c3d (2)": 1}
    write(tmp_path, a_run())
    write(tmp_path / "backup", a_run())
    write(tmp_path, a_run(seed=1))
    compare.main([str(tmp_path)])
    assert list(pd.read_csv(tmp_path / "compare.csv")["line"]) == ["Dense"] * 2


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


def test_a_run_that_diverged_is_counted_and_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [a_run(), a_run("TopK", quality=float("nan")), a_run("TopK", seed=1)]
    (task,) = compare.compared(runs)
    compare.show([task], compare.Console(width=120))
    assert "diverged in 1 of 2" in capsys.readouterr().out
    assert [name for name, _ in task.lines] == ["Dense", "TopK"]
    compare.figure([task], "payload_bytes")


def write(folder: Path, run: Run) -> None:
    shutil.copytree(Path(__file__).resolve().parent / "finished_run", folder / run.id)
    (folder / run.id / "config.yaml").write_text(yaml.safe_dump(run.config))


def test_runs_of_papers_are_left_out_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = a_run("Uniform", experiment__paper="dynamic")
    write(tmp_path, paper)
    with pytest.raises(UserError, match="1 finished runs, all of papers; give --paper"):
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
    looks = compare._looks(task).values()
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
