"""What a step of each setting of the benchmark would ask of a GPU, with the models at full size.

Counted as bench/launches.py does, among as many workers as the benchmark's modelled times have. The published
table is read by `recommend` and by the pages of the benchmark. Whoever adds a setting counts again:
``python -m dgc_repro.predict.settings`` (about 2 minutes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from dgc_repro.bench.counting import fake_workers
from dgc_repro.bench.launches import Config, count_exchange, shapes_of
from dgc_repro.bench.tables import Row, Table
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.launch.settings import after_warmups, component, unallocated
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.predict.minutes import place_of
from dgc_repro.predict.modelled import BATCH, GPUS, SHOWN, USED, compute_seconds, exchange_seconds
from dgc_repro.predict.operations import operations_of

BENCHMARK = "benchmark/methods"
MODELS = {"resnet18": 10, "lstm": 10_000, "transformer": 10_000}  # classes or words
IMAGES, WORDS = (BATCH, 3, 32, 32), (BATCH, 35)  # a worker's batch
COLUMNS = {
    **{name: name for name in ("model", "method", "parameters")},
    "of vectors": "vectors",
    "factors": "factors",
    "Gflop": "gflop",
    "launches": "launches",
    "of them Triton": "triton",
    "verdict": "launches_verdict",
    "host syncs": "syncs",
    "collectives": "collectives",
    "MB touched": "touched_mb",
    **{f"{gpu.upper()} ms (modelled)": f"modelled_{gpu}_ms" for gpu in SHOWN},
}


def main() -> None:
    """Count the settings, and write the table."""
    about = (
        "Counted on fake CUDA tensors, not measured, for each setting of `make benchmark`, with the models "
        f"at full size and {speed.WORKERS} workers. Other work on the machine changes nothing. An operation "
        "of torch is one launch (on a list of tensors, as what torch starts); views, allocations, "
        "collectives and small tables that are uploaded are none. MB touched: what operations and kernels "
        "read and write. DGC and 1-bit Adam are counted after their warm-ups; settings under a policy that "
        "adapts are not counted. Rows without numbers read the host. Forward and backward: floating-point "
        f"operations of a batch ({IMAGES[0]} images of 32 x 32, {WORDS[0]} x {WORDS[1]} words) at {USED:.0%} "
        "of the GPU's float32 rate (T4 8.1, V100 15.7 Tflop/s; the share is an assumption). All times are "
        "lower bounds: bytes / bandwidth (T4 300, V100 900 GB/s) + 5 microseconds a launch + 30 a host sync, "
        "without communication and Python. Factors: values of PowerSGD's factors of rank 1."
    )
    place, machine = place_of(__doc__)
    table = Table("settings", "Settings of the benchmark", about, COLUMNS, rows, 90)
    print(table.write(machine, place))


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
                    counts = count_exchange(after_warmups(config), shapes)
                    if "launches" in counts:
                        times = {g: exchange_seconds(counts, 1.0, GPUS[g]) for g in SHOWN}
                        counts = {**counts, **in_ms(times)}
                    made.append({"model": model, "method": experiment["method"], **counts})
    return made


def count_compute(config: Config, classes: int) -> Row:
    """Floating-point operations of forward and backward, and their modelled time."""
    settings = component(config["model"], "model")
    words = getattr(settings, "reads", "") == "words"
    module = unallocated(config, classes)
    counted = operations_of(module, WORDS if words else IMAGES, words=words)
    gflop = counted.floating_point / 1e9
    return {"gflop": gflop, **in_ms({g: compute_seconds(gflop, BATCH, GPUS[g]) for g in SHOWN})}


def in_ms(seconds: Mapping[str, float]) -> dict[str, float]:
    """The columns of modelled times."""
    return {f"modelled_{gpu}_ms": 1e3 * value for gpu, value in seconds.items()}


if __name__ == "__main__":
    main()
