"""Small, fast networks for 32x32 images that begin with a frozen whitening convolution: `low` and `air`.

Sources of the ideas: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024 (arXiv:2404.00498), and
its code airbench; hlb-CIFAR10 (tysam-code), 2023; Page, "How to train your ResNet", 2019. The ideas are a
first convolution that whitens the patches of the training images, convolutions that begin as partial
identities, batch norm whose weight stays 1, and a scaled output layer. The networks here are smaller than
those of the sources, and none of the sources' accuracies is claimed.

`low`: whitened 4x4 patches of stride 2 with a padding of 1, hence maps of 16x16; three stages, the last two
with a skip:

    conv, pool        conv, x + conv(x), pool        conv, x + conv(x)        maximum over the map

`air`: whitened 2x2 patches; three stages of conv, pool, conv.

Each convolution is 3x3 and followed by batch norm and the nonlinearity. Legend: n = images, c = channels.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.model.sizes import Classes

WHITENING_EPSILON = 5e-4  # airbench's, for images of unit variance
OUTPUT_SCALE = 1 / 9
IMAGES_AT_ONCE = 250  # whose patches of 4x4 are 81 MB
NormMomentum = Annotated[float, within(above=0, most=1)]


class Whitening(nn.Conv2d):
    """A frozen convolution whose filters are the eigenvectors of the images' patches, each divided by the
    standard deviation along it, with both signs; only its bias learns. Channels beyond the eigenvectors are
    refused."""

    def __init__(self, channels: int, side_pixels: int, stride: int) -> None:
        super().__init__(3, channels, side_pixels, stride, padding=stride // 2)
        self.weight.requires_grad_(False)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Compute the filters. images: f32[n,3,H,W], normalized. The same images give the same filters on
        one machine; DDP broadcasts rank 0's."""
        side = self.kernel_size[0]
        products = torch.zeros((3 * side * side,) * 2, dtype=torch.float64)
        count = 0
        for part in images.split(IMAGES_AT_ONCE):
            patches = part.double().unfold(2, side, 1).unfold(3, side, 1)  # f64[m,3,h,w,side,side]
            patches = patches.movedim(1, 3).reshape(-1, 3 * side * side)
            products += patches.T @ patches
            count += len(patches)
        variances, vectors = torch.linalg.eigh(products / count)  # ascending
        half = self.out_channels // 2
        vectors = vectors.T.flip(0)[:half]
        signs = vectors.gather(
            1, vectors.abs().argmax(1, keepdim=True)
        ).sign()  # eigh leaves it open
        scales = (variances.flip(0)[:half, None] + WHITENING_EPSILON).rsqrt()
        filters = (signs * vectors * scales).view(half, 3, side, side)
        self.weight.copy_(torch.cat((filters, -filters)))


class _Conv(nn.Module):
    """A 3x3 convolution that begins as a partial identity, pooling, batch norm, the nonlinearity."""

    def __init__(
        self, before: int, after: int, nonlinearity: nn.Module, momentum: float, *, pools: bool
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        nn.init.dirac_(self.conv.weight[:before])
        self.pooling = nn.MaxPool2d(2) if pools else nn.Identity()
        self.norm = nn.BatchNorm2d(after, momentum=momentum)
        self.norm.weight.requires_grad_(False)
        self.nonlinearity = nonlinearity

    def forward(self, hidden: Tensor) -> Tensor:
        after: Tensor = self.nonlinearity(self.norm(self.pooling(self.conv(hidden))))
        return after


class _Skip(_Conv):
    """x + _Conv(x), of as many channels."""

    def __init__(self, channels: int, nonlinearity: nn.Module, momentum: float) -> None:
        super().__init__(channels, channels, nonlinearity, momentum, pools=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + super().forward(hidden)


class _Whitened(nn.Module):
    """Whitening, stages, maximum over the map, output layer. f32[n,3,32,32] -> f32[n,classes]."""

    prepared_from = 5000

    def __init__(
        self,
        whitening: Whitening,
        nonlinearity: nn.Module,
        stages: nn.Sequential,
        channels: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.whitening = whitening
        self.nonlinearity = nonlinearity
        self.stages = stages
        self.output = nn.Linear(channels, classes, bias=False)

    def prepare(self, images: Tensor) -> None:
        """Fit the whitening."""
        self.whitening.fit(images)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stages(self.nonlinearity(self.whitening(images)))
        logits: Tensor = self.output(hidden.amax((2, 3))) * OUTPUT_SCALE
        return logits


@checked
class _Settings:
    """What `low` and `air` have in common.

    width, width2, width3: channels of the whitening and the first stage, of the second, of the third.
    norm_momentum: the weight of a worker's batch in batch norm's running statistics, torch's convention
    (airbench's 0.6 is the weight of the past). num_classes: outputs; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    side: ClassVar[int]
    """Pixels on a side of a whitened patch."""
    width: Count
    width2: Count
    width3: Count
    norm_momentum: NormMomentum = 0.4
    num_classes: Classes | None = None

    def __post_init__(self) -> None:
        most = 2 * 3 * self.side**2
        if self.width % 2 or self.width > most:
            raise ValueError(
                f"width: an even number up to {most} (both signs of each eigenvector of a patch), "
                f"got {self.width}"
            )

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network; its `prepare` fits the whitening. `num_classes` is the data
        set's; the field of the same name wins over it."""
        classes = num_classes if self.num_classes is None else self.num_classes
        nonlinearity, stages = self._stages()
        whitening = Whitening(self.width, self.side, self.side // 2)
        return _Whitened(whitening, nonlinearity, stages, self.width3, classes)

    def _stages(self) -> tuple[nn.Module, nn.Sequential]:
        """The nonlinearity, and the three stages that use it."""
        raise NotImplementedError


@checked
class Low(_Settings):
    """Settings of `low`, as `_Settings` describes them."""

    side: ClassVar[int] = 4
    width: Count = 48
    width2: Count = 96
    width3: Count = 192

    def _stages(self) -> tuple[nn.Module, nn.Sequential]:
        one, two, three, momentum = self.width, self.width2, self.width3, self.norm_momentum
        relu = nn.ReLU()
        return relu, nn.Sequential(
            _Conv(one, one, relu, momentum, pools=True),
            _Conv(one, two, relu, momentum, pools=False),
            _Skip(two, relu, momentum),
            nn.MaxPool2d(2),
            _Conv(two, three, relu, momentum, pools=False),
            _Skip(three, relu, momentum),
        )


@checked
class Air(_Settings):
    """Settings of `air`, as `_Settings` describes them."""

    side: ClassVar[int] = 2
    width: Count = 24
    width2: Count = 96
    width3: Count = 128

    def _stages(self) -> tuple[nn.Module, nn.Sequential]:
        widths = (self.width, self.width2, self.width3)
        gelu = nn.GELU()
        return gelu, nn.Sequential(
            *(
                conv
                for before, after in zip((widths[0], *widths), widths, strict=False)
                for conv in (
                    _Conv(before, after, gelu, self.norm_momentum, pools=True),
                    _Conv(after, after, gelu, self.norm_momentum, pools=False),
                )
            )
        )
