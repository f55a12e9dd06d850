"""The networks that read images: torchvision's own where they can be, and the published parameter counts.

Counts are taken on the meta device, where a network has shapes and no memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import Bottleneck

from dgc_repro.model.cifar_resnet import CifarResNet
from dgc_repro.model.cnn import CNN
from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.model.vgg11 import VGG11
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
        (CifarResNet(), 272_474),  # these three: as MLS-Bench's training script prints them
        (CifarResNet(blocks=9), 855_770),
        (VGG11(num_classes=100), 9_802_596),
        (CNN(), 4_259_274),  # of Shallue et al.
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


def test_the_convolutions_of_a_slim_network_start_as_torchvision_starts_them() -> None:
    torch.manual_seed(0)
    network = ResNet18(width=32).build(10)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            # Kaiming, fan out, ReLU: std sqrt(2 / fan_out); 50,000 draws estimate it to 0.3 %,
            # and 2 % is six of these errors.
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02), name


def test_all_layers_of_vgg16_scale_with_the_width() -> None:
    width = 4
    network = VGG16(width=width).build(7)
    convolutions = [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions == [width * c for c in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)]
    linear = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert linear == [64 * width, 64 * width, 7]
    assert network(torch.randn(IMAGES)).shape == (2, 7)


def test_the_cifar_resnets_and_vgg11_of_mls_bench_take_small_images() -> None:
    resnet = CifarResNet(blocks=2, width=4).build(7)
    channels = [resnet.get_submodule(f"layer{i}.1.conv2").weight.shape[0] for i in (1, 2, 3)]
    assert channels == [4, 8, 16]
    for network in (resnet, VGG11(width=8).build(7)):
        assert network(torch.randn(IMAGES)).shape == (2, 7)


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_a_cnn_of_any_depth_reads_images(layers: int) -> None:
    network = CNN(width=4, layers=layers, hidden=8, dropout=0.5).build(7)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)
