"""Where a run computes, for every kind of machine: GPUs that are enough, few, unknown to torch or hidden."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import by_rank, on_both

from dgc_repro.errors import UserError
from dgc_repro.kernel import batch, native
from dgc_repro.launch import devices
from dgc_repro.launch.devices import (
    choose_device,
    computed_precision,
    emulated_bf16,
    simulates_on_gpu,
)
from dgc_repro.launch.environment import kernels
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.rendezvous import Rendezvous
from dgc_repro.launch.reproduction import prepared
from dgc_repro.launch.run import check_rows

CUDA13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120a", "compute_120"]
CUDA126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
NO_CODE = "launch.device: torch "
EMULATED = "train.precision: GPU 0 (a GPU, sm_70) computes no bfloat16 itself, which begins with sm_80, and "


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that torch sees so many GPUs of a capability, and has code for ``known`` architectures."""

    def pretend(
        gpus: int, capability: tuple[int, int] = (8, 0), known: list[str] = CUDA126
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "a GPU")
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: known)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return pretend


def config_of(
    workers: int, device: str = "auto", backend: str = "auto", kind: str = "local",
    scale: str = "paper", precision: str = "fp32",
) -> dict[str, Any]:  # fmt: skip
    launch = {"device": device, "backend": backend, "kind": kind, "workers": workers}
    return {"launch": launch, "train": {"precision": precision}, "scale": {"name": scale}}


def found(config: dict[str, Any], *has_own: bool) -> str:
    """What is chosen, in short: a device and its backend, or the key of the line that refuses it. ``idle``: a
    GPU stays idle, and a line says so."""
    try:
        place = choose_device(config, *has_own)
    except UserError as error:
        return str(error).partition(":")[0].removeprefix("launch.")
    return f"{place.device} {place.backend}{' idle' * bool(place.note)}"


# By device and backend: the choice at scale paper with no GPU, with fewer GPUs than ranks, and with enough.
CHOICES = {
    ("auto", "auto"): ("cpu gloo", "device", "cuda nccl"),
    ("auto", "gloo"): ("cpu gloo", "device", "cuda gloo"),
    ("auto", "nccl"): ("backend", "device", "cuda nccl"),
    ("cuda", "auto"): ("device", "cuda gloo", "cuda nccl"),
    ("cuda", "gloo"): ("device", "cuda gloo", "cuda gloo"),
    ("cuda", "nccl"): ("device", "backend", "cuda nccl"),
    ("cpu", "auto"): ("cpu gloo", "cpu gloo", "cpu gloo"),
    ("cpu", "gloo"): ("cpu gloo", "cpu gloo", "cpu gloo"),
    ("cpu", "nccl"): ("backend", "backend", "backend"),
}
CAPABILITIES = {(7, 0): CUDA126, (7, 5): CUDA13, (8, 0): CUDA13, (9, 0): CUDA126}


@pytest.mark.parametrize(("device", "backend"), CHOICES)
def test_the_device_of_every_machine(
    device: str, backend: str, machine: Callable[..., None]
) -> None:
    none, few, enough = CHOICES[device, backend]
    for gpus, ranks, capability in itertools.product((0, 1, 2, 4), (1, 2, 4), CAPABILITIES):
        machine(gpus, capability, CAPABILITIES[capability])
        wanted = none if gpus == 0 else few if gpus < ranks else enough
        case = gpus, ranks, capability
        assert (case, found(config_of(ranks, device, backend))) == (case, wanted)
        # One process hosts all simulated workers.
        simulated = enough if gpus else none
        assert (case, found(config_of(ranks, device, backend, "simulated"))) == (case, simulated)
        # Scales made for CPUs stay there, with a line, where the others are refused.
        stays = f"cpu {'gloo' if backend == 'auto' else backend} idle"
        stays = "backend" if backend == "nccl" else stays
        for scale in ("quick", "small"):
            small = stays if wanted == "device" and gpus and device == "auto" else wanted
            assert (case, found(config_of(ranks, device, backend, scale=scale))) == (case, small)


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        ("local", "launch=simulated trains all workers on one GPU in one process"),
        ("netlab", "launch.device=cuda lets the workers of the lab share a GPU"),
        ("in torchrun", "in one process, without torchrun"),
    ],
)
def test_too_few_gpus_are_refused_with_the_ways_out(
    kind: str, way_out: str, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(1)
    if kind == "in torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    config = config_of(2, kind="netlab" if kind == "netlab" else "local")
    with pytest.raises(
        UserError, match=r"^launch\.device: 1 GPU here for 2 workers, .*device=cpu"
    ) as error:
        choose_device(config)
    assert f"{way_out}; " in str(error.value)


def test_ranks_that_would_take_one_of_several_gpus_are_told_of_local_rank(
    machine: Callable[..., None],
) -> None:
    machine(2)
    for scale in ("paper", "quick"):
        with pytest.raises(UserError, match=r"several ranks would take one GPU.* set LOCAL_RANK"):
            choose_device(config_of(2, scale=scale), has_own=False)


def test_a_reproduction_simulates_workers_where_gpus_are_few(machine: Callable[..., None]) -> None:
    moved = []
    for gpus, workers, kind, device, scale in itertools.product(
        (0, 1, 2), (1, 2), ("local", "simulated", "netlab"), ("auto", "cuda", "cpu"), ("quick", "paper")
    ):  # fmt: skip
        machine(gpus)
        if simulates_on_gpu(config_of(workers, device, kind=kind, scale=scale)):
            moved.append((gpus, workers, kind, device, scale))
    assert moved == [(1, 2, "local", "auto", "paper")]
    assert not simulates_on_gpu({"scale": {"name": "paper"}})  # computed without a model


def test_table_1_at_the_papers_scale_is_trained_on_one_gpu(machine: Callable[..., None]) -> None:
    table1 = ("dynamic/table1", "scale=paper")
    machine(0)
    on_cpu = prepared(table1)
    machine(1, (7, 5), CUDA13)
    asked = prepared(table1)
    assert asked.note.startswith(
        "1 GPU here for 2 workers: one process trains all workers of a run"
    )
    assert {job.config["launch"]["kind"] for job in asked.jobs} == {"simulated"}
    assert {choose_device(job.config) for job in asked.jobs} == {("cuda", "nccl", "")}
    ids = [{run_folder(job.config).name for job in one.jobs} for one in (on_cpu, asked)]
    assert len(ids[0]) == len(asked.jobs)
    assert not ids[0] & ids[1]  # runs of real ranks keep their names
    check_rows(asked.jobs)
    for given in ("scale=small", "launch.device=cpu", "launch=local"):
        other = prepared([table1[0], given if "scale" in given else table1[1], given])
        assert other.note == ""
        assert {job.config["launch"]["kind"] for job in other.jobs} == {"local"}


@pytest.mark.parametrize(
    ("uuids", "buses", "wanted"),
    [
        (("a", "b"), (1, 2), "cuda nccl"),  # a GPU for each task of Slurm
        (("a", "a"), (1, 1), "device"),  # both see the same one
        (("a", "b"), (1, 1), "device"),  # two parts of one (MIG), which nccl refuses
        (("a", None), (1, 1), "device"),  # a node without
        ((None, None), (1, 1), "cpu gloo"),
    ],
)
def test_ranks_that_see_one_gpu_each_compare_their_uuids(
    uuids: tuple[str | None, ...],
    buses: tuple[int, int],
    wanted: str,
    pair: dict[str, Rendezvous],
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(1)
    uuid, bus = by_rank(*uuids), by_rank(*buses)
    own = lambda gpu: SimpleNamespace(uuid=uuid(), pci_bus_id=bus())  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", lambda: uuid() is not None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(uuid() is not None))
    monkeypatch.setattr(torch.cuda, "get_device_properties", own)
    chosen = on_both(lambda rank: found(config_of(2), pair[rank].has_own_gpus(0)))
    assert chosen == {"0": wanted, "1": "cpu gloo" if uuids[1] is None else wanted}


def test_a_gpu_that_torch_cannot_use_is_named(
    machine: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(0)
    monkeypatch.setattr(devices, "DRIVERS_GPUS", tmp_path)
    assert choose_device(config_of(1)).note == ""
    (tmp_path / "0000:00:1e.0").mkdir()
    assert choose_device(config_of(1)).note.startswith(
        f"launch.device: this machine has an NVIDIA GPU that torch {torch.__version__} cannot use"
    )
    assert choose_device(config_of(1, "cpu")).note == ""  # on purpose
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_device(config_of(1)).note == ""


@pytest.mark.parametrize(
    ("capability", "known", "device", "precision", "refused"),
    [
        ((7, 0), CUDA13, "auto", "fp32", NO_CODE),  # V100
        ((7, 0), CUDA126, "auto", "fp32", None),
        ((7, 0), CUDA126, "auto", "bf16", EMULATED),
        ((7, 0), CUDA126, "cuda", "bf16", EMULATED),
        ((7, 0), CUDA126, "auto", "half", None),
        ((7, 0), CUDA126, "cpu", "bf16", None),
        ((7, 5), CUDA13, "auto", "fp32", None),  # T4
        ((8, 0), CUDA126, "auto", "bf16", None),
        ((8, 9), CUDA13, "auto", "fp32", None),  # by code for sm_86
        ((9, 0), ["sm_80", "compute_80"], "auto", "fp32", None),  # compiled at start
        ((10, 0), CUDA126, "auto", "fp32", NO_CODE),
    ],
)
def test_a_gpu_that_could_not_train_is_refused_in_one_line(
    machine: Callable[..., None],
    capability: tuple[int, int],
    known: list[str],
    device: str,
    precision: str,
    refused: str | None,
) -> None:
    machine(2, capability, known)
    config = config_of(2, device, precision=precision)
    if refused is None:
        wanted = ("cpu", "gloo") if device == "cpu" else ("cuda", "nccl")
        assert choose_device(config) == (*wanted, "")
        return
    with pytest.raises(UserError) as error:
        choose_device(config)
    line = str(error.value)
    assert line.startswith(refused)
    assert f"sm_{capability[0]}{capability[1]}" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_half_is_what_the_device_computes(
    capability: tuple[int, int], wanted: str, machine: Callable[..., None]
) -> None:
    machine(1, capability)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert computed_precision("half", gpu) == wanted
    assert computed_precision("half", cpu) == "bf16"
    for precision in ("fp32", "bf16", "fp16"):
        assert computed_precision(precision, gpu) == precision


@pytest.mark.parametrize(
    ("capabilities", "precision", "device", "is_said"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, "bf16", "cpu", True),
        ({"avx512_bf16": False, "amx_bf16": False}, "half", "cpu", True),
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


@pytest.mark.parametrize(
    ("device", "library", "triton", "expected"),
    [
        ("cpu", object(), False, "C"),
        ("cpu", None, True, "tensor operations"),
        ("cuda", object(), True, "Triton"),
        ("cuda", object(), False, "tensor operations"),
    ],
)
def test_a_record_names_what_compressed(
    monkeypatch: pytest.MonkeyPatch, device: str, library: object, triton: bool, expected: str
) -> None:
    monkeypatch.setattr(native, "library", lambda: library)
    monkeypatch.setattr(batch, "_has_triton", lambda: triton)
    assert kernels(torch.device(device)) == expected
