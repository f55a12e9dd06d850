"""Efficient ML Systems, distributed training part 2 (lecture): what its slides print, as data.

The table on Deep Gradient Compression, which the lecture takes from Lin, Han, Mao, Wang, Dally, "Deep
Gradient Compression", ICLR 2018, arXiv:1712.01887. Only its PTB row lies within the models and data of
this project; the other rows keep their numbers and are not run here. And the lecture's questions that
small studies answer: density of partial sums, waiting for the slowest worker, allreduce costs. Of the
slides there is text and no figure: what is claimed is a sentence, its tolerances are ours.
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

PAPER = "EECE695D: Efficient ML Systems, distributed training part 2 (lecture)"
OURS = Source("this project", "expectation, not the lecture's")

TABLE_DGC = PublishedTable(
    title="Table on DGC",
    source=Source(PAPER, "table on DGC, from Lin et al. 2018"),
    columns=(
        PublishedColumn("baseline", "baseline", ""),
        PublishedColumn("dgc", "DGC", ""),
        PublishedColumn("ratio", "compression ratio", "x"),
    ),
    rows=(
        PublishedRow("resnet50_top1", "ResNet-50, ImageNet: top-1 %", (75.96, 76.15, 277)),
        PublishedRow("resnet50_top5", "ResNet-50, ImageNet: top-5 %", (92.91, 92.97, 277)),
        PublishedRow("gru_first", "5-layer GRU, LibriSpeech: WER %, first", (9.45, 9.06, 608)),
        PublishedRow("gru_second", "5-layer GRU, LibriSpeech: WER %, second", (27.07, 27.04, 608)),
        PublishedRow("lstm_ptb", "2-layer LSTM, PTB: perplexity", (72.30, 72.24, 462)),
    ),
)
"""Each row of the lecture's table has one line a number here."""

RUN_HERE = "lstm_ptb"
METHODS = (
    PublishedRow("dense", "baseline (dense)"),
    PublishedRow("dgc", "DGC"),
)
"""The two rows of runs (``experiment.row``): columns of the printed table."""
PRINTED_COLUMN = {"dense": "baseline", "dgc": "dgc"}

PERPLEXITY_TOLERANCE = 0.02
"""Claim 1 has no tolerance: 2 % of the baseline's perplexity either way. Ours."""
RATIO_FACTOR = 2.0
"""Claim 2: within a factor of two of the printed ratio. Ours: it is not said what is counted."""
DENSITY = 0.001
"""DGC's final density."""
FLOAT_BYTES, INDEX_BYTES = 4, 4

_ratio = TABLE_DGC.printed(RUN_HERE, "ratio")


def _readings() -> str:
    """What a thousandth of the values is, counted in different ways."""
    in_bytes = FLOAT_BYTES / (DENSITY * (FLOAT_BYTES + INDEX_BYTES))
    return (
        f"One value in {1 / DENSITY:.0f} is {1 / DENSITY:.0f}x counted in floats and {in_bytes:.0f}x "
        f"in bytes with an index of {INDEX_BYTES} bytes each; printed {_ratio:.0f}x, which is "
        f"{FLOAT_BYTES / (DENSITY * _ratio):.2f} bytes for each value sent."
    )


CONTRADICTIONS = (Contradiction("It is not said what the compression ratio counts.", _readings()),)

CLAIMS = (
    Claim(
        "1",
        f"DGC trains the 2-layer LSTM to the baseline's perplexity "
        f"({TABLE_DGC.printed(RUN_HERE, 'dgc')} and {TABLE_DGC.printed(RUN_HERE, 'baseline'):.2f}).",
        Source(PAPER, "table on DGC, row PTB"),
        (
            Check(
                "test_perplexity",
                "dense",
                "dgc",
                above=-PERPLEXITY_TOLERANCE,
                below=PERPLEXITY_TOLERANCE,
                relative=True,
            ),
        ),
        "Test perplexity after the last epoch, exp(mean nats a word); within 2 % either way, a "
        "tolerance of ours.",
    ),
    Claim(
        "2",
        f"DGC makes the gradient {_ratio:.0f} times smaller.",
        Source(PAPER, "table on DGC, row PTB"),
        (
            Check(
                "log10_payload_after_warmup",
                "dense",
                "dgc",
                magnitude=math.log10(_ratio),
                tolerance=math.log10(RATIO_FACTOR),
            ),
        ),
        f"log10 of the payload bytes of the last epoch, after warm-up, where {math.log10(_ratio):.2f} "
        f"is {_ratio:.0f}x; within a factor of {RATIO_FACTOR:g}, a tolerance of ours. The table has "
        "the ratio in floats, payload bytes and wire bytes.",
    ),
)

SILENT_CHOICES = (
    SilentChoice(
        "the LSTM's width, and whether the decoder is tied",
        "1500 wide and tied: 51,034,000 parameters, 194.7 MiB",
        "model",
    ),
    SilentChoice("dropout", "0.65, as Zaremba et al. 2014 for this width", "model.dropout"),
    SilentChoice("workers", "4", "launch.workers"),
    SilentChoice("columns of text a worker", "5, so that 4 workers have 20", "train.batch_size"),
    SilentChoice("words between updates", "35", "dataset.bptt"),
    SilentChoice(
        "optimizer",
        "SGD without momentum, lr 20 on the mean over words, gradient clipped to norm 0.25",
        "optimizer",
    ),
    SilentChoice(
        "schedule (Lin et al.: decay when the validation loss stops falling)",
        "half a cosine, for both rows alike",
        "schedule",
    ),
    SilentChoice("epochs", "40", "train.epochs"),
    SilentChoice(
        "DGC's settings", "final density 0.001 of every tensor, vectors too", "compressor"
    ),
    SilentChoice(
        "DGC's wrappers",
        "local clipping and accumulation of what is not sent; SGD has no momentum here, so there is "
        "none to correct or to mask",
        "wrap",
    ),
    SilentChoice("the norm each worker clips to", "0.25 N^-1/2 of its share", "wrapper.clip_local"),
    SilentChoice(
        "DGC's warm-up (Lin et al.: within the first of 40 epochs)",
        "an epoch on each of 25 %, 6.25 %, 1.5625 % and 0.4 %; none of the learning rate",
        "policy",
    ),
)
"""What the lecture's table leaves open, and what we put there. The lecture prints the table alone;
what is said of Lin et al. here is our knowledge of that paper, not among the project's sources."""

# -- waiting for the slowest worker

GAUSSIAN, EXPONENTIAL = "gaussian", "exponential"
LOG, SQRT_LOG, HARMONIC = "log K", "sqrt(log K)", "sum of 1/i"
SIMULATED, THEORY = "simulated", "theory"
FIT_FROM_WORKERS = 4
"""Growth is fitted from so many workers on: the laws hold for large K. Ours."""
SLOPE_TOLERANCE = 0.15
"""Of theory's slope: 1.41 over sqrt(log K), 1 over log K. Ours: K is finite."""
WAITING_TOLERANCE = 0.03
"""Largest relative distance from the sum of 1/i. Ours: the simulation's own noise."""
_waiting = Source(PAPER, "waiting for the slowest worker")

WAITING_CLAIMS = (
    Claim(
        "gaussian",
        "Gaussian delays of unit variance: the time lost grows like sqrt(log K).",
        _waiting,
        (
            Check("fit_residual", f"{GAUSSIAN}, {LOG}", f"{GAUSSIAN}, {SQRT_LOG}"),
            Check(
                "slope",
                f"{GAUSSIAN}, {SIMULATED}",
                f"{GAUSSIAN}, {THEORY}",
                above=-SLOPE_TOLERANCE * math.sqrt(2),
                below=SLOPE_TOLERANCE * math.sqrt(2),
            ),
        ),
        f"The mean largest delay of K >= {FIT_FROM_WORKERS} workers, fitted by a + b sqrt(log K) and by "
        "a + b log K: the first leaves the smaller residual, and b is within 15 % of sqrt(2), the slope "
        "of sqrt(2 log K).",
    ),
    Claim(
        "exponential",
        "Exponential delays of unit variance: it grows like the sum of 1/i, about log K.",
        _waiting,
        (
            Check(
                "waiting_error",
                f"{EXPONENTIAL}, {SIMULATED}",
                f"{EXPONENTIAL}, {HARMONIC}",
                above=-WAITING_TOLERANCE,
                below=WAITING_TOLERANCE,
            ),
            Check("fit_residual", f"{EXPONENTIAL}, {SQRT_LOG}", f"{EXPONENTIAL}, {LOG}"),
            Check(
                "slope",
                f"{EXPONENTIAL}, {SIMULATED}",
                f"{EXPONENTIAL}, {THEORY}",
                above=-SLOPE_TOLERANCE,
                below=SLOPE_TOLERANCE,
            ),
        ),
        "The mean largest delay is within 3 % of 1 + 1/2 + ... + 1/K at every K; a + b log K leaves a "
        "smaller residual than a + b sqrt(log K), and b is within 15 % of 1.",
    ),
)

# -- allreduce of sparse gradients

RANDOM, INDEPENDENT, REAL, FED, HALF = "random", "independent", "real", "error-fed", "half"
DENSE_FACTORS = (10, 100)
"""Factors at which the sum of the largest ring that is simulated has to be dense. Ours."""
FACTORS = (10, 100, 1000)
BITS = (4, 8)
HALF_DENSITY = 0.5
"""Ours: where an entry of 8 bytes (value and place) is as large as two dense values of 4."""
DENSITY_TOLERANCE = 0.02
REAL_DENSE_FACTOR = 10
"""At which the gradients at hand (16 workers) could be dense: 16 d is above a half. Ours."""
BITS_ROUNDING = 1e-5
"""Bits: of the numbers in a record. A sum may reach its bound."""
_density = Source(PAPER, "allreduce of compressed gradients")


def density_row(kind: str, factor: int) -> str:
    """The row of a study that a claim on density names."""
    return f"{kind}, {factor}x"


DENSITY_CLAIMS = (
    *(
        Claim(
            f"dense.{kind}",
            f"The sum of sparse gradients becomes dense: real ones{fed}.",
            _density,
            (Check("density", density_row(kind, REAL_DENSE_FACTOR), HALF, above=0.0),),
            f"Supports of real gradients at {REAL_DENSE_FACTOR}x, the largest number N of workers at hand: "
            "more than half of the values are in the sum, where sending entries with their places costs "
            "more than sending everything. Where N is less than half the factor no sum can be so dense, "
            "whatever the supports: such factors are in the tables and are not judged. This factor was "
            "chosen with the numbers known.",
        )
        for kind, fed in ((REAL, ""), (FED, ", with residuals"))
    ),
    Claim(
        "dense.random",
        "The sum of sparse gradients becomes dense: independent supports.",
        _density,
        tuple(
            Check("density", density_row(RANDOM, factor), HALF, above=0.0)
            for factor in DENSE_FACTORS
        ),
        "The same of random supports and the largest number of workers simulated, at "
        f"{' and '.join(f'{f}x' for f in DENSE_FACTORS)}: 1 - (1 - d)^N says so before anything is drawn.",
        by_construction=True,
    ),
    Claim(
        "theory",
        "The sum of N independent supports of density d has density 1 - (1 - d)^N.",
        OURS,
        (
            Check(
                "density_error",
                RANDOM,
                THEORY,
                above=-DENSITY_TOLERANCE,
                below=DENSITY_TOLERANCE,
            ),
        ),
        "Of all factors and numbers of workers the one farthest from it, within 2 %: a check of what is "
        "simulated, no finding.",
        by_construction=True,
    ),
    *(
        Claim(
            f"{kind}.{factor}",
            f"Supports of real gradients{' with residuals' if kind == FED else ''} overlap: at {factor}x "
            "their sum is sparser than that of independent ones.",
            OURS,
            (
                Check(
                    "density",
                    density_row(f"{INDEPENDENT} of {kind}", factor),
                    density_row(kind, factor),
                    relative=True,
                ),
            ),
            "Density of the sum of all workers' supports, against 1 - (1 - d)^N tensor by tensor.",
        )
        for kind in (REAL, FED)
        for factor in FACTORS
    ),
    *(
        Claim(
            f"codes.{bits}",
            f"The sum of N {bits}-bit codes needs log2 N more bits.",
            _density,
            (
                Check(
                    "extra_bits", f"bound, {bits} bits", f"real, {bits} bits", above=-BITS_ROUNDING
                ),
            ),
            "Read as the bits that rule out an overflow: all workers' largest codes in one place and of "
            "one sign. Of all numbers of workers the one whose largest sum comes nearest: never above "
            "log2 N. How near real gradients come is a note.",
            by_construction=True,
        )
        for bits in BITS
    ),
)

# -- what an allreduce costs

RING, TREE, HALVING_DOUBLING = "ring", "tree", "halving_doubling"
ONE_LEVEL = (
    *("ethernet_100mbit", "ethernet_1gbit", "ethernet_10gbit", "ethernet_25gbit"),
    "ethernet_100gbit",
)
"""Networks of one level that are judged (conf/network)."""
TWO_LEVELS = "gcp_v100_32"
LARGE_BYTES, SMALL_BYTES = 100_000_000, 1000
LARGE_WORKERS, SMALL_WORKERS, ODD_WORKERS = 16, 256, 24
"""A large message on a small cluster, a small one on a large cluster, and no power of two. Ours."""
EQUAL_SHARE = 0.05
"""Costs within so much of each other are equal. Ours."""
STEPS_TOLERANCE = 0.5
"""Of the quotient of messages sent one after another, (N-1) / log2 N: bytes cost something too. Ours."""
TWO_FORMULAS = "Two formulas of network/cost.py side by side: arithmetic, no finding."
_allreduce = Source(PAPER, "ring and recursive halving-doubling")


def cost_quantity(network: str, workers: int, num_bytes: int) -> str:
    """The quantity of a study that a claim on costs names; its rows are the algorithms."""
    return f"seconds@{network}, {workers} workers, {num_bytes / 1e6:g} MB"


def _cost_check(
    algorithms: tuple[str, str],
    place: tuple[str, int, int],
    above: float = 1.0,
    below: float = math.inf,
    magnitude: float | None = None,
    tolerance: float | None = None,
) -> Check:
    return Check(
        *(cost_quantity(*place), *algorithms),
        above=above,
        below=below,
        ratio=True,
        magnitude=magnitude,
        tolerance=tolerance,
    )


_small_steps = (SMALL_WORKERS - 1) / math.log2(SMALL_WORKERS)
_tree_bytes = math.log2(LARGE_WORKERS) * LARGE_WORKERS / (LARGE_WORKERS - 1)

ALLREDUCE_CLAIMS = (
    Claim(
        "bytes",
        "Ring and recursive halving-doubling move the same bytes: large messages cost the same.",
        _allreduce,
        tuple(
            _cost_check(
                (RING, HALVING_DOUBLING),
                (network, LARGE_WORKERS, LARGE_BYTES),
                above=1 - EQUAL_SHARE,
                below=1 + EQUAL_SHARE,
            )
            for network in ONE_LEVEL
        ),
        f"{LARGE_BYTES / 1e6:.0f} MB between {LARGE_WORKERS} workers, on every network of one level "
        f"within 5 %. {TWO_FORMULAS}",
        by_construction=True,
    ),
    Claim(
        "nodes",
        "So do they where the workers of a node share its link.",
        OURS,
        (
            _cost_check(
                (RING, HALVING_DOUBLING),
                (TWO_LEVELS, LARGE_WORKERS, LARGE_BYTES),
                above=1 - EQUAL_SHARE,
                below=1 + EQUAL_SHARE,
            ),
        ),
        "The same on a network of two levels, neighbours first: halving-doubling has halved the message "
        "by the time it leaves the node. The model of shared links (network/cost.py) says so; measured "
        "it is not.",
    ),
    Claim(
        "steps",
        "Halving-doubling sends 2 log2 N messages one after another, a ring 2 (N - 1): it is faster for "
        "small messages.",
        _allreduce,
        tuple(
            _cost_check(
                (RING, HALVING_DOUBLING),
                (network, SMALL_WORKERS, SMALL_BYTES),
                magnitude=_small_steps,
                tolerance=STEPS_TOLERANCE * _small_steps,
            )
            for network in ONE_LEVEL
        ),
        f"{SMALL_BYTES / 1e3:.0f} kB between {SMALL_WORKERS} workers, within half of "
        f"(N - 1) / log2 N = {_small_steps:.1f}. {TWO_FORMULAS}",
        by_construction=True,
    ),
    Claim(
        "tree",
        "A tree moves the whole message log2 N times each way: large messages cost about log2 N times a "
        "ring's.",
        _allreduce,
        tuple(
            _cost_check(
                (TREE, RING),
                (network, LARGE_WORKERS, LARGE_BYTES),
                magnitude=_tree_bytes,
                tolerance=EQUAL_SHARE * _tree_bytes,
            )
            for network in ONE_LEVEL
        ),
        f"{LARGE_BYTES / 1e6:.0f} MB between {LARGE_WORKERS} workers, within 5 % of "
        f"log2 N N / (N - 1) = {_tree_bytes:.2f}. {TWO_FORMULAS}",
        by_construction=True,
    ),
    Claim(
        "odd",
        "Where the number of workers is no power of two, a ring is faster for large messages.",
        OURS,
        tuple(
            _cost_check((HALVING_DOUBLING, RING), (network, ODD_WORKERS, LARGE_BYTES))
            for network in (*ONE_LEVEL, TWO_LEVELS)
        ),
        f"{LARGE_BYTES / 1e6:.0f} MB between {ODD_WORKERS} workers: those above a power of two hand their "
        f"whole vector to a neighbour first. {TWO_FORMULAS}",
        by_construction=True,
    ),
)
