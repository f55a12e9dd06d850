"""ResNet101 of any width and depth on torchvision's own blocks, with an ImageNet or a CIFAR stem.

Paper: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
arXiv:1512.03385, table 1 (101-layer).

Differs: stride 2 lies on the 3x3 convolution of a block, as in torchvision's (the paper: on the
first 1x1). GraVAC (IEEE CLOUD 2023) trains torchvision's unmodified network on 32x32 images, which
its 170 MB say: stem `imagenet` and `num_classes=1000`. Blocks, parameter names, forward pass and
initialization are torchvision's; at width 64 with the ImageNet stem the network is
`torchvision.models.resnet101()`, the same bits for the same seed.

Parameters at width 64: 44,549,160 (`imagenet`, 1,000 classes, 169.9 MiB), 42,512,970 (`cifar`,
10 classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import nn
from torchvision.models.resnet import Bottleneck

from dgc_repro.checked import Rule, checked, within
from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.sizes import Classes, Stem, Width

DEPTHS = (3, 4, 23, 3)  # He et al., table 1
MOST_BLOCKS = 1000  # of a stage: each is built one after the other
FOUR = Rule(
    f"four whole numbers from 1 to {MOST_BLOCKS}, one a stage", lambda blocks: len(blocks) == 4
)
Blocks = Annotated[
    Sequence[Annotated[int, within(1, MOST_BLOCKS)]], FOUR, f"{list(DEPTHS)} is ResNet101"
]


@checked
class ResNet101:
    """Settings of a ResNet101.

    stem: `imagenet` (7x7 of stride 2, max-pooling) or `cifar` (3x3 of stride 1, no pooling).
    width: channels inside the first stage's blocks; the four stages have 1, 2, 4 and 8 times as
    many, and a block puts out 4 times its own.
    blocks: of the four stages; others than [3, 4, 23, 3] make a network of another depth, such as
    [1, 1, 3, 1] for short runs.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    stem: Stem = "imagenet"
    width: Width = 64
    blocks: Blocks = DEPTHS
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes].

        `num_classes` is the data set's; the field of the same name wins over it. Initialization
        draws from torch's global generator, as torchvision's does.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        return FreeResNet(Bottleneck, self.blocks, self.stem, self.width, classes)
