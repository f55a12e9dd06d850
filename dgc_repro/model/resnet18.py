"""ResNet18 of any width on torchvision's own blocks, with a CIFAR or an ImageNet stem.

Paper: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
arXiv:1512.03385, table 1 (18-layer).

Differs: the paper's own CIFAR networks are another family (6n + 2 layers, section 4.2). The stem
`cifar` is the one that compression papers train on 32x32 images: a 3x3 convolution of stride 1 and
no max-pooling before the four stages. Blocks, parameter names, forward pass and initialization are
torchvision's; at width 64 with the ImageNet stem the network is `torchvision.models.resnet18()`,
the same bits for the same seed.

Parameters at width 64: 11,173,962 (`cifar`, 10 classes), 11,689,512 (`imagenet`, 1,000 classes).
"""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock

from dgc_repro.checked import checked
from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.sizes import Classes, Stem, Width

DEPTHS = (2, 2, 2, 2)  # He et al., table 1


@checked
class ResNet18:
    """Settings of a ResNet18.

    stem: `cifar` (3x3 of stride 1, no pooling) or `imagenet` (7x7 of stride 2, max-pooling).
    width: channels of the first stage; the four stages have 1, 2, 4 and 8 times as many.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    stem: Stem = "cifar"
    width: Width = 64
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes].

        `num_classes` is the data set's; the field of the same name wins over it. Initialization
        draws from torch's global generator, as torchvision's does.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        return FreeResNet(BasicBlock, DEPTHS, self.stem, self.width, classes)
