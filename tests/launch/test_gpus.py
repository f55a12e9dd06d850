"""A GPU without code in this torch, or without the precision asked for, is refused before anything runs."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.errors import UserError
from dgc_repro.launch.devices import choose_device, emulated_bf16

CUDA13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120a", "compute_120"]
CUDA126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
NO_CODE = "launch.device: torch "
EMULATED = "train.precision: GPU 0 (a GPU, sm_70) computes no bfloat16 itself, which begins with sm_80, and "


@pytest.mark.parametrize(
    ("capability", "known", "device", "precision", "refused"),
    [
        ((7, 0), CUDA13, "auto", "fp32", NO_CODE),  # V100
        ((7, 0), CUDA126, "auto", "fp32", None),
        ((7, 0), CUDA126, "auto", "bf16", EMULATED),
        ((7, 0), CUDA126, "cuda", "bf16", EMULATED),
        ((7, 0), CUDA126, "cpu", "bf16", None),
        ((7, 5), CUDA13, "auto", "fp32", None),  # T4
        ((8, 0), CUDA126, "auto", "bf16", None),
        ((8, 9), CUDA13, "auto", "fp32", None),  # by code for sm_86
        ((9, 0), ["sm_80", "compute_80"], "auto", "fp32", None),  # compiled at start
        ((10, 0), CUDA126, "auto", "fp32", NO_CODE),
    ],
)
def test_a_gpu_that_could_not_train_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    known: list[str],
    device: str,
    precision: str,
    refused: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: known)
    launch = {"device": device, "backend": "auto", "kind": "local", "workers": 2}
    config = {"launch": launch, "train": {"precision": precision}}
    if refused is None:
        assert choose_device(config) == (("cpu", "gloo") if device == "cpu" else ("cuda", "nccl"))
        return
    with pytest.raises(UserError) as error:
        choose_device(config)
    line = str(error.value)
    assert line.startswith(refused)
    assert f"sm_{capability[0]}{capability[1]}" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("capabilities", "precision", "device", "is_said"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, "bf16", "cpu", True),
        ({"avx512_bf16": True, "amx_bf16": False}, "bf16", "cpu", False),
        ({"avx512_bf16": False, "amx_bf16": False}, "fp32", "cpu", False),
        ({"avx512_bf16": False, "amx_bf16": False}, "bf16", "cuda", False),
        ({}, "bf16", "cpu", False),  # a torch that says nothing about this CPU
    ],
)
def test_a_cpu_that_emulates_bf16_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool],
    precision: str,
    device: str,
    is_said: bool,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    says = emulated_bf16(precision, device)
    assert bool(says) == is_said
    assert not says or says.startswith("train.precision: this CPU computes no bfloat16 itself")
