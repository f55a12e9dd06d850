"""The list of kernels that are compiled before training begins."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import dgc_repro as D
from dgc_repro.bench.counting import Counting
from dgc_repro.exchange import ahead
from dgc_repro.exchange.ahead import compile_ahead, unlike, variants
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.pretended import Pretended
from dgc_repro.exchange.world import World
from dgc_repro.kernel.cached import forget
from dgc_repro.policy.interface import Plan

pytest.importorskip("triton", reason="the GPU kernels need Triton")

CUDA = torch.device("cuda", 0)
PARAMETERS = {
    name: torch.empty(shape, device="meta")
    for name, shape in {"conv": (64, 3, 7, 7), "bias": (64,), "linear": (1000, 512)}.items()
}
FED_BACK = [
    D.ErrorFeedback(D.TopK(0.01)),
    D.ErrorFeedback(D.RedSync(0.01)),
    D.ErrorFeedback(D.PowerSGD(2)),
]


def compile_on(
    device: torch.device, parameters: dict[str, Tensor], compressor: Any = FED_BACK[0]
) -> Exchange:
    """An exchange, and its kernels."""
    exchange = Exchange(compressor, parameters, World(1, device=torch.device("cpu")))
    compile_ahead(compressor, exchange.parameters, device)
    return exchange


class Reads(Pretended):
    """Notes which operations have read values."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str] = []

    def read(self, tensor: Tensor, by: str, to: Tensor | None = None) -> Tensor:
        self.by.append(by)
        return super().read(tensor, by, to)


@pytest.mark.parametrize(
    "read",
    [
        Tensor.item,
        lambda x: x.tolist(),
        Tensor.cpu,
        bool,
        float,
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.empty(1).copy_(x),
        lambda x: torch.empty(1).copy_(x, non_blocking=True),
    ],
)
def test_torch_reads_a_pretended_tensor_in_a_way_that_is_replaced(read: Any) -> None:
    """Fails where another torch calls what is replaced by another name, or reads in another way."""
    with Reads() as reads:
        from_host = torch.tensor([3.0]).to(CUDA)
        assert reads.by == []
        value = read(from_host)
    assert value in (3.0, [3.0], True)
    assert len(reads.by) == 1


def test_a_pretended_tensor_has_an_address_and_torch_is_as_before_afterwards() -> None:
    x = torch.zeros(9)
    before = x.untyped_storage().data_ptr()
    names = [(owner, name) for owner, name, _ in Counting().stand_ins()]
    found = [getattr(owner, name) for owner, name in names]
    with Pretended():
        one, other = torch.empty(8, device=CUDA), torch.empty(8, device=CUDA)
        assert len({one.data_ptr(), other.data_ptr(), 0}) == 3
        assert one[3:].data_ptr() == one.data_ptr() + 12
        assert one[3:].untyped_storage().data_ptr() == one.data_ptr()
        assert x.untyped_storage().data_ptr() == before
    with Counting():
        pass
    assert [getattr(owner, name) for owner, name in names] == found


@pytest.mark.parametrize(
    "compressor",
    [*FED_BACK, D.Uniform(4), D.Uniform(8, block=2048), D.OneBit(), D.Natural()],
    ids=repr,
)
def test_some_of_the_tensors_need_no_other_kernels(compressor: Any) -> None:
    """DDP's buckets and FSDP's units are some of them; sizes are not compiled in."""
    from dgc_repro.kernel.gpu.launch import Launches

    every = variants(compressor, PARAMETERS)
    found: set[Any] = set()
    with Pretended(), patch.object(Launches, "record", found):
        parameters = {
            f"{name} {size}": torch.empty(size, *p.shape[1:], device=CUDA)
            for name, p in PARAMETERS.items()
            for size in (len(p), 7)
        }
        world = World(1, device=CUDA, clock=Clock(torch.device("cpu")))
        exchange = Exchange(compressor, parameters, world)
        for part, (name, p) in enumerate(parameters.items()):
            exchange.run([{name: torch.empty_like(p)}], Plan(0), part).finish()
    forget()
    assert found <= every


def test_each_rung_that_a_policy_may_plan_is_listed() -> None:
    ladder = D.ErrorFeedback(D.Ladder((D.Dense(), D.TopK(0.1), D.TopK(0.01))))
    planned = variants(ladder, PARAMETERS)
    measured = variants(ladder, PARAMETERS, D.GraVAC(theta_max=20.0))
    assert variants(D.ErrorFeedback(D.TopK(0.01)), PARAMETERS) < planned < measured
    more = {one.kernel.fn.__name__ for one in measured - planned}
    assert more == {"_add", "_parts", "_fold"}  # of energies


def test_tensors_that_are_treated_alike_are_listed_once() -> None:
    given = {"a": torch.empty(3, 4), "b": torch.empty(3, 4), "c": torch.empty(4, 3).t()}
    given |= {"d": torch.empty(3, 4, dtype=torch.bfloat16), "norm": torch.empty(3, 4)}
    assert [name for name, _ in unlike(D.TopK(0.1), given)] == ["a", "c", "d"]
    exempt = D.PerLayer(D.TopK(0.1), dense=("norm",))
    assert [name for name, _ in unlike(exempt, given)] == ["a", "c", "d", "norm"]


def test_kernels_are_compiled_for_gpus_alone() -> None:
    from dgc_repro.kernel.gpu import compiling

    asked = []

    def compiled(found: set[Any], on: torch.device) -> list[Any]:
        asked.append((found, on))
        return []

    with patch.object(compiling, "compiled", compiled):
        compile_on(torch.device("cpu"), {"w": torch.empty(30, 40)})
        with Pretended():
            compile_ahead(FED_BACK[0], {"w": torch.empty(30, 40, device=CUDA)}, CUDA)
        assert not asked
        exchange = compile_on(CUDA, {"w": torch.empty(30, 40)})
    assert asked == [(variants(FED_BACK[0], {"w": torch.empty(30, 40)}), CUDA)]
    assert not exchange.states()["residual"]["w"].any()
    assert exchange.step == 0


def test_training_begins_where_the_list_cannot_be_made() -> None:
    def fails(*_: Any, **named: Any) -> None:
        raise RuntimeError("an operation that no fake tensor has")

    with (
        patch.object(ahead, "variants", fails),
        pytest.warns(UserWarning, match="compiled in the first steps: RuntimeError: an operation"),
    ):
        compile_ahead(FED_BACK[0], {"w": torch.empty(30, 40)}, CUDA)


def test_known_values_may_be_none() -> None:
    """A part without values of a tensor whose values the host knows; on torch 2.11 a list met one."""
    with Pretended():
        known = torch.zeros(3, dtype=torch.int32, device="cpu").to(CUDA)
        assert torch.cat([known[:0], known[:2]]).tolist() == [0, 0]
