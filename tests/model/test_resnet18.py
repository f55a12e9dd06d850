"""ResNet18: torchvision's own network where it can be, and the published parameter counts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import torchvision
import yaml
from torch import nn

from dgc_repro.model.resnet18 import ResNet18

CONF = Path(__file__).parents[2] / "conf" / "model" / "resnet18.yaml"


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_cifar_stem_at_width_64_has_11173962_parameters() -> None:
    assert parameters(ResNet18().build(10)) == 11_173_962


def test_the_imagenet_stem_is_torchvisions_network_bit_for_bit() -> None:
    torch.manual_seed(3)
    ours = ResNet18(stem="imagenet").build(1000)
    torch.manual_seed(3)
    theirs = torchvision.models.resnet18()
    assert parameters(ours) == 11_689_512
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize("width", [1, 8, 24])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_the_four_stages_have_1_2_4_and_8_times_the_width(stem: str, width: int) -> None:
    network = ResNet18(stem=stem, width=width).build(7)
    channels = [network.get_submodule(f"layer{i}.1.conv2").weight.shape[0] for i in (1, 2, 3, 4)]
    assert channels == [width, 2 * width, 4 * width, 8 * width]
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(("stem", "side"), [("cifar", 32), ("imagenet", 8)])
def test_a_32_pixel_image_reaches_the_first_stage_at(stem: str, side: int) -> None:
    network = ResNet18(stem=stem, width=2).build(10)
    seen: list[torch.Size] = []
    network.get_submodule("layer1").register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].shape)
    )
    network(torch.randn(2, 3, 32, 32))
    assert seen == [torch.Size([2, 2, side, side])]


def test_the_number_of_classes_is_the_datasets_unless_given() -> None:
    image = torch.randn(2, 3, 32, 32)
    assert ResNet18(width=1).build(13)(image).shape == (2, 13)
    assert ResNet18(width=1, num_classes=5).build(13)(image).shape == (2, 5)


def test_the_convolutions_of_a_slim_network_start_as_torchvision_starts_them() -> None:
    torch.manual_seed(0)
    network = ResNet18(width=32).build(10)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            # Kaiming, fan out, ReLU: std sqrt(2 / fan_out); 50,000 draws estimate it to 0.3 %,
            # and 2 % is six of these errors.
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stem": "mnist"}, "stem: one of cifar, imagenet, got 'mnist'"),
        ({"width": 0}, "width: a whole number from 1, got 0"),
        ({"width": "wide"}, "width: a whole number from 1, got 'wide'"),
        ({"width": True}, "width: a whole number from 1, got True"),
        ({"num_classes": 1}, "num_classes: a whole number from 2, or null, got 1"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
        ResNet18(**settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_overlay_gives_every_field_its_default() -> None:
    overlay = yaml.safe_load(CONF.read_text())
    assert overlay.pop("_target_") == "dgc_repro.model.resnet18.ResNet18"
    assert overlay == dataclasses.asdict(ResNet18())
