"""GraVAC, Table I as data: the models, their sizes, and the targets that training aims at."""

from __future__ import annotations

from dgc_repro.paper.claim import (
    Check,
    Claim,
    PublishedColumn,
    PublishedRow,
    PublishedTable,
    SilentChoice,
    Source,
)
from dgc_repro.paper.gravac import LABELS, LSTM, MODELS, PAPER, RESNET101, VGG16

LAYERS, MEGABYTES = "layers", "mib"
_source = Source(PAPER, "table I")
_layers = {RESNET101: 101, VGG16: 16, LSTM: 2}

TABLE_1 = PublishedTable(
    "GraVAC, Table I: models",
    _source,
    (PublishedColumn(LAYERS, "layers", ""), PublishedColumn(MEGABYTES, "size", "MB")),
    tuple(PublishedRow(model, label, (_layers[model], mb)) for model, label, _, mb in MODELS),
)
DATA = {RESNET101: "CIFAR-10", VGG16: "CIFAR-100", LSTM: "PTB"}
TARGETS = {RESNET101: "80 % top-1", VGG16: "90 % top-5", LSTM: "22.0 perplexity"}
OWN_ROWS = {
    "vgg16_plain": "VGG16 without batch norm",
    "lstm_tied": "LSTM, tied weights",
}
"""Rows of ours: variants that the paper does not print."""
HALF = 0.5
"""Sizes are printed as whole numbers."""


def built(model: str) -> str:
    """The row of a built model, in a claim."""
    return f"{LABELS[model]}, built"


def printed(model: str) -> str:
    """And of the printed one."""
    return f"{LABELS[model]}, printed"


CLAIMS = tuple(
    Claim(
        model,
        f"{LABELS[model]} has {_layers[model]} layers and {mb} MB.",
        _source,
        tuple(
            Check(quantity, built(model), printed(model), above=-HALF, below=HALF)
            for quantity in (LAYERS, MEGABYTES)
        ),
        "MB of 2^20 bytes, 4 bytes a parameter, rounded to whole ones. The heads (1,000 classes, 10,000 "
        "words) were chosen so that the printed sizes come out: no finding.",
        by_construction=True,
    )
    for model, _, _, mb in MODELS
)

SILENT_CHOICES = (
    SilentChoice(
        "the heads of the networks",
        "1,000 classes on CIFAR-10 and CIFAR-100, 10,000 words: what the printed sizes need",
        "model.num_classes",
    ),
    SilentChoice(
        "which VGG16",
        "with batch normalization, as the published code: without it, a learning rate of 0.1 is not "
        "expected to train",
        "model",
    ),
    SilentChoice("whether the LSTM's decoder shares the embedding's matrix", "no", "model.tied"),
    SilentChoice(
        "targets at another scale than the paper's",
        "the final value of our own dense runs of that scale, mean over seeds less one spread",
        "goal.target",
    ),
)
