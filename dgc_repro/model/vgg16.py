"""VGG16 of any width, with batch normalization or without, as torchvision builds it.

Paper: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition",
ICLR 2015, arXiv:1409.1556, table 1 (configuration D).

Differs: batch normalization after each convolution is torchvision's `vgg16_bn` (the paper came
before it). GraVAC (IEEE CLOUD 2023) says VGG16 and its published code builds `vgg16_bn`; without
normalization its learning rate of 0.1 is not expected to train. A 32x32 image leaves the
convolutions as one pixel, which the pooling before the classifier repeats 7 x 7 times. Layers,
parameter names, forward pass and initialization are torchvision's (of slim networks the linear layers
start with a wider spread: torchvision's is meant for 4,096 inputs); at width 64 the network is
`torchvision.models.vgg16_bn()` or `vgg16()`, the same bits for the same seed.

Parameters at width 64 and 1,000 classes: 138,365,992 with batch normalization (527.8 MiB),
138,357,544 without.
"""

from __future__ import annotations

import math

from torch import nn
from torchvision.models.vgg import VGG, cfgs, make_layers

from dgc_repro.checked import checked
from dgc_repro.model.sizes import Classes, Width

PAPER_WIDTH = 64
POOLED_PIXELS = 7 * 7
HIDDEN_PER_WIDTH = 64  # the classifier's two hidden layers: 4,096 at width 64
DROPOUT = 0.5
LINEAR_SPREAD = 0.01  # at width 64; slimmer ones in proportion, or their signal would die out


@checked
class VGG16:
    """Settings of a VGG16.

    batch_norm: whether each convolution is followed by batch normalization.
    width: channels of the first convolutions, 64 in the paper; all others, and the two hidden
    layers of the classifier, scale with it.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    batch_norm: bool = True
    width: Width = PAPER_WIDTH
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes]; H, W from 32 up.

        `num_classes` is the data set's; the field of the same name wins over it. Initialization
        draws from torch's global generator, as torchvision's does.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        return _VGG16(self.batch_norm, self.width, classes)


class _VGG16(VGG):
    """torchvision's VGG with the width free.

    Its constructor fixes the classifier, so this one takes its place, line for line (and in the
    same order, so that the same seed gives the same weights); the forward pass is inherited.
    """

    def __init__(self, batch_norm: bool, width: int, num_classes: int) -> None:
        nn.Module.__init__(self)
        plan = [v if isinstance(v, str) else v * width // PAPER_WIDTH for v in cfgs["D"]]
        hidden = HIDDEN_PER_WIDTH * width
        self.features = make_layers(plan, batch_norm=batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(8 * width * POOLED_PIXELS, hidden),
            nn.ReLU(True),
            nn.Dropout(p=DROPOUT),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(p=DROPOUT),
            nn.Linear(hidden, num_classes),
        )
        spread = LINEAR_SPREAD * math.sqrt(PAPER_WIDTH / width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, spread)
                nn.init.constant_(module.bias, 0)
