"""``recommend``: its numbers, its order, what it prints, and what it refuses."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from test_pool_config import check_runs
from torch import Tensor

from dgc_repro.bench.launches import shapes_of
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.errors import UserError
from dgc_repro.exchange.exchange import Exchange, in_memory_order
from dgc_repro.exchange.world import World
from dgc_repro.launch import cli_args
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.launch.settings import build_compressor, build_policy, unallocated
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.speed import Sizes
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.predict import known, modelled, settings
from dgc_repro.predict.measure import time_exchange, with_method
from dgc_repro.predict.operations import operations_of
from dgc_repro.predict.recommend import (
    KEYS,
    Benchmark,
    Question,
    Row,
    best,
    chosen,
    command_of,
    front,
    head,
    origins,
    python_of,
    question,
    recommend,
)
from dgc_repro.results import RESULTS

WORKERS = 8
CLASSES = {"resnet101": 1000, "vgg16": 1000, **settings.MODELS}  # classes or words


benchmark_of = functools.cache(Benchmark)


@pytest.fixture(autouse=True)
def one_benchmark_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the published runs takes longer than the rest of a command."""
    monkeypatch.setattr("dgc_repro.predict.recommend.Benchmark", benchmark_of)


@pytest.fixture
def benchmark() -> Benchmark:
    return benchmark_of("low")


def asked(*arguments: str) -> Question:
    own = [one for one in arguments if not one.startswith("network.")]
    return question(cli_args.read(own, "recommend", KEYS, ())[0], arguments)


def rows_of(benchmark: Benchmark, *arguments: str) -> dict[str, Row]:
    rows, _ = benchmark.rows(asked(*arguments), WORKERS)
    return {row.run.method: row for row in rows}


def test_a_step_is_its_parts(benchmark: Benchmark) -> None:
    """Dense training by hand: ResNet101 of 44.5 M values at 1 Gbit/s, whose payload gets 95.6 %."""
    dense = rows_of(benchmark, "network=ethernet_1gbit", "compute_ms=100")["dense"]
    seconds = 2 * (WORKERS - 1) * (50e-6 + 4 * 44_549_160 / WORKERS * 8 / (0.956422 * 1e9))
    assert dense.communicate == pytest.approx(seconds, rel=1e-3)
    assert dense.hidden == pytest.approx(0.1 * 2 / 3)  # backward
    assert dense.step == pytest.approx(0.1 + dense.exchange + seconds - dense.hidden, rel=1e-3)


def test_sent_bytes_grow_with_the_model(benchmark: Benchmark) -> None:
    """Top-k 1 % sends about 1 % of the matrices with their places, and the vectors as they are."""
    rows = rows_of(benchmark, "network=ethernet_1gbit")
    assert rows["uniform_8"].calls["allgather"][1] == pytest.approx(44.4e6, rel=0.05)
    assert rows["topk_0.01"].calls["allreduce"][1] == pytest.approx(4 * 106_344)
    twice = rows_of(benchmark, "network=ethernet_1gbit", "parameters=89098320")
    sent = [found["topk_0.01"].calls["allgather"][1] for found in (rows, twice)]
    assert sent[1] / sent[0] == pytest.approx(2.0)


def test_a_faster_gpu_takes_less_and_the_cpu_is_scaled(benchmark: Benchmark) -> None:
    times = [
        rows_of(benchmark, "network=nvlink", f"device={device}", "compute_ms=1")["uniform_8"]
        for device in ("h100", "a100", "v100", "t4", "cpu")
    ]
    assert [row.exchange for row in times] == sorted(row.exchange for row in times)


def test_settings_are_listed_by_cost_and_the_lead_is_the_smallest_cost_that_is_shown(
    benchmark: Benchmark,
) -> None:
    open_question = asked("network=ethernet_1gbit")
    rows = chosen(benchmark.rows(open_question, WORKERS)[0], open_question)
    assert rows[0].cost is None
    assert [row.high for row in rows] == sorted(row.high for row in rows)
    lead = best(rows, open_question, 0.5)
    assert lead is not None
    faster = [row for row in rows[1:] if row.step * 1.05 < rows[0].step]
    smallest = min(row.at_most for row in faster)
    assert lead.at_most <= max(smallest, 0.5)
    assert lead.step == min(row.step for row in faster if row.at_most <= max(smallest, 0.5))
    shown_cost = benchmark.judged.shown[lead.run.row]
    assert lead.at_most - 0.1 < shown_cost.high <= lead.at_most
    shown = front(rows, lead)
    assert lead in shown
    assert [row.step for row in shown] == sorted((row.step for row in shown), reverse=True)


@pytest.mark.parametrize("model", ["resnet101", "lstm", "transformer"])
def test_the_table_has_the_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    recommend(["network=ethernet_1gbit", f"model={model}"])
    said = capsys.readouterr().out
    words = " ".join(said.partition("Use ")[2].split(":")[0].split())
    name = re.sub(r".*\((\w+)\)$", r"\1", words)
    assert re.search(rf"^ {name} ", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("network=ethernet_1gbit workers=1 max_cost=0", "1 worker with v100"),
        ("network=nvlink workers=8 model=resnet101", "8 workers with v100"),
    ],
)
def test_uncompressed_training_is_the_answer_where_nothing_is_faster(
    given: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recommend(given.split())
    said = capsys.readouterr().out
    assert "\nTrain uncompressed: no setting with a known cost is faster on this network." in said
    assert says in said
    assert "attach(" not in said


def test_max_cost_asks_for_the_fastest_setting_that_is_shown_to_cost_no_more(
    benchmark: Benchmark,
) -> None:
    loose = asked("network=ethernet_1gbit", "max_cost=30")
    rows = chosen(benchmark.rows(loose, WORKERS)[0], loose)
    lead = best(rows, loose, 0.5)
    assert lead is not None
    assert lead.step == min(row.step for row in rows if row.at_most <= 30)
    assert all(row.cost is None or row.cost.mean <= 30 for row in rows)
    strict = asked("network=ethernet_1gbit", "max_cost=0")
    found = best(chosen(benchmark.rows(strict, WORKERS)[0], strict), strict, 0.5)
    assert found is None or found.at_most > 0  # nothing is shown to cost nothing


def test_the_size_of_images_is_a_setting_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A step on images of 32 x 32 computes 48 times less, which inflates the speedup."""
    given = ["network=ethernet_1gbit", "model=resnet101", "method=topk_0.01"]
    factors = {}
    for side in (None, 224, 32):
        recommend([*given, *([f"image={side}"] if side else [])])
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(
            f"resnet101, 44.55 M parameters, images of {side or 224} x {side or 224}; 8 workers with v100;"
        )
        assert ("Defaults: image=224" in said) == (side is None)
        (times,) = re.findall(r", ([0-9.]+) times as fast as uncompressed", said)
        factors[side] = float(times)
    assert factors[None] == factors[224] < factors[32]
    with pytest.raises(UserError, match="^image: 32 or 224, got 64; .* compute_ms="):
        recommend([*given, "image=64"])
    with pytest.raises(UserError, match="^image: lstm reads sequences of 35 words; leave image"):
        recommend(["network=ethernet_1gbit", "model=lstm", "image=32"])


def test_settings_that_cannot_be_predicted_are_named(benchmark: Benchmark) -> None:
    _, left_out = benchmark.rows(asked("network=ethernet_1gbit"), WORKERS)
    assert {"demo_32", "diloco_10", "signsgd"} <= set(left_out)
    _, of_words = benchmark_of("lstm").rows(asked("network=ethernet_1gbit"), WORKERS)
    assert {"accordion", "adam", "gravac", "onebit_adam"} <= set(of_words)
    assert "dense" not in left_out


def test_the_answer_says_what_is_extrapolated(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["network=ethernet_1gbit", "network.rate=300mbit", "workers=2,8", "max_cost=0.01"]
    recommend(given)
    said = capsys.readouterr().out
    first = said.partition("\n\n")[0]
    assert "Times are modelled, not measured. Costs are measured with a small model" in first
    assert (
        "No faster setting is shown to cost at most 0.01 points of accuracy. Next best:\n" in said
    )
    assert "\n  compressor=" in said
    assert "\n  from dgc_repro import " in said
    assert "\n  exchange = attach(model, " in said
    assert "counted operations of 32 images" in said
    assert "Milliseconds of a step" in said
    assert "Not predicted (another optimizer" in said
    prose = [line for line in said.splitlines() if not line.startswith("  ")]
    assert max(map(len, prose)) < 80


@pytest.mark.parametrize("name", ["natural", "running_uniform"])
def test_a_compressor_without_published_runs_is_said_to_have_none(name: str) -> None:
    with pytest.raises(UserError, match=f"no runs of {name}, so its cost is not known"):
        recommend(["network=ethernet_1gbit", f"method={name}"])


def test_method_shows_one_whatever_it_costs_and_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recommend(["network=ethernet_1gbit", "method=topk_0.001", "max_cost=0"])
    said = capsys.readouterr().out
    assert "\n topk_0.001 " in said
    assert "uniform" not in said
    recommend(["network=ethernet_1gbit", "method=uniform_4_sharded"])
    words = "\nUse 4 bits, averaged in shards (uniform_4_sharded): at most "
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("name", ["uniform_4_sharded", "dgc_0.01", "powersgd_2", "sidco_0.01"])
def test_the_command_trains_the_setting(name: str, benchmark: Benchmark) -> None:
    run = rows_of(benchmark, "network=ethernet_1gbit")[name].run
    typed = composed(command_of(run).split())
    for key in ("compressor", "policy"):
        assert {**run.config[key], **typed[key]} == typed[key]
    assert typed["wrap"] == run.config["wrap"]
    assert typed["exchange"]["aggregation"] == run.config["exchange"]["aggregation"]


@pytest.mark.parametrize("workload", ["low", "lstm"])
def test_the_line_of_python_attaches_the_setting(workload: str) -> None:
    """Every setting's line, run with an `attach` that only notes its arguments, gives the compressor of its
    overrides."""
    plain = composed(["compressor=dense", "wrap=[]"])
    rows, _ = benchmark_of(workload).rows(asked("network=ethernet_1gbit"), WORKERS)
    for row in rows[1:]:
        lines = python_of(row.run, overlap=True)
        given: dict[str, Any] = {}
        code = "\n".join(lines).replace("attach(model", "noted(model")
        exec(code, {"model": None, "noted": lambda _, nest, **more: {**more, "nest": nest}}, given)
        given = given["exchange"]
        config = with_method(plain, row.run)
        config["exchange"]["aggregation"] = row.run.config["exchange"]["aggregation"]
        policy = build_policy(config)
        rung = policy.plan(policy.init(), 0).rung
        wanted = build_compressor(config, policy, None)
        if row.run.config["policy"].get("values"):
            wanted = _without_ladder(wanted, rung)
        written = repr(wanted).replace("['vectors']", "('vectors',)")  # a config has lists
        assert repr(given["nest"]) == written
        assert given["overlap"]


def _without_ladder(compressor: Any, rung: int) -> Any:
    """The nest with one rung in the place of its ladder."""
    if isinstance(compressor, Ladder):
        return compressor.rungs[rung]
    return replace(compressor, inner=_without_ladder(compressor.inner, rung))


@pytest.mark.parametrize("name", known.MODELS)
def test_the_known_models_are_those_of_conf(name: str) -> None:
    for side, stated in known.MODELS[name].items():
        stem = ["model.stem=imagenet"] if name == "resnet18" and side == 224 else []
        classes = 1000 if stem else CLASSES[name]
        config = composed([f"model={name}", "scale=none", "train.epochs=1", *stem])
        assert Sizes.of(shapes_of(config, classes).values()) == stated.sizes
        shape = settings.WORDS if side is None else (modelled.BATCH, 3, side, side)
        counted = operations_of(unallocated(config, classes), shape, words=side is None)
        assert counted.floating_point / 1e9 == pytest.approx(stated.gflop, abs=1e-3)


def test_modelled_times_are_those_of_the_published_counts() -> None:
    counts = speed.counts(RESULTS)
    assert counts is not None
    for _, row in counts[counts["launches"].notna()].iterrows():
        for gpu in modelled.SHOWN:
            seconds = modelled.exchange_seconds(dict(row), 1.0, modelled.GPUS[gpu])
            assert 1e3 * seconds == pytest.approx(row[f"modelled_{gpu}_ms"])
    compute = counts[counts["method"] == speed.COMPUTE].set_index("model")["modelled_v100_ms"]
    for name, ms in compute.items():
        gflop = next(iter(known.MODELS[str(name)].values())).gflop
        seconds = modelled.compute_seconds(gflop, modelled.BATCH, modelled.GPUS["v100"])
        assert 1e3 * seconds == pytest.approx(ms, rel=1e-4)


def test_a_missing_pool_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not here .* needs the published results"):
        Benchmark("low", tmp_path)


# The benchmark's settings are counted with the full models; the published table has all of them.


def test_a_setting_is_counted_as_its_compressor(monkeypatch: pytest.MonkeyPatch) -> None:
    topk = ["compressor=topk", "compressor.density=0.01"]
    given = {
        "topk_0.01": topk,
        "accordion": ["compressor=topk", "policy=accordion", "policy.values=[0.1,0.01]"],
        "powersgd_1": ["compressor=powersgd", "compressor.rank=1"],
        "warmed": [*topk, "policy=warmup", "policy.values=[0.1,0.01]"],
    }
    named = ["experiment=benchmark/transformer", "scale=benchmark/transformer/small"]
    jobs = [
        (composed([*named, *own, f"experiment.method={name}"]), []) for name, own in given.items()
    ]
    monkeypatch.setattr(settings, "runs_of", lambda name, words: jobs)
    monkeypatch.setattr(settings, "MODELS", {"transformer": 10_000})
    model, *rows = settings.rows()
    assert model["parameters"] > model["factors"] > model["vectors"] > 0
    assert model["modelled_v100_ms"] == pytest.approx(model["gflop"] / (0.4 * 15.7))
    counted = {row["method"]: row["launches"] for row in rows}
    assert list(counted) == ["topk_0.01", "powersgd_1", "warmed"]  # Accordion adapts
    assert counted["topk_0.01"] == counted["warmed"] > counted["powersgd_1"] > 0


@pytest.mark.slow
def test_the_published_counts_have_every_setting() -> None:
    counts = speed.counts(RESULTS)
    assert isinstance(counts, pd.DataFrame)
    jobs = runs_of(settings.BENCHMARK, ["scale=small", "seed=2"])
    check_runs(settings.BENCHMARK, "small", [config for config, _ in jobs])
    for workload in {config["experiment"]["workload"] for config, _ in jobs}:
        if not (model := workloads()[workload].full_size):
            continue
        wanted = {
            config["experiment"]["method"]
            for config, _ in jobs
            if config["experiment"]["workload"] == workload
            and config["train"].get("steps_share", 1.0) == 1.0  # a step of these is that of dense
            and speed.policy_of(config) in speed.PLANNED
        }
        assert set(counts.loc[counts["model"] == model, "method"]) == wanted | {speed.COMPUTE}


# -- measure=true --------------------------------------------------------------------------------


def gradients() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (40, 30), "b": (30,), "c": (8, 3, 3, 3)}
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    found["c"] = found["c"].contiguous(memory_format=torch.channels_last)
    return found


@pytest.mark.parametrize(
    "compressor",
    [
        Dense(),
        ErrorFeedback(Uniform(4, block=64)),
        ErrorFeedback(TopK(density=0.05)),
        Threshold(density=0.05),
        ErrorFeedback(PowerSGD(2)),
    ],
    ids=str,
)
def test_one_worker_hands_over_what_it_does_among_others(compressor: Compressor) -> None:
    given = gradients()
    seconds, calls = time_exchange(compressor, given, 4)
    world = World(4)
    exchange = Exchange(compressor, gradients(), world)
    every = [{n: in_memory_order(g).clone() for n, g in gradients().items()} for _ in range(4)]
    exchange.average(every)
    assert {name: size for name, (_, size) in calls.items()} == world.ledger.payload_by_collective
    assert seconds > 0
    assert all(torch.equal(given[name], tensor) for name, tensor in gradients().items())


def test_a_given_compute_time_is_said_to_be_given_also_where_others_are_measured(
    benchmark: Benchmark,
) -> None:
    words = ["network=ethernet_1gbit", "compute_ms=300", "measure=true"]
    given = asked(*words), cli_args.read(words, "recommend", KEYS, ())[0], benchmark
    said = " ".join(head(*given, measured=True))
    assert "A step computes for 300 ms, as given." in said
    said = " ".join(" ".join(origins(*given, measured=True)).split())
    assert "compute given by compute_ms" in said
    assert "compress measured here" in said


def test_a_plan_is_measured_after_its_warm_up(benchmark: Benchmark) -> None:
    run = rows_of(benchmark, "network=ethernet_1gbit")["dgc_0.01"].run
    found = with_method(composed(["compressor=dense", "wrap=[]"]), run)
    assert found["policy"]["_target_"].endswith("Fixed")
    assert found["policy"]["rung"] == 3
    assert found["optimizer"]["momentum"] == 0  # DGC's is on the workers


@pytest.mark.slow
def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    slim = ["model.width=4", "dataset=digits", "dataset.train_size=512", "launch.threads=1"]
    given = ["network=ethernet_1gbit", "model=resnet18", "method=topk", "batch=16", "measure=true"]
    given.append("device=cpu")
    own = ["compressor=threshold", "compressor.density=0.05"]
    recommend([*given, *slim, *own, "launch.device=cpu"])
    said = capsys.readouterr().out
    assert "The time that a step computes is measured here." in " ".join(said.split())
    assert "\n topk_0.1 " in said
    assert re.search(r"\n yours +not known +- ", said)
    with pytest.raises(UserError, match="^parameters: "):
        recommend([*given, "parameters=1e6"])
