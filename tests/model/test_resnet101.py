"""ResNet101: torchvision's own network where it can be, and the published parameter counts.

Counts are taken on the meta device, where a network has shapes and no memory.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import torchvision
import yaml
from torch import nn
from torchvision.models.resnet import Bottleneck

from dgc_repro.model.resnet import FreeResNet
from dgc_repro.model.resnet101 import ResNet101

CONF = Path(__file__).parents[2] / "conf" / "model" / "resnet101.yaml"


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("stem", "classes", "count"), [("imagenet", 1000, 44_549_160), ("cifar", 10, 42_512_970)]
)
def test_a_resnet101_has_the_published_number_of_parameters(
    stem: str, classes: int, count: int
) -> None:
    with torch.device("meta"):
        assert parameters(ResNet101(stem=stem, num_classes=classes).build(10)) == count


def test_the_names_and_shapes_are_torchvisions() -> None:
    with torch.device("meta"):
        ours, theirs = ResNet101().build(1000), torchvision.models.resnet101()
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, v.shape) for n, v in theirs.state_dict().items()
    ]


def test_bottleneck_stages_are_torchvisions_bit_for_bit() -> None:
    depths = [1, 1, 1, 1]  # a tenth of ResNet101's weights: the constructor is what is compared
    torch.manual_seed(3)
    ours = FreeResNet(Bottleneck, depths, "imagenet", 64, 1000)
    torch.manual_seed(3)
    theirs = torchvision.models.ResNet(Bottleneck, depths)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


def test_a_slim_network_has_the_depths_and_1_2_4_and_8_times_the_width() -> None:
    network = ResNet101(width=4, num_classes=7).build(10)
    stages = [network.get_submodule(f"layer{i}") for i in (1, 2, 3, 4)]
    assert [len(stage) for stage in stages] == [3, 4, 23, 3]
    assert [stage[1].conv2.weight.shape[0] for stage in stages] == [4, 8, 16, 32]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_fewer_blocks_make_a_shallower_network_of_the_same_kind() -> None:
    network = ResNet101(width=4, blocks=[1, 2, 3, 1], num_classes=7).build(10)
    assert [len(network.get_submodule(f"layer{i}")) for i in (1, 2, 3, 4)] == [1, 2, 3, 1]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    with torch.device("meta"):
        resnet50 = ResNet101(blocks=[3, 4, 6, 3]).build(1000)
        theirs = torchvision.models.resnet50()
    assert parameters(resnet50) == parameters(theirs)


@pytest.mark.parametrize(("stem", "side"), [("cifar", 32), ("imagenet", 8)])
def test_a_32_pixel_image_reaches_the_first_stage_at(stem: str, side: int) -> None:
    network = ResNet101(stem=stem, width=2).build(10)
    seen: list[torch.Size] = []
    network.get_submodule("layer1").register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].shape)
    )
    network(torch.randn(2, 3, 32, 32))
    assert seen == [torch.Size([2, 2, side, side])]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stem": "mnist"}, "stem: one of cifar, imagenet, got 'mnist'"),
        ({"width": 0}, "width: a whole number from 1, got 0"),
        ({"num_classes": 1}, "num_classes: a whole number from 2, or null, got 1"),
        (
            {"blocks": [3, 4, 23]},
            "blocks: four whole numbers from 1 to 1000, one a stage, got [3, 4, 23]",
        ),
        ({"blocks": [3, 4, 23, 0]}, "blocks: four whole numbers from 1"),
        ({"blocks": "3,4,6,3"}, "blocks: four whole numbers from 1"),
        ({"blocks": None}, "blocks: four whole numbers from 1"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ResNet101(**settings)  # type: ignore[arg-type]


def test_the_overlay_gives_every_field_its_default() -> None:
    overlay = yaml.safe_load(CONF.read_text())
    assert overlay.pop("_target_") == "dgc_repro.model.resnet101.ResNet101"
    assert overlay == dataclasses.asdict(ResNet101()) | {"blocks": list(ResNet101().blocks)}
