"""VGG11 with batch normalization for 32x32 images, of any width.

Paper: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition",
ICLR 2015, arXiv:1409.1556, table 1 (configuration A).

Differs: the classifier is that of MLS-Bench's task: the convolutions are averaged to one pixel, and its
hidden layers have 512 units in place of 4,096. Each convolution is followed by batch normalization.
Initialization is PyTorch's.

Parameters at width 64 and 100 classes: 9,802,596.
"""

from __future__ import annotations

from torch import nn
from torchvision.models.vgg import cfgs, make_layers

from dgc_repro.checked import checked
from dgc_repro.model.sizes import Classes, Width

PAPER_WIDTH = 64


@checked
class VGG11:
    """Settings of a VGG11.

    width: channels of the first convolution, 64 in the paper; all others, and the hidden layers of the
    classifier, scale with it.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    width: Width = PAPER_WIDTH
    num_classes: Classes | None = None

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes]; H, W from 32 up.

        `num_classes` is the data set's; the field of the same name wins over it.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        plan = [v if isinstance(v, str) else v * self.width // PAPER_WIDTH for v in cfgs["A"]]
        units = 8 * self.width
        hidden = [nn.Linear(units, units), nn.ReLU(True), nn.Dropout()]
        more = [nn.Linear(units, units), nn.ReLU(True), nn.Dropout()]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        features = make_layers(plan, batch_norm=True)
        return nn.Sequential(features, *pooled, *hidden, *more, nn.Linear(units, classes))
