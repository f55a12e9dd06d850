"""Distributed Model Training With Dynamic Gradient Compression: Table I, figures 1-3, six claims.

Set-up as printed: 2 NVIDIA T4, PyTorch DDP, synchronous allreduce, ResNet, CIFAR-10, 70 epochs.
The figures exist for us as claims only: no series was digitized. Contradictions among the printed
numbers are listed with arithmetic made from those numbers.
"""

from __future__ import annotations

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

PAPER = "Distributed Model Training With Dynamic Gradient Compression (ASU)"
OURS = Source("this project", "expectation, not the paper's")

TABLE_1 = PublishedTable(
    title="Table I",
    source=Source(PAPER, "Table I"),
    columns=(
        PublishedColumn("epochs", "epochs", ""),
        PublishedColumn("train_accuracy", "train accuracy", "%"),
        PublishedColumn("test_accuracy", "test accuracy", "%"),
        PublishedColumn("time", "time", "min"),
        PublishedColumn("data", "data", "TB"),
    ),
    rows=(
        PublishedRow("none", "no compression", (70, 96.09, 92.96, 65.12, 2.31)),
        PublishedRow("static8", "static 8-bit", (70, 82.03, 85.97, 122.13, 1.82)),
        PublishedRow("dynamic", "dynamic 4-16-bit", (70, 94.53, 91.40, 101.64, 2.03)),
    ),
)
"""The paper's Table I. The pairing of rows with ids is ours (``experiment.row``)."""

SECOND_BLOCK = (
    PublishedRow("static8_ef", "static 8-bit + EF, stoch."),
    PublishedRow("dynamic_ef", "dynamic 4-16-bit + EF, stoch."),
)
"""Ours: the same with error feedback (EF) and stochastic rounding. The paper has no such rows."""

FIGURES = {
    "figure1": Source(PAPER, "figure 1: training accuracy by epoch"),
    "figure2": Source(PAPER, "figure 2: test accuracy by epoch"),
    "figure3": Source(PAPER, "figure 3: cross-entropy training loss by epoch"),
}

FLOAT_BITS = 32
STATIC_BITS = 8
DYNAMIC_BITS = (4, 16)
CIFAR_STEM_PARAMETERS = 11_173_962  # ResNet18, 3x3 stem, 10 classes
TORCHVISION_PARAMETERS = 11_689_512  # torchvision's ResNet18, 1000 classes
CONSIDERABLY = 0.2
"""Claim 6 has no number: 'considerably' is read as at least a fifth less. Ours."""
GAP_TOLERANCE_SHARE = 0.5
"""Claim 1: half the printed gap either way. A smaller one is no plateau of the paper's kind."""

_gap = TABLE_1.printed("dynamic", "test_accuracy") - TABLE_1.printed("static8", "test_accuracy")


def _share(row: str, column: str) -> float:
    """A row's printed number as a share of the uncompressed row's."""
    return TABLE_1.printed(row, column) / TABLE_1.printed("none", column)


def _data_arithmetic() -> str:
    """The data column beside what the stated bit widths give of the printed dense 2.31 TB."""
    dense_tb = TABLE_1.printed("none", "data")
    widths = (STATIC_BITS, *DYNAMIC_BITS)
    static_tb, low_tb, high_tb = (dense_tb * bits / FLOAT_BITS for bits in widths)
    static, dynamic = _share("static8", "data"), _share("dynamic", "data")
    low, high = (bits / FLOAT_BITS for bits in DYNAMIC_BITS)
    dense_at_high, dense_at_low = ((dynamic - width) / (1 - width) for width in (high, low))
    return (
        f"Static: {STATIC_BITS} of {FLOAT_BITS} bits of {dense_tb:.2f} TB is {static_tb:.2f} TB; "
        f"printed {TABLE_1.printed('static8', 'data'):.2f} TB is {100 * static:.1f} %, "
        f"{FLOAT_BITS * static:.1f} bits a value. "
        f"Dynamic: {DYNAMIC_BITS[0]} to {DYNAMIC_BITS[1]} bits is {low_tb:.2f} to {high_tb:.2f} "
        f"TB; printed {TABLE_1.printed('dynamic', 'data'):.2f} TB is {100 * dynamic:.1f} %, which "
        f"needs {100 * dense_at_high:.0f} to {100 * dense_at_low:.0f} % of the epochs dense."
    )


def data_readings() -> tuple[tuple[str, float], ...]:
    """Readings of the dense data volume: what is assumed, and the bytes it gives over 70 epochs.

    Dense float32 gradients of one worker. 782 = ceil(50,000 / 64) and 704 = ceil(45,000 / 64)
    steps an epoch, 64 being 32 on each of two workers.
    """
    epochs = int(TABLE_1.printed("none", "epochs"))
    global_batch = 2 * 32

    def volume(parameters: int, images: int) -> float:
        steps = -(-images // global_batch)
        return 4.0 * parameters * steps * epochs

    return (
        ("CIFAR stem, 782 steps an epoch", volume(CIFAR_STEM_PARAMETERS, 50_000)),
        ("torchvision's ResNet18, 782 steps an epoch", volume(TORCHVISION_PARAMETERS, 50_000)),
        ("torchvision's ResNet18, 704 steps an epoch", volume(TORCHVISION_PARAMETERS, 45_000)),
    )


def _readings_arithmetic() -> str:
    """Every reading in TB (10^12) and TiB (2^40) beside the printed number."""
    readings = "; ".join(
        f"{name}: {volume / 1e12:.3f} TB or {volume / 2**40:.3f} TiB"
        for name, volume in data_readings()
    )
    return f"Printed {TABLE_1.printed('none', 'data'):.2f} TB. {readings}."


def _accuracy_arithmetic() -> str:
    """Static's train accuracy minus its test accuracy."""
    train = TABLE_1.printed("static8", "train_accuracy")
    test = TABLE_1.printed("static8", "test_accuracy")
    return f"{train:.2f} - {test:.2f} = {train - test:+.2f} points."


def _time_arithmetic() -> str:
    """Static's time over dynamic's."""
    static, dynamic = TABLE_1.printed("static8", "time"), TABLE_1.printed("dynamic", "time")
    return f"{static:.2f} min / {dynamic:.2f} min = {static / dynamic:.2f}."


DATA_CONTRADICTION = Contradiction(
    "The data column cannot follow from the stated bit widths.", _data_arithmetic()
)

CONTRADICTIONS = (
    DATA_CONTRADICTION,
    Contradiction("Static's train accuracy lies below its test accuracy.", _accuracy_arithmetic()),
    Contradiction(
        "The text calls the training times of static and dynamic similar; the table does not.",
        _time_arithmetic(),
    ),
    Contradiction(
        "Several readings match the dense 2.31 TB; none is claimed here. Batch 64 on one GPU, "
        "counted on both, gives the same number.",
        _readings_arithmetic(),
    ),
)

CLAIMS = (
    Claim(
        "1",
        "Static 8-bit plateaus below dynamic in test accuracy.",
        Source(PAPER, "Table I and figure 2"),
        (
            Check(
                "test_accuracy",
                "dynamic",
                "static8",
                magnitude=_gap,
                tolerance=GAP_TOLERANCE_SHARE * _gap,
            ),
        ),
        "Test accuracy after the last epoch; the gap within half of the printed one.",
    ),
    Claim(
        "2",
        "Dynamic ends within 2 points of no compression.",
        Source(PAPER, "Table I"),
        (Check("test_accuracy", "none", "dynamic", above=-2.0, below=2.0),),
        "Test accuracy after the last epoch, either side.",
    ),
    Claim(
        "3",
        "Data sent: static < dynamic < none.",
        Source(PAPER, "Table I"),
        (
            Check("payload_bytes", "dynamic", "static8", relative=True),
            Check("payload_bytes", "none", "dynamic", relative=True),
        ),
        "Payload bytes of one worker; the order only, see 3b for the amounts.",
    ),
    Claim(
        "3b",
        f"Static saves {100 * (1 - _share('static8', 'data')):.0f} % and dynamic "
        f"{100 * (1 - _share('dynamic', 'data')):.0f} % of the data.",
        Source(PAPER, "Table I, from its data column"),
        (
            Check("payload_bytes", "none", "static8", relative=True),
            Check("payload_bytes", "none", "dynamic", relative=True),
        ),
        "Payload bytes of one worker.",
        cannot_follow=DATA_CONTRADICTION,
    ),
    Claim(
        "4",
        "Training time: none < dynamic < static.",
        Source(PAPER, "Table I"),
        (
            Check("train_minutes", "dynamic", "none", relative=True),
            Check("train_minutes", "static8", "dynamic", relative=True),
        ),
        "Time in training steps, without evaluation; the order only, the hardware differs.",
    ),
    Claim(
        "4b",
        "With fast kernels and a slow network the order reverses: static < dynamic < none.",
        OURS,
        (
            Check("train_minutes", "dynamic", "static8", relative=True),
            Check("train_minutes", "none", "dynamic", relative=True),
        ),
        "The same times, on a network of a stated rate: loopback does not meet the claim's premise.",
        needs_setting="network.rate",
    ),
    Claim(
        "5",
        "Dynamic learns more slowly at first, then catches up.",
        Source(PAPER, "figures 1 and 3"),
        (
            Check("train_loss_first_third", "dynamic", "none"),
            Check("train_loss_catch_up", "dynamic", "none"),
        ),
        "Training loss: dynamic's mean over the first third of the epochs is above none's, and "
        "the ratio of the two losses is nearer to 1 after the last epoch than it was then.",
    ),
    Claim(
        "6",
        "Beyond its plateau, static's weight updates slow down considerably.",
        Source(PAPER, "discussion of figures 1-3"),
        (
            Check("weight_change_last_third", "none", "static8", CONSIDERABLY, relative=True),
            Check("weight_change_last_third", "dynamic", "static8", CONSIDERABLY, relative=True),
        ),
        "Norm of the weight change an epoch, mean over the last third of the epochs (our plateau "
        "rule), at least a fifth less than in the other rows. Our learning rate falls along a cosine, "
        "and with it this norm in every row: only the difference between rows is the method's.",
    ),
)
"""Six claims of the paper (1-6), the amounts of claim 3 (3b) and our own expectation (4b)."""

SILENT_CHOICES = (
    SilentChoice("which ResNet", "ResNet18 with the CIFAR stem, 11.17 M parameters", "model"),
    SilentChoice("batch size", "32 a worker", "train.batch_size"),
    SilentChoice(
        "optimizer and learning rate",
        "SGD, momentum 0.9, weight decay 5e-4, lr 0.1 x global batch / 128",
        "optimizer",
    ),
    SilentChoice(
        "schedule", "cosine; experiment=dynamic/none_constant has a constant rate", "schedule"
    ),
    SilentChoice("augmentation", "pad-crop and flip", "dataset"),
    SilentChoice(
        "what validation accuracy is measured on (probably the test set)",
        "a held-out part of the training set, for every method alike",
        "dataset.validation",
    ),
    SilentChoice(
        "the quantizer",
        "symmetric linear, one scale a tensor, round to nearest, no error feedback: the plain "
        "reading; the second block has error feedback and stochastic rounding",
        "compressor",
    ),
    SilentChoice("error feedback", "none in the first block", "wrap"),
    SilentChoice(
        "thresholds, patience, length of the dense interval",
        "meant to visit every step 4, 6, 8, 12, 16 in 70 epochs; the traces say which were used",
        "policy",
    ),
    SilentChoice(
        "the threshold of the epoch-to-epoch loss difference",
        "none: accuracy alone lowers the compression (policy.loss_differences sets one)",
        "policy.loss_differences",
    ),
)
"""What the paper leaves open. The report prints each beside the value its runs really used."""
