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

from dataclasses import dataclass

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

STEMS = ("cifar", "imagenet")
BLOCKS_PER_STAGE = 2


@dataclass(frozen=True)
class ResNet18:
    """Settings of a ResNet18.

    stem: `cifar` (3x3 of stride 1, no pooling) or `imagenet` (7x7 of stride 2, max-pooling).
    width: channels of the first stage; the four stages have 1, 2, 4 and 8 times as many.
    num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    stem: str = "cifar"
    width: int = 64
    num_classes: int | None = None

    def __post_init__(self) -> None:
        if self.stem not in STEMS:
            raise ValueError(
                f"stem: one of {', '.join(STEMS)}, got {self.stem!r}; "
                "cifar is for 32x32 images, imagenet for 224x224"
            )
        if not _is_count(self.width, least=1):
            raise ValueError(
                f"width: an integer, 1 or more, got {self.width!r}; 64 is the paper's, 8 a slim one"
            )
        if self.num_classes is not None and not _is_count(self.num_classes, least=2):
            raise ValueError(
                f"num_classes: an integer, 2 or more, or null, got {self.num_classes!r}; "
                "null takes the number from the dataset"
            )

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network, f32[n,3,H,W] -> f32[n,classes].

        `num_classes` is the data set's; the field of the same name wins over it. Initialization
        draws from torch's global generator, as torchvision's does.
        """
        classes = num_classes if self.num_classes is None else self.num_classes
        return _ResNet18(self.stem, self.width, classes)


class _ResNet18(ResNet):
    """torchvision's ResNet with the width and the stem free.

    Its constructor fixes 64 channels, so this one takes its place, line for line (and in the same
    order, so that the same seed gives the same weights); stages and forward pass are inherited.
    """

    def __init__(self, stem: str, width: int, num_classes: int) -> None:
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
        self.layer1 = self._make_layer(BasicBlock, width, BLOCKS_PER_STAGE)
        self.layer2 = self._make_layer(BasicBlock, 2 * width, BLOCKS_PER_STAGE, stride=2)
        self.layer3 = self._make_layer(BasicBlock, 4 * width, BLOCKS_PER_STAGE, stride=2)
        self.layer4 = self._make_layer(BasicBlock, 8 * width, BLOCKS_PER_STAGE, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, num_classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
