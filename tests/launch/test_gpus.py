"""A GPU without code in this torch, or without the precision asked for, is refused before anything runs."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.errors import UserError
from dgc_repro.launch.build import choose_device

CUDA13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120a", "compute_120"]
CUDA126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "known", "serves"),
    [
        ((7, 0), CUDA13, False),  # V100
        ((7, 0), CUDA126, True),
        ((7, 5), CUDA13, True),  # T4
        ((8, 9), CUDA13, True),  # by code for sm_86
        ((9, 0), ["sm_80", "compute_80"], True),  # compiled at start
        ((10, 0), CUDA126, False),
    ],
)
def test_a_gpu_without_code_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], known: list[str], serves: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: known)
    launch = {"device": "auto", "backend": "auto", "kind": "local", "workers": 2}
    if serves:
        assert choose_device({"launch": launch}) == ("cuda", "nccl")
        return
    with pytest.raises(UserError) as refused:
        choose_device({"launch": launch})
    line = str(refused.value)
    assert line.startswith("launch.device: torch ")
    assert f"sm_{capability[0]}{capability[1]}; it has sm_" in line
    assert "launch.device=cpu" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("capability", "serves"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((9, 0), True)]
)
@pytest.mark.parametrize("device", ["auto", "cuda", "cpu"])
def test_bf16_that_a_gpu_would_emulate_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], serves: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CUDA126)
    launch = {"device": device, "backend": "auto", "kind": "local", "workers": 1}
    chosen = ("cpu", "gloo") if device == "cpu" else ("cuda", "nccl")
    assert choose_device({"launch": launch, "train": {"precision": "fp32"}}) == chosen
    config = {"launch": launch, "train": {"precision": "bf16"}}
    if serves or device == "cpu":
        assert choose_device(config) == chosen
        return
    with pytest.raises(UserError) as refused:
        choose_device(config)
    major, minor = capability
    assert str(refused.value) == (
        f"train.precision: GPU 0 (a GPU, sm_{major}{minor}) computes no bfloat16 itself, which begins with "
        "sm_80, and torch would emulate it slowly; use train.precision=fp32"
    )
