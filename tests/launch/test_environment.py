"""What a record says of the machine."""

import pytest
import torch

from dgc_repro.kernel import batch, native
from dgc_repro.launch.environment import kernels


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
