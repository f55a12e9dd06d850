"""torchvision's ResNets with the width and the stem free: what resnet18, resnet101 and cifar_resnet share.

Blocks, parameter names, forward pass and initialization are torchvision's; at width 64 with the
ImageNet stem the networks are torchvision's own, the same bits for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet


class FreeResNet(ResNet):
    """torchvision's ResNet with the width and the stem free.

    stem: `cifar` (3x3 of stride 1, no pooling) or `imagenet` (7x7 of stride 2, max-pooling).
    width: channels of the first stage's blocks; the stages have 1, 2, 4 and 8 times as many.
    depths: blocks of the stages, four or fewer.

    torchvision's constructor fixes 64 channels, so this one takes its place, line for line (and in
    the same order, so that the same seed gives the same weights); stages and forward pass are
    inherited.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        stem: str,
        width: int,
        num_classes: int,
    ) -> None:
        nn.Module.__init__(self)
        # What ResNet._make_layer reads.
        self._norm_layer = nn.BatchNorm2d
        self.inplanes = width
        self.dilation = 1
        self.groups = 1
        self.base_width = 64  # BasicBlock accepts no other; its channels come from `planes`

        if stem == "cifar":
            self.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=1, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = (
            nn.Identity() if stem == "cifar" else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        )
        self.layer1 = self._make_layer(block, width, depths[0])
        for stage in (1, 2, 3):  # layer2 to layer4
            made = (
                self._make_layer(block, width << stage, depths[stage], stride=2)
                if stage < len(depths)
                else nn.Identity()
            )
            setattr(self, f"layer{stage + 1}", made)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.inplanes, num_classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)
