"""VGG16: torchvision's own network where it can be, and the published parameter counts.

Counts are taken on the meta device, where a network has shapes and no memory.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
import torchvision
import yaml
from torch import nn

from dgc_repro.model.vgg16 import VGG16

CONF = Path(__file__).parents[2] / "conf" / "model"


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(("batch_norm", "count"), [(True, 138_365_992), (False, 138_357_544)])
def test_a_vgg16_has_the_published_number_of_parameters(batch_norm: bool, count: int) -> None:
    with torch.device("meta"):
        network = VGG16(batch_norm=batch_norm, num_classes=1000).build(10)
    assert parameters(network) == count


@pytest.mark.parametrize("batch_norm", [True, False])
def test_the_names_and_shapes_are_torchvisions(batch_norm: bool) -> None:
    theirs = torchvision.models.vgg16_bn if batch_norm else torchvision.models.vgg16
    with torch.device("meta"):
        ours, network = VGG16(batch_norm=batch_norm).build(1000), theirs()
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, v.shape) for n, v in network.state_dict().items()
    ]


def test_the_convolutions_start_as_torchvisions_bit_for_bit() -> None:
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
def test_all_layers_scale_with_the_width(width: int) -> None:
    network = VGG16(width=width).build(7)
    convolutions = [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions == [width * c for c in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)]
    linear = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert linear == [64 * width, 64 * width, 7]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_norm": 1}, "batch_norm: true or false, got 1"),
        ({"width": 0}, "width: a whole number from 1, got 0"),
        ({"num_classes": 1}, "num_classes: a whole number from 2, or null, got 1"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        VGG16(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "batch_norm"), [("vgg16_bn", True), ("vgg16", False)])
def test_the_overlays_give_every_field_its_default(name: str, batch_norm: bool) -> None:
    overlay = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert overlay.pop("_target_") == "dgc_repro.model.vgg16.VGG16"
    assert overlay == dataclasses.asdict(VGG16(batch_norm=batch_norm))
