"""GraVAC: Table III, compressing twice, direct against multi-level, and what is claimed of it; figures 1a
and 3 as claims.

Set-up as printed: NVIDIA V100, PyTorch 1.10.1; every tensor of the model is compressed by itself;
first to 10x, then to 1000x. Direct compresses the gradient to both factors; multi-level compresses
to 10x and compresses what is left to 1000x. Arithmetic is made from the printed numbers.
"""

from __future__ import annotations

import math

from dgc_repro.paper.claim import (
    Check,
    Claim,
    Contradiction,
    PublishedColumn,
    PublishedRow,
    PublishedTable,
    SilentChoice,
    Source,
)

PAPER = (
    "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training "
    "(Indiana University, IEEE CLOUD 2023)"
)
OURS = Source("this project", "expectation, not the paper's")
WEAK_FACTOR, STRONG_FACTOR = 10, 1000

DIRECT, MULTILEVEL, SPEEDUP = "direct", "multilevel", "speedup"
SINGLE_PASS = "single_pass"
"""Ours: the thresholds of both factors from one sample, one scan of the tensor."""

METHODS = (
    ("topk", "Top-k"),
    ("dgc", "DGC"),
    ("redsync", "Redsync"),
    ("randomk", "Random-k"),
)
"""Columns of Table III: id and printed name."""

MODELS = (
    ("resnet101", "ResNet101", 44_549_160, 170),
    ("vgg16", "VGG16", 138_365_992, 528),
    ("lstm", "LSTM", 66_034_000, 252),
)
"""Rows of Table III: id, printed name, parameters (ours, see SILENT_CHOICES), printed MB (2^20)."""


def _columns() -> tuple[PublishedColumn, ...]:
    parts = ((DIRECT, "direct", "ms"), (MULTILEVEL, "multi-level", "ms"), (SPEEDUP, "speedup", "x"))
    return tuple(
        PublishedColumn(f"{method}.{part}", f"{label}, {name}", unit)
        for method, label in METHODS
        for part, name, unit in parts
    )


TABLE_3 = PublishedTable(
    title="Table III",
    source=Source(PAPER, "Table III"),
    columns=_columns(),
    rows=(
        PublishedRow(
            "resnet101", "ResNet101", (606, 332, 1.83, 90, 59, 1.52, 33, 29.8, 1.1, 23, 14, 1.64)
        ),
        PublishedRow(
            "vgg16",
            "VGG16",
            (181, 121, 1.49, 122, 95.5, 1.27, 101.4, 87.7, 1.16, 41.6, 31, 1.34),
        ),
        PublishedRow(
            "lstm", "LSTM", (200, 126, 1.59, 88, 63, 1.4, 69.4, 46.4, 1.5, 56.4, 37.4, 1.5)
        ),
    ),
)
"""The paper's Table III: milliseconds of compressing twice, and their quotient."""

GAIN_TOLERANCE_SHARE = 0.5
"""Half of the printed gain (speedup - 1) either way. A smaller one is no gain of the paper's kind.
Ours."""

LABELS = {**dict(METHODS), **{model: label for model, label, _, _ in MODELS}}


def printed(model: str, method: str, part: str) -> float:
    """A number of Table III: ``part`` is direct or multilevel (ms) or speedup."""
    return TABLE_3.printed(model, f"{method}.{part}")


def claim_id(model: str, method: str, what: str) -> str:
    """The id of a cell's claim: ``faster``, ``magnitude`` or ``single_pass``."""
    return f"{model}.{method}.{what}"


FASTER, MAGNITUDE, EQUAL = "faster", "magnitude", "equal"


def _cell_claims(model: str, method: str) -> tuple[Claim, Claim]:
    """What is claimed of one cell: that multi-level is faster, and by how much."""
    speedup = printed(model, method, SPEEDUP)
    name = f"{LABELS[model]}, {LABELS[method]}"
    milliseconds = (
        f"{printed(model, method, DIRECT):g} ms direct, "
        f"{printed(model, method, MULTILEVEL):g} ms multi-level on a V100"
    )
    return (
        Claim(
            claim_id(model, method, FASTER),
            f"{name}: multi-level compression is faster than direct.",
            Source(PAPER, "Table III"),
            (Check("compress_ms", DIRECT, MULTILEVEL, above=1.0, ratio=True),),
            "Time of compressing to both factors directly over that of multi-level, paired by "
            "repeat, layerwise; the direction only.",
        ),
        Claim(
            claim_id(model, method, MAGNITUDE),
            f"{name}: by {speedup:g}x ({milliseconds}).",
            Source(PAPER, "Table III"),
            (
                Check(
                    "compress_ms",
                    DIRECT,
                    MULTILEVEL,
                    above=1.0,
                    ratio=True,
                    magnitude=speedup,
                    tolerance=GAIN_TOLERANCE_SHARE * (speedup - 1),
                ),
            ),
            "The same quotient, within half of the printed gain. Milliseconds are never compared: "
            "the hardware differs, and our kernels are not the paper's.",
        ),
    )


CLAIMS = tuple(
    claim
    for model, _, _, _ in MODELS
    for method, _ in METHODS
    for claim in _cell_claims(model, method)
)
"""Two claims a cell of Table III, in its order."""

EQUALITY_CLAIMS = tuple(
    Claim(
        claim_id(model, "topk", EQUAL),
        f"{LABELS[model]}, Top-k: multi-level chooses exactly what direct compression chooses.",
        Source(PAPER, "multi-level compression"),
        (Check("entries_apart", MULTILEVEL, DIRECT, above=-0.5, below=0.5),),
        "Entries at 1000x that only one of the two has, layerwise and in one vector; none may be.",
    )
    for model, _, _, _ in MODELS
)
"""C(theta_2 / theta_1, C(theta_1, X)) = C(theta_2, X)."""

SINGLE_PASS_CLAIMS = tuple(
    Claim(
        claim_id(model, "topk", SINGLE_PASS),
        f"{LABELS[model]}, Top-k: one scan for both factors is faster than multi-level.",
        OURS,
        (Check("compress_ms", MULTILEVEL, SINGLE_PASS, above=1.0, ratio=True),),
        "Time of multi-level over that of the single pass, paired by repeat, layerwise.",
    )
    for model, _, _, _ in MODELS
)


def ceiling() -> float:
    """The speedup of a method whose time is in proportion to the values it looks at, whatever the
    factor: direct looks at n values twice, multi-level at n and n / 10."""
    return 2 / (1 + 1 / WEAK_FACTOR)


def _ceiling_arithmetic() -> str:
    speedups = [printed(m, c, SPEEDUP) for m, _, _, _ in MODELS for c, _ in METHODS]
    return (
        f"Time in proportion to the values looked at, whatever the factor, gives "
        f"2 / (1 + 1/{WEAK_FACTOR}) = {ceiling():.2f}; printed {min(speedups):g} to "
        f"{max(speedups):g}. A method whose second compression is cheaper than its first gains less."
    )


def _size_arithmetic() -> str:
    parts = [
        f"{LABELS[m]} {printed(m, 'topk', DIRECT):g} ms for {n / 1e6:.1f} M values, "
        f"{1e6 * printed(m, 'topk', DIRECT) / n:.1f} ns each"
        for m, _, n, _ in MODELS
    ]
    return "; ".join(parts) + "."


NOTES = (
    Contradiction("What multi-level compression can gain at most.", _ceiling_arithmetic()),
    Contradiction(
        "Top-k takes longest on the smallest model: its time does not follow from the size.",
        _size_arithmetic(),
    ),
)
"""Readings of the printed numbers; neither is a contradiction in the strict sense."""

SILENT_CHOICES = (
    SilentChoice(
        "what is timed",
        "choosing the entries: values and places of both factors, without error feedback, "
        "sending or decompressing",
        "measure",
    ),
    SilentChoice(
        "which gradient",
        "the one of the last of a few dense training steps from scratch, one worker",
        "measure.steps",
    ),
    SilentChoice(
        "which VGG16",
        "vgg16_bn (138,365,992 parameters), as the published code; all models with the heads that "
        "the printed sizes need (1,000 classes, 10,000 words)",
        "model",
    ),
    SilentChoice("the data of VGG16 (CIFAR-100 elsewhere in the paper)", "CIFAR-10", "dataset"),
    SilentChoice(
        "DGC: with momentum correction and clipping or without (its published code)",
        "the sampled threshold alone: the others do not compress",
        "measure.methods",
    ),
    SilentChoice(
        "how often was measured, and which number is printed", "medians", "measure.repeats"
    ),
)
"""What the paper leaves open. The report prints each beside the value its runs really used."""

# -- figure 1a: throughput against cluster size. Printed series: none is among our sources.

RESNET101, VGG16, LSTM = (model for model, _, _, _ in MODELS)
MOST_WORKERS = 32
PER_STEP, PER_TENSOR = "per step", "per tensor"
"""How tensors are joined into collectives: the figures are judged by the first."""
COMPUTE = "compute"
"""What the verdicts of both figures rest on and nobody has measured: see FIGURE_CHOICES."""
_fig1a = Source(PAPER, "figure 1a")


def scaling_row(model: str, series: str = PER_STEP) -> str:
    """The row of a study that a claim on scaling names."""
    return f"{LABELS[model]}, {series}"


FIG1A_CLAIMS = (
    Claim(
        "lstm",
        f"The LSTM ({MODELS[2][3]} MB) scales better than ResNet101 ({MODELS[0][3]} MB), although larger.",
        _fig1a,
        (Check("efficiency", scaling_row(LSTM), scaling_row(RESNET101)),),
        f"Throughput of {MOST_WORKERS} workers over {MOST_WORKERS} times that of one. A step sends all "
        "tensors in one allreduce, after compute. Indicative at most: the compute times are assumed, and at "
        "another one of ResNet101 the order flips; the verdict says at which.",
        assumed=COMPUTE,
    ),
    Claim(
        "latency",
        "The latency of each tensor's message is the reason: with all tensors in one allreduce ResNet101 "
        "scales better.",
        OURS,
        (Check("efficiency", scaling_row(RESNET101), scaling_row(LSTM)),),
        "The same throughputs, the other way round: one allreduce a step pays next to no latency. As "
        "indicative.",
        assumed=COMPUTE,
    ),
)

FIGURE_CHOICES = (
    SilentChoice(
        "the network (10-32 Gbps by VM type)",
        "8 VMs of 4 GPUs that share 10 Gbit/s; latencies of 50 us between VMs and 5 us inside one are "
        "assumed",
        "study.<part>.networks",
    ),
    SilentChoice(
        "compute times on its V100",
        "assumed: ResNet101 16 ms, VGG16 13 ms, LSTM 27 ms a step; counted operations at half of 15.7 "
        "Tflop/s and 10 us for each operation that is started",
        "study.<part>.compute_ms",
    ),
    SilentChoice(
        "whether tensors are joined before they are sent",
        "one collective a step for all tensors, as in the runs of Table II; in figure 1a also DDP's buckets "
        "and one allreduce per tensor, which are not judged",
        "study.<part>",
    ),
    SilentChoice("overlap with backward", "none", "study.<part>"),
)

# -- figure 3: throughput by compression factor

SATURATION = {RESNET101: 500, VGG16: 500, LSTM: 1000}
"""The factors at which the paper sees each model's throughput saturate."""
SATURATED = 0.95
"""Saturated: this share of the throughput at the largest factor. Ours."""
GRID_STEP = 2.5
"""A step of the factors 1, 2, 5, 10, ...: tolerance of the factor of saturation. Ours."""
ONE = "1x"
_fig3 = Source(PAPER, "figure 3")


def stated_compress_ms(model: str) -> float:
    """Half of Table III's direct DGC, which compresses to 10x and to 1000x: a compression on a V100."""
    return printed(model, "dgc", DIRECT) / 2


FIG3_CLAIMS = (
    *(
        Claim(
            f"{model}.saturates",
            f"{LABELS[model]}: throughput saturates at {factor}x.",
            _fig3,
            (
                Check(
                    "saturation",
                    LABELS[model],
                    ONE,
                    magnitude=math.log2(factor),
                    tolerance=math.log2(GRID_STEP),
                ),
            ),
            f"The smallest factor with {100 * SATURATED:.0f} % of the throughput at the largest one, as "
            "log2; within a step of the factors 1, 2, 5, 10, .... A step sends all tensors in one allgather. "
            "Compressing takes half of Table III's direct DGC, at every factor. Indicative at most: compute "
            "times are assumed.",
            assumed=COMPUTE,
        )
        for model, factor in SATURATION.items()
    ),
    *(
        Claim(
            f"lstm.after.{model}",
            f"The LSTM saturates later than {LABELS[model]}.",
            _fig3,
            (Check("saturation", LABELS[LSTM], LABELS[model]),),
            "The same factors of saturation.",
            assumed=COMPUTE,
        )
        for model in (RESNET101, VGG16)
    ),
)

FIG3_CHOICES = (
    *FIGURE_CHOICES,
    SilentChoice(
        "what compressing takes at each factor",
        "judged: half of Table III's direct DGC (45, 61, 44 ms); beside it nothing, and measured on this "
        "machine's CPU",
        "study.saturation.stated_ms",
    ),
    SilentChoice(
        "what is sent", "values and 32-bit places, gathered; decompressing takes nothing", "study"
    ),
)
