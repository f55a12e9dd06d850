"""ResNet18, ResNet101 and VGG16: torchvision's own networks where they can be, and the published
parameter counts.

Counts are taken on the meta device, where a network has shapes and no memory.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import Bottleneck

from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.model.vgg16 import VGG16

IMAGES = (2, 3, 32, 32)


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def assert_same_network(ours: nn.Module, theirs: nn.Module) -> None:
    """Bit for bit: weights and what they answer."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (ResNet18(num_classes=10), 11_173_962),
        (ResNet18(stem="imagenet", num_classes=1000), 11_689_512),
        (ResNet101(stem="imagenet", num_classes=1000), 44_549_160),
        (ResNet101(stem="cifar", num_classes=10), 42_512_970),
        (VGG16(batch_norm=True, num_classes=1000), 138_365_992),
        (VGG16(batch_norm=False, num_classes=1000), 138_357_544),
    ],
)
def test_a_network_has_the_published_number_of_parameters(model: Any, count: int) -> None:
    with torch.device("meta"):
        assert parameters(model.build(10)) == count


@pytest.mark.parametrize(
    ("model", "theirs"),
    [
        (ResNet101(), torchvision.models.resnet101),
        (ResNet101(blocks=[3, 4, 6, 3]), torchvision.models.resnet50),
        (VGG16(batch_norm=True), torchvision.models.vgg16_bn),
        (VGG16(batch_norm=False), torchvision.models.vgg16),
    ],
)
def test_the_names_and_shapes_are_torchvisions(model: Any, theirs: Any) -> None:
    with torch.device("meta"):
        ours, network = model.build(1000), theirs()
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, v.shape) for n, v in network.state_dict().items()
    ]


def test_the_imagenet_stem_and_bottleneck_stages_are_torchvisions_bit_for_bit() -> None:
    torch.manual_seed(3)
    ours = ResNet18(stem="imagenet").build(1000)
    torch.manual_seed(3)
    assert_same_network(ours, torchvision.models.resnet18())
    depths = [1, 1, 1, 1]  # a tenth of ResNet101's weights: the constructor is what is compared
    torch.manual_seed(3)
    deep = FreeResNet(Bottleneck, depths, "imagenet", 64, 1000)
    torch.manual_seed(3)
    assert_same_network(deep, torchvision.models.ResNet(Bottleneck, depths))


@pytest.mark.parametrize("width", [1, 8, 24])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_the_four_stages_of_a_resnet18_have_1_2_4_and_8_times_the_width(
    stem: str, width: int
) -> None:
    network = ResNet18(stem=stem, width=width).build(7)
    channels = [network.get_submodule(f"layer{i}.1.conv2").weight.shape[0] for i in (1, 2, 3, 4)]
    assert channels == [width, 2 * width, 4 * width, 8 * width]
    assert network(torch.randn(IMAGES)).shape == (2, 7)


@pytest.mark.parametrize("blocks", [(3, 4, 23, 3), [1, 2, 3, 1]])
def test_a_slim_resnet101_has_the_depths_and_1_2_4_and_8_times_the_width(blocks: Any) -> None:
    network = ResNet101(width=4, blocks=blocks, num_classes=7).build(10)
    stages = [network.get_submodule(f"layer{i}") for i in (1, 2, 3, 4)]
    assert [len(stage) for stage in stages] == list(blocks)
    assert [stage[0].conv2.weight.shape[0] for stage in stages] == [4, 8, 16, 32]
    assert network(torch.randn(IMAGES)).shape == (2, 7)


@pytest.mark.parametrize("model", [ResNet18, ResNet101])
@pytest.mark.parametrize(("stem", "side"), [("cifar", 32), ("imagenet", 8)])
def test_a_32_pixel_image_reaches_the_first_stage_at(model: Any, stem: str, side: int) -> None:
    network = model(stem=stem, width=2).build(10)
    seen: list[torch.Size] = []
    network.get_submodule("layer1").register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].shape)
    )
    network(torch.randn(IMAGES))
    assert seen == [torch.Size([2, 2, side, side])]


def test_the_number_of_classes_is_the_datasets_unless_given() -> None:
    for model in (ResNet18, VGG16):
        assert model(width=1).build(13)(torch.randn(IMAGES)).shape == (2, 13)
        assert model(width=1, num_classes=5).build(13)(torch.randn(IMAGES)).shape == (2, 5)


def test_the_convolutions_of_a_slim_network_start_as_torchvision_starts_them() -> None:
    torch.manual_seed(0)
    network = ResNet18(width=32).build(10)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            # Kaiming, fan out, ReLU: std sqrt(2 / fan_out); 50,000 draws estimate it to 0.3 %,
            # and 2 % is six of these errors.
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02), name


def test_the_convolutions_of_vgg16_start_as_torchvisions_bit_for_bit() -> None:
    """The first module of both: 15 M parameters; the classifier draws after it in both."""
    torch.manual_seed(3)
    ours = VGG16(width=8).build(10)
    torch.manual_seed(3)
    theirs = torchvision.models.vgg.make_layers(
        [v if v == "M" else v // 8 for v in torchvision.models.vgg.cfgs["D"]], batch_norm=True
    )
    classifier = [m for m in ours.classifier if isinstance(m, nn.Linear)]
    for linear in classifier:  # what the constructor of each Linear draws before its own init
        nn.Linear(linear.in_features, linear.out_features)
    for module in theirs.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.constant_(module.bias, 0)
    assert len(theirs.state_dict()) > 0
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.features.state_dict()[name], value), name
    for linear in classifier:
        # normal(0, 0.01) at width 64; the smallest has 5,120 draws: 3 % is about three errors
        assert linear.weight.std().item() == pytest.approx(0.01 * math.sqrt(64 / 8), rel=0.03)


@pytest.mark.parametrize("width", [4, 24])
def test_all_layers_of_vgg16_scale_with_the_width(width: int) -> None:
    network = VGG16(width=width).build(7)
    convolutions = [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions == [width * c for c in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)]
    linear = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert linear == [64 * width, 64 * width, 7]
    assert network(torch.randn(IMAGES)).shape == (2, 7)
