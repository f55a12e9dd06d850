"""A small convolutional network for 32x32 images, of any width.

Paper: Shallue, Lee, Antognini, Sohl-Dickstein, Frostig, Dahl, "Measuring the effects of data parallelism on
neural network training", 2018, arXiv:1811.03600, appendix B ("Simple CNN"): two 5x5 convolutions with 32 and
64 channels, each with ReLU and 2x2 max-pooling, then a hidden layer of 1024 and the output.

Differs: width, number of convolutions, hidden size and dropout are settings. Initialization is torch's.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Annotated

from torch import nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.model.sizes import Classes, Width

KERNEL = 5
SIDE_PIXELS = 32
MOST_LAYERS = 5  # each halves the side


@checked
class CNN:
    """Settings of a small convolutional network.

    width: channels of the first convolution; each next one has twice as many. layers: convolutions. hidden:
    units of the layer before the output. dropout: probability of a zero before the output layer.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    width: Width = 32
    layers: Annotated[int, within(1, MOST_LAYERS), "2 are the paper's"] = 2
    hidden: Count = 1024
    dropout: Annotated[float, within(0, below=1), "it is the share that is zeroed"] = 0.0
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,32,32] -> f32[n,classes]. `num_classes` is the data
        set's; the field of the same name wins over it."""
        classes = num_classes if self.num_classes is None else self.num_classes
        channels = [3, *(self.width * 2**layer for layer in range(self.layers))]
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for layer, (before, after) in enumerate(itertools.pairwise(channels)):
            parts[f"conv{layer}"] = nn.Conv2d(before, after, KERNEL, padding=KERNEL // 2)
            parts[f"relu{layer}"] = nn.ReLU()
            parts[f"pool{layer}"] = nn.MaxPool2d(2)
        side = SIDE_PIXELS // 2**self.layers
        parts["flatten"] = nn.Flatten()
        parts["hidden"] = nn.Linear(channels[-1] * side**2, self.hidden)
        parts["relu"] = nn.ReLU()
        parts["dropout"] = nn.Dropout(self.dropout)
        parts["output"] = nn.Linear(self.hidden, classes)
        return nn.Sequential(parts)
