"""The benchmark's page: losses, bytes among N workers, the front, and what was tuned."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from published_results import BENCHMARK, RESULTS, runs_in_pool
from synthetic import require_golden

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.launch.paths import option
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.network.cost import Costs
from dgc_repro.paper import frame
from dgc_repro.paper.benchmark import methods, paired, profiles, recipes, speed, tradeoff
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.page import markdown
from dgc_repro.paper.records import Run
from dgc_repro.paper.setting_names import name_of


def _run(
    method: str, seed: int = 0, *, quality: float, calls: dict[str, int], workload: str = "low"
) -> Run:
    """Ten steps; ``calls``: payload bytes of the whole run by collective."""
    name = f"test/{workloads()[workload].metric}"
    # Another loss for each run, or rows are twins.
    loss = quality + crc32(f"{workload} {method} {seed}".encode()) % 1000 / 1e6
    epochs = pd.DataFrame(
        {
            "lr": [0.1], **{f"{part}/loss": [loss] for part in ("train", "test", "validation")},
            "epoch": [1], "step": [10], name: [quality], "train/skipped_steps": [0],
            name.replace("test", "validation"): [quality],
            "comm/payload_bytes": [float(sum(calls.values()))],
            "comm/wire_bytes": [float(sum(moved_by(key, 4) * size for key, size in calls.items()))],
            "time/compute_ms": [40.0], "time/compress_ms": [8.0], "time/decompress_ms": [2.0],
        }
    )  # fmt: skip
    config = {
        "experiment": {"paper": "benchmark", "artifact": "methods", "row": f"{workload}.{method}"},
        "seed": seed, "scale": {"name": "quick"}, "launch": {"workers": 4, "kind": "simulated"},
        "exchange": {"aggregation": "gather"}, "wrap": [],
        "policy": {"_target_": "dgc_repro.policy.fixed.Fixed"},
        "compressor": {"_target_": f"dgc_repro.compressor.{method.partition('_')[0]}.Any"},
        "model": {"_target_": "dgc_repro.model.resnet18.ResNet18", "width": 8, "stem": "imagenet"},
        "dataset": {"_target_": "dgc_repro.dataset.digits.Digits", "validation": 625},
        "train": {"epochs": 1, "batch_size": 4, "on_nonfinite": "skip"},
        "optimizer": {"lr": 0.1 if "_lr" not in method else float(method.partition("_lr")[2])},
    }  # fmt: skip
    summary = {
        "steps": 10, "parameters": 1000,
        "collectives": {key: {"calls": 10, "payload_bytes": size} for key, size in calls.items()},
    }  # fmt: skip
    environment = {"hardware": "none", "torch": "0", "data": "made up", "commit": "0" * 40}
    return Run(f"{workload}-{method}-{seed}", config, environment, summary, epochs)


DENSE = _run("dense", quality=80.0, calls={"allreduce": 40_000})
TOPK = _run("topk_0.01", quality=79.0, calls={"allgather": 800})


def _changed(run: Run, **sections: object) -> Run:
    return replace(run, config={**run.config, **sections})


def _epochs(run: Run, **columns: list[float]) -> Run:
    """The run with other columns, whose names have ``__`` for the slash."""
    new = {name.replace("__", "/"): values for name, values in columns.items()}
    return replace(run, epochs=run.epochs.assign(**new))


def test_a_cost_is_against_dense_training_or_its_run_of_the_same_seed() -> None:
    later = [
        _run(r.method, 1, quality=q, calls={"allreduce": 40_000})
        for r, q in ((DENSE, 70.0), (TOPK, 71.0))
    ]
    found = paired.numbers([DENSE, TOPK, *later])
    assert frame.of(found, paired.COST, "low.topk_0.01") == [-4.0, 4.0]  # the mean of dense is 75
    other = replace(TOPK, environment={**TOPK.environment, "hardware": "another"})
    assert frame.of(paired.numbers([DENSE, other]), paired.COST, "low.topk_0.01") == []
    text = [
        _run(name, seed, quality=value, calls={"allreduce": 40}, workload="lstm")
        for seed, both in enumerate(((100.0, 110.0), (200.0, 240.0)))
        for name, value in zip(("dense", "topk"), both, strict=True)
    ]
    assert frame.of(paired.numbers(text), paired.COST, "lstm.topk") == pytest.approx([10.0, 20.0])


def test_accuracy_is_judged_on_test_and_validation_images_together() -> None:
    run = _epochs(TOPK, validation__accuracy_percent=[83.0])
    judged = workloads()["low"].judged
    assert judged(run) == 79.0  # it is not known how many images there are
    data = {"_target_": "dgc_repro.dataset.cifar10.CIFAR10", "validation": 5000, "test_size": None}
    assert judged(_changed(run, dataset=data)) == pytest.approx((10 * 79 + 5 * 83) / 15)
    assert judged(_changed(run, dataset={**data, "test_size": 2500})) == pytest.approx(
        (79 + 2 * 83) / 3
    )


def test_wire_bytes_follow_the_collective() -> None:
    # ring allreduce: 2 (N-1) / N of 4000 bytes a step; allgather: N-1 times 80
    assert speed.wire_a_step(DENSE, 2) == pytest.approx(4_000)
    assert speed.wire_a_step(DENSE, 128) == pytest.approx(4_000 * 2 * 127 / 128)
    assert speed.wire_a_step(TOPK, 2) == pytest.approx(80)
    assert speed.wire_a_step(TOPK, 128) == pytest.approx(80 * 127)


def test_a_run_that_diverged_is_infinitely_worse() -> None:
    dense, lost = (
        _run(name, quality=quality, calls={"allreduce": 40}, workload="lstm")
        for name, quality in (("dense", 100.0), ("topk", float("nan")))
    )
    found = paired.numbers([dense, lost])
    assert frame.of(found, paired.COST, "lstm.topk") == [np.inf]
    assert paired.judged_of([dense, lost], "lstm").shown["lstm.topk"].word == "costs"
    image = _run("topk_0.1", quality=float("nan"), calls={"allgather": 800})
    assert frame.of(paired.numbers([DENSE, image]), paired.COST, "low.topk_0.1") == [np.inf]


@pytest.mark.parametrize("workload", ["low", "lstm"])
def test_a_seed_whose_dense_training_diverged_is_left_out(workload: str) -> None:
    lost, good = (
        [
            _run(name, seed, quality=quality, calls={"allreduce": 40}, workload=workload)
            for name, quality in (("dense", dense), ("topk", 60.0))
        ]
        for seed, dense in enumerate((float("nan"), 60.0))
    )
    found = paired.numbers([*lost, *good])
    # Images need dense training on the same kind of processor, texts of the same seed.
    assert frame.of(found, paired.COST, f"{workload}.topk") == [0.0] * (
        2 if workload == "low" else 1
    )
    methods.page([*lost, *good], "quick")
    with pytest.raises(UserError, match="dense training"):
        methods.page(lost, "quick")


def test_skipped_steps_are_not_counted_as_steps_that_sent_nothing() -> None:
    skipped = _epochs(TOPK, train__skipped_steps=[5])
    found = paired.numbers([DENSE, skipped])
    assert frame.of(found, paired.PAYLOAD, "low.topk_0.01") == [160.0]
    assert speed.wire_a_step(skipped, 2) == pytest.approx(160)
    assert speed.calls_at(skipped, 4)["allgather"] == (2, pytest.approx(160))
    none = _epochs(TOPK, train__skipped_steps=[10])
    assert speed.calls_at(none, 4) == {}


def test_a_worker_that_leaves_out_a_local_step_is_in_the_round() -> None:
    rounds = _epochs(_changed(DENSE, train={"local_steps": 5}), train__skipped_steps=[2.5])
    assert speed.exchanged(rounds) == 10
    assert speed.calls_at(rounds, 4)["allreduce"] == (1, pytest.approx(4_000))


@pytest.mark.parametrize(
    ("setting", "name"),
    [("redsync_0.01_False", "RedSync 1 %"), ("redsync_0.01_True", "RedSync 1 %, one mean"),
     ("uniform_4_plain", "4 bits, no error feedback"), ("muon_uniform_4", "Muon, 4 bits"),
     ("dgc_sampled_0.001", "sampled top-k 0.1 %"), ("onebit_adam", "1-bit Adam"),
     ("blockfloat_mxfp8", "MXFP8"), ("dion_0.25", "Dion, rank 25 %"),
     ("diloco_10_outer0.5", "DiLoCo, 10 steps, outer rate 0.5"), ("topk", "topk"),
     ("topk_inf", "topk_inf"), ("topk_high", "topk_high"), ("theirs_3", "theirs_3")],
)  # fmt: skip
def test_a_setting_has_a_name_that_people_say(setting: str, name: str) -> None:
    assert name_of(setting) == name


def test_no_two_published_settings_have_one_name_and_none_shows_its_row() -> None:
    runs = runs_in_pool(BENCHMARK)
    rows = {(run.model, run.method.partition("_lr")[0]) for run in runs if "." in run.row}
    named = [(workload, name_of(setting)) for workload, setting in rows]
    assert len(set(named)) == len(rows)
    assert not [name for _, name in named if "_" in name]


@pytest.mark.parametrize("name", ["low", "air", "gpt", "char_lstm"])
def test_dense_training_has_run_on_each_kind_of_processor(name: str) -> None:
    """Differences are taken within a kind, so runs on another kind would be lost."""
    own = [run for run in runs_in_pool(BENCHMARK) if run.model == name and run.scale == "small"]
    dense = Counter(run.processor for run in own if run.method == "dense")
    assert {run.processor for run in own} == dense.keys()
    assert min(dense.values()) >= 3, dense


def test_a_modelled_step_is_its_parts() -> None:
    work = speed.Workload([DENSE, TOPK])
    network = speed.NETWORKS["1 Gbit/s"]
    # 40 ms of compute, 8 of compress for four workers; 2 of decompress for four payloads
    costs = Costs(network, 8).seconds("allgather", 80)
    after_backward = _changed(TOPK, exchange={"aggregation": "gather", "unit": "model"})
    assert work.seconds(after_backward, network, 10) == pytest.approx(0.016 + costs)
    assert work.seconds(TOPK, network, 10) == pytest.approx(0.016)  # hidden
    slow = _epochs(TOPK, time__compute_ms=[80.0])
    both = speed.Workload([DENSE, DENSE, slow])  # half as fast, all of it
    assert both.seconds(slow, network, 10) == pytest.approx(0.010 + 0.001 + 0.002)


@pytest.mark.parametrize(
    ("changed", "overlaps"),
    [
        ({}, True),
        ({"policy": {"_target_": "dgc_repro.policy.stepwise.Stepwise"}}, True),
        ({"policy": {"_target_": "dgc_repro.policy.accordion.Accordion", "norm": "mean"}}, True),
        ({"policy": {"_target_": "dgc_repro.policy.accordion.Accordion", "norm": "own"}}, False),
        ({"policy": {"_target_": "dgc_repro.policy.gravac.GraVAC"}}, False),
        ({"exchange": {"aggregation": "gather", "unit": "model"}}, False),
        ({"train": {"local_steps": 10}}, False),
    ],
)
def test_which_settings_can_overlap(changed: dict[str, dict[str, str]], overlaps: bool) -> None:
    assert speed.can_overlap(_changed(TOPK, **changed)) is overlaps


FULL = speed.Sizes(parameters=5_500, vectors=500, factors=300)


def test_payloads_of_a_larger_model() -> None:
    slim = 400.0  # bytes of its 100 values in vectors

    def larger(run: Run, a_step: float = 1, **sent: float) -> dict[str, float]:
        calls = {name: (a_step, size) for name, size in sent.items()}
        found = speed.enlarged(run, calls, 1000, slim, FULL)
        assert {often for often, _ in found.values()} == {a_step}
        return {name: size for name, (_, size) in found.items()}

    sparse = _run("topk_0.01", quality=0, calls={})
    # 5000 values in matrices for 900, and 500 in vectors
    both = larger(sparse, allreduce=slim, allgather=90.0)
    assert both == pytest.approx({"allreduce": 2_000.0, "allgather": 500.0})
    # A quarter of the steps is dense.
    assert larger(sparse, allreduce=slim + 900, allgather=90.0)["allreduce"] == pytest.approx(7_000)
    assert larger(DENSE, allreduce=4_000.0) == pytest.approx({"allreduce": 22_000})
    # Random-k with shared indices and fp16 average vectors and values in one call.
    assert larger(sparse, allreduce=slim + 90.0) == pytest.approx({"allreduce": 2_500})
    rounds = _changed(DENSE, train={"local_steps": 10})
    assert larger(rounds, 0.1, allreduce=400.0) == pytest.approx({"allreduce": 2_200})
    settings = {"_target_": "dgc_repro.compressor.powersgd.PowerSGD", "rank": 2}
    low = _changed(_run("powersgd_2", quality=0, calls={}), compressor=settings)
    assert larger(low, 2, allreduce=900.0) == {"allreduce": 4 * (500 + 2 * 300)}


def test_frozen_values_are_not_among_those_that_a_model_learns() -> None:
    """The image recipes have a frozen convolution, which no method sends."""
    frozen = replace(DENSE, summary={**DENSE.summary, "parameters": 1_200})
    assert speed.Workload([frozen, TOPK]).parameters == 1_000


def test_vectors_are_those_of_a_step_that_was_exchanged() -> None:
    calls = {"allreduce": 800, "allgather": 800}
    run = _run("topk_0.01", quality=0, calls=calls)
    skipped = _epochs(run, train__skipped_steps=[2])
    assert speed.Workload([DENSE, skipped]).vectors == pytest.approx(100)
    none = _epochs(run, train__skipped_steps=[10])
    assert speed.Workload([DENSE, none]).vectors == 0


def test_shards_change_with_the_workers() -> None:
    def of(way: str, **calls: int) -> dict[str, tuple[float, float]]:
        run = _run("topk_0.01", quality=79.0, calls=calls)
        return speed.calls_at(_changed(run, exchange={"aggregation": way}), 16)

    assert of("gather", allgather=800) == {"allgather": (1, 80)}
    shards = of("sharded", alltoall=750, allgather=250)
    assert shards == {"alltoall": (1, pytest.approx(93.75)), "allgather": (1, pytest.approx(6.25))}


def test_networks_are_those_of_conf() -> None:
    for name, network in speed.NETWORKS.items():
        number, unit = name.split()
        node = option("network", f"ethernet_{number}{unit[0].lower()}bit")
        assert (network.rate, network.latency) == (node["rate"], node["latency"])
        assert network.efficiency == pytest.approx(node["efficiency"], rel=1e-4)  # rounded there


def test_a_run_that_does_not_reach_the_target_has_no_speedup() -> None:
    def with_target(run: Run, **reached: object) -> Run:
        told = {"metric": "accuracy", "target": 70, "reached": bool(reached), **reached}
        config = {**run.config, "stopping": {"target": 70}}
        return replace(run, config=config, summary={**run.summary, "stopping": told})

    dense = with_target(DENSE, step=10)
    early = paired.numbers([dense, with_target(TOPK, step=5)])
    place = "1 Gbit/s"
    work = speed.Workload([DENSE, TOPK])
    base, step = (work.seconds(run, speed.NETWORKS[place], 10) for run in (DENSE, TOPK))
    assert frame.of(early, paired.TARGET, "low.topk_0.01", place) == [
        pytest.approx(2 * base / step)
    ]
    never = paired.numbers([dense, with_target(TOPK)])
    assert frame.of(never, paired.TARGET, "low.topk_0.01", place) == []
    reached = [frame.of(found, paired.STEPS, "low.topk_0.01") for found in (early, never)]
    assert reached == [[5.0], [math.inf]]
    sent = [frame.of(found, paired.SENT, "low.topk_0.01") for found in (early, never)]
    assert sent == [[5 * 560], [math.inf]]
    # Dense training does not reach the target: nothing has a speedup.
    assert "speed" not in methods.page([with_target(DENSE), with_target(TOPK)], "quick").figures
    on_gpu = [
        replace(run, environment={**run.environment, "device": "cuda"})
        for run in (dense, with_target(TOPK))
    ]
    assert "speed" not in methods.page(on_gpu, "quick").figures  # other runs shared the GPU


def test_a_page_of_two_workloads_is_the_golden_one(tmp_path: Path) -> None:
    """With rates that were tried, a seed that diverged, twins, a missed target, and a score."""

    def trained(workload: str, method: str, payload: int, *values: float) -> list[Run]:
        own = [
            _run(method, seed, quality=value, calls={"allgather": payload}, workload=workload)
            for seed, value in enumerate(values)
        ]
        reached = {"reached": True, "step": 10}
        missed = {"reached": False, "step": None}
        summaries = [
            run.summary | {"stopping": missed if method == "topk_0.001" else reached} for run in own
        ]
        return [replace(run, summary=one) for run, one in zip(own, summaries, strict=True)]

    nan = math.nan
    runs = [
        *trained("low", "dense", 40_000, 80.0, 82.0, 81.2),
        *trained("low", "dense_lr0.2", 40_000, 83.0, 85.0),
        *trained("low", "topk_0.01", 800, 79.0, 80.0, 80.1),
        *trained("low", "topk_0.01_lr0.2", 800, 70.0, nan),
        *trained("low", "topk_0.001", 80, 60.0, 61.0, 60.5),
        *trained("low", "uniform_2", 2_500, 50.0, nan, 51.0),
        *trained("lstm", "dense", 40_000, 100.0, 102.0, 101.0),
        *trained("lstm", "topk_0.01", 400, 101.0, 103.5, 102.0),
    ]
    twins = [
        _changed(run, experiment=run.config["experiment"] | {"row": "low.bf16"}) for run in runs[:3]
    ]
    page = methods.page([*runs, *(replace(run, id=f"{run.id}-twin") for run in twins)], "small")
    require_golden(page, "benchmark.md", tmp_path)
    quick = markdown(methods.page(runs, "quick"))  # which concludes nothing
    assert "## What the seeds show" not in quick
    assert "## Score" not in quick


def test_the_docs_count_the_runs_of_quick() -> None:
    """The README, docs/benchmark.md and docs/reading-a-result.md say what `make benchmark` trains."""
    runs = runs_of("benchmark/methods", [])
    settings = {config["experiment"]["method"] for config, _ in runs}
    texts = {
        name: (RESULTS.parent / name).read_text("utf-8")
        for name in ("README.md", "docs/benchmark.md", "docs/reading-a-result.md")
    }
    assert f"`quick`: {len(settings)} settings)" in texts["README.md"]
    assert f"| `make benchmark` | {len(settings)} settings" in texts["docs/benchmark.md"]
    assert f"`make benchmark`: {len(runs)} runs at `quick`" in texts["docs/reading-a-result.md"]


def test_the_docs_have_the_bytes_by_number_of_workers() -> None:
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    own = table[(table["artifact"] == "workers") & (table["quantity"] == paired.OWN_WIRE)]
    sent = own.set_index("row")["mean"]
    text = " ".join((RESULTS.parent / "docs" / "benchmark.md").read_text("utf-8").split())
    few, many, most = (sent[f"low_{n}.uniform_4"] / sent[f"low_{n}.dense"] for n in (2, 32, 64))
    said = f"move {few:.2g} times the bytes of dense training among 2 workers and {many:.2g} times among 32"
    assert f"{said}, and {most:.2g} times among 64" in text


def _stated() -> tradeoff.Headline:
    found = tradeoff.stated(["low"])
    assert found is not None
    return found


def test_the_headline_names_eight_to_ten_settings_that_are_published() -> None:
    own = _stated()
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    assert 8 <= len(own.names) <= 10
    assert {f"{own.workload}.{setting}" for setting in own.names} <= set(table["row"])


@pytest.mark.parametrize("spread", [40.0, 1.01], ids=["apart", "equal bytes"])
def test_every_point_of_the_headline_is_named_and_no_name_covers_another(spread: float) -> None:
    own = _stated()
    points = {
        setting: tradeoff.Point(
            spread ** (place / 9), Shown("undecided", 3, at, at - half, at + half)
        )
        for place, setting in enumerate(own.names)
        for at, half in [(place % 4 - 1.0, 0.5 * place)]
    }
    lost = next(reversed(points))
    points[lost] = tradeoff.Point(2.0, Shown("worse", 3, np.inf, np.inf, np.inf))
    described = tradeoff.picture(own, points, [DENSE], "quick")
    figure = described.draw()
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert {text.get_text() for text in texts} == {own.names[key] for key in points if key != lost}
    boxes = [Text.get_window_extent(text) for text in texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(a.x0 >= 0 and a.x1 <= figure.bbox.x1 for a in boxes)
    title, said = figure.get_suptitle().splitlines()
    assert title == f"What fewer bytes cost: {workloads()[own.workload].title}" == described.title
    assert said == "reduced scale: quick; n = 1; made up; 4 simulated workers"
    assert f"Training diverged in a seed: {own.names[lost]}." in described.caption


def test_a_step_before_the_target_has_the_bytes_of_a_warm_up() -> None:
    """2000 bytes a step at first, 80 later: a step of the first five takes the time of 2000."""
    sent = {"step": [5, 10], "comm/payload_bytes": [10_000.0, 10_400.0], "train/skipped_steps": 0}
    table = pd.DataFrame(sent).join(TOPK.epochs.filter(like="time/")).ffill()
    total = {"allgather": {"calls": 10, "payload_bytes": 10_400}}
    run = replace(TOPK, epochs=table, summary={**TOPK.summary, "collectives": total})
    run = _changed(run, exchange={"aggregation": "gather", "unit": "model"})
    network = speed.NETWORKS["100 Mbit/s"]
    work, costs = speed.Workload([DENSE, run]), Costs(network, 8)
    early, whole = (work.seconds(run, network, steps) for steps in (5, 10))
    more = costs.seconds("allgather", 2_000) - costs.seconds("allgather", 1_040)
    assert early - whole == pytest.approx(more)


def _point(fewer: float, cost: float) -> tradeoff.Point:
    return tradeoff.Point(fewer, Shown("undecided", 1, cost, cost, cost))


def test_bytes_until_a_step_are_the_share_of_the_wire_bytes() -> None:
    """Half of the payload is sent dense in the first step and half gathered: on the wire they differ."""
    sent = {
        "step": [1, 10],
        "comm/payload_bytes": [400.0, 800.0],
        "comm/wire_bytes": [600.0, 1_800.0],
    }
    table = pd.DataFrame(sent).join(DENSE.epochs.drop(columns=list(sent))).ffill()
    total = {name: {"calls": 10, "payload_bytes": 400} for name in ("allreduce", "allgather")}
    run = replace(TOPK, epochs=table, summary={**TOPK.summary, "collectives": total})
    assert speed.wire_until(run, 4, 1) == pytest.approx(600)
    assert speed.wire_until(run, 4, 10) == pytest.approx(1_800)
    whole = 400 * 2 * 7 / 8 + 400 * 7
    assert speed.wire_until(run, 8, 1) == pytest.approx(whole / 3)
    assert speed.wire_until(run, 8, math.inf) == math.inf


def test_a_seed_in_which_dense_training_misses_the_target_counts_as_missed() -> None:
    runs = [
        _run(method, seed, quality=value, calls={"allreduce": 40_000})
        for method, values in (("dense", (80.0, 79.0)), ("bf16", (80.0, 81.0)))
        for seed, value in enumerate(values)
    ]
    found = paired.numbers(runs)
    assert frame.of(found, paired.STEPS, "low.dense") == [10.0, math.inf]
    assert frame.of(found, paired.SENT, "low.bf16") == [70_000, 70_000]


def test_the_front_has_what_nothing_beats() -> None:
    points = {
        "few": _point(9, 3.0), "beaten": _point(5, 3.5), "middle": _point(5, 1.0), "same": _point(4, 1.0),
        "much": _point(1, -0.5),
    }  # fmt: skip
    assert tradeoff.front(points) == ["few", "middle", "much"]


def test_a_panel_without_place_for_its_names_says_so() -> None:
    wide = _run("theirs_" + 300 * "0", quality=80.0, calls={"allgather": 400})
    figure = methods.page([DENSE, wide], "quick").figures["bytes_low"].draw()
    assert {axes.get_title(loc="left").partition(" (")[2] for axes in figure.axes} == {
        "no place for the names)"
    }


@pytest.mark.parametrize(
    ("setting", "like"),
    [("onebit_adam_lr0.1", "adam"), ("dgc_0.01_unmasked", "topk_0.1"), ("onebit", "signsgd"),
     ("uniform_4_plain", "qsgd_7"), ("theirs", "yours")],
)  # fmt: skip
def test_a_family_has_one_colour(setting: str, like: str) -> None:
    assert tradeoff.colour_of(setting) == tradeoff.colour_of(like)


def test_a_score_is_the_area_below_the_profile() -> None:
    costs = {
        "best": {"a": 1.0, "b": 2.0}, "ten": {"a": 10.0, "b": 20.0}, "far": {"a": 1e6, "b": 2.0},
        "lost": {"a": 1.0, "b": math.inf}, "part": {"a": 0.1},
    }  # fmt: skip
    found = profiles.ratios(costs)
    assert "part" not in found  # and does not count among the smallest costs
    assert found["ten"] == pytest.approx([10, 10])
    scores = {name: profiles.score(own) for name, own in found.items()}
    assert scores == pytest.approx({"best": 1.0, "ten": 0.5, "far": 0.5, "lost": 0.5})
    # The area of the step function itself, over ln t.
    where = np.linspace(0, np.log(profiles.LARGEST), 100_001)
    shares = [np.mean([np.log(r) <= t for r in found["ten"]]) for t in where]
    assert np.trapezoid(shares, where) / where[-1] == pytest.approx(scores["ten"], abs=1e-4)
    assert math.isnan(profiles.score([]))
    nobody = {"one": {"a": math.inf, "b": 3.0}, "two": {"a": math.inf, "b": 6.0}}
    assert profiles.ratios(nobody) == {"one": [1.0], "two": [2.0]}


@pytest.mark.parametrize(
    ("workload", "values", "target", "step"),
    [("low", [79.0, 80.0, 81.0], 80, 20), ("low", [70.0, 79.9, 79.0], 80, math.inf),
     ("gpt", [2.0, 1.9, 1.8], 1.8, 30), ("lstm", [99.0, 99.0, 99.0], None, math.nan)],
)  # fmt: skip
def test_steps_to_the_target_of_a_workload(
    workload: str, values: list[float], target: float | None, step: float
) -> None:
    one = workloads()[workload]
    assert one.target == target
    epochs = pd.DataFrame({"step": [10, 20, 30], f"test/{one.metric}": values})
    found = one.steps_to_target(replace(DENSE, epochs=epochs))
    assert found == step or (math.isnan(found) and math.isnan(step))


def test_a_record_without_cpu_time_has_no_core_minutes() -> None:
    timed = replace(DENSE, summary=DENSE.summary | {"time/cpu_seconds": 150.0})
    assert recipes.core_minutes(timed) == 2.5
    assert math.isnan(recipes.core_minutes(DENSE))
