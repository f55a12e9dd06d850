"""What a step of each setting of the benchmark would ask of a GPU, with the models at full size.

Counted as bench/launches.py does, among as many workers as the benchmark's modelled times have. `recommend`
(predict) reads the table from results/bench.
"""

from __future__ import annotations

from dataclasses import asdict

from dgc_repro.bench.counting import fake_workers
from dgc_repro.bench.launches import COLUMNS, Config, count_exchange, shapes_of
from dgc_repro.bench.modelled import BATCH, GPUS, SHOWN, USED, compute_seconds
from dgc_repro.bench.operations import operations_of
from dgc_repro.bench.tables import Row, Table
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.launch.settings import component, settled, unallocated
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.workloads import workloads

BENCHMARK = "benchmark/methods"
MODELS = {"resnet18": 10, "lstm": 10_000, "transformer": 10_000}  # classes or words
IMAGES, WORDS = (BATCH, 3, 32, 32), (BATCH, 35)  # a worker's batch
LEFT_OUT = ("wrap", "at most", "at most ", "verdict ", "by the ledger")


def table(quick: bool) -> Table:
    """Of `make bench`."""
    about = (
        "Counted on fake CUDA tensors, not measured, as in launches.md, for each setting of `make "
        f"benchmark`, with the models at full size and {speed.WORKERS} workers. Other work on the machine "
        "changes nothing. DGC and 1-bit Adam are counted after their warm-ups; settings under a policy that "
        "adapts are not counted. Rows without numbers read the host. Forward and backward: "
        f"floating-point operations of a batch ({IMAGES[0]} images of 32 x 32, {WORDS[0]} x {WORDS[1]} "
        f"words) at {USED:.0%} of the GPU's float32 rate (T4 8.1, V100 15.7 Tflop/s; the share is an "
        "assumption). All times are lower bounds, as in launches.md. Factors: values of PowerSGD's "
        "factors of rank 1."
    )
    of_model = {"parameters": "parameters", "of vectors": "vectors", "factors": "factors"}
    columns = {"model": "model", "method": "method", **of_model, "Gflop": "gflop", **COLUMNS}
    columns = {heading: key for heading, key in columns.items() if heading not in LEFT_OUT}
    return Table("settings", "Settings of the benchmark", about, columns, rows, 90)


def rows() -> list[Row]:
    """A row for each model and setting, before them the model's own."""
    jobs = runs_of(BENCHMARK, ["scale=small", "seed=2"])  # rates are tuned on seeds 0 and 1
    made: list[Row] = []
    with fake_workers(speed.WORKERS):
        for model, classes in MODELS.items():
            base = composed([f"model={model}", "scale=none", "train.epochs=1"])
            shapes = shapes_of(base, classes)
            sizes = {name: int(n) for name, n in asdict(speed.Sizes.of(shapes.values())).items()}
            made.append(
                {"model": model, "method": speed.COMPUTE, **sizes, **count_compute(base, classes)}
            )
            for config, _ in jobs:
                experiment = config["experiment"]
                is_planned = speed.policy_of(config) in speed.PLANNED
                if workloads()[experiment["workload"]].full_size == model and is_planned:
                    counts = count_exchange(settled(config), shapes, judged=False)
                    made.append({"model": model, "method": experiment["method"], **counts})
    return made


def count_compute(config: Config, classes: int) -> Row:
    """Floating-point operations of forward and backward, and their modelled time."""
    settings = component(config["model"], "model")
    words = getattr(settings, "reads", "") == "words"
    module = unallocated(config, classes)
    counted = operations_of(module, WORDS if words else IMAGES, words=words)
    gflop = counted.floating_point / 1e9
    times = {g: 1e3 * compute_seconds(gflop, BATCH, GPUS[g]) for g in SHOWN}
    return {"gflop": gflop, **{f"modelled_{gpu}_ms": ms for gpu, ms in times.items()}}
