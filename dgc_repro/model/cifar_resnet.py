"""The ResNets of 6 n + 2 layers for 32x32 images, of any width: ResNet-20 (n = 3), ResNet-56 (n = 9).

Paper: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
arXiv:1512.03385, section 4.2: a 3x3 convolution, three stages of n blocks, one linear layer.

Differs: where the shape changes, a shortcut is a 1x1 convolution with batch normalization, as in
MLS-Bench's task; the paper's shortcuts have no parameters (option A). Blocks, parameter names, forward
pass and initialization are torchvision's.

Parameters at width 16 and 10 classes: 272,474 (n = 3), 855,770 (n = 9).
"""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock

from dgc_repro.checked import Count, checked
from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.sizes import Classes, Width


@checked
class CifarResNet:
    """Settings of a ResNet of 6 n + 2 layers.

    blocks: n, of each of the three stages.
    width: channels of the first stage, 16 in the paper; the stages have 1, 2 and 4 times as many.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    blocks: Count = 3
    width: Width = 16
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes].

        `num_classes` is the data set's; the field of the same name wins over it.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        return FreeResNet(BasicBlock, [self.blocks] * 3, "cifar", self.width, classes)
