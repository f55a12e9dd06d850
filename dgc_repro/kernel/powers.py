"""Round to powers of two at random: a sign bit and eight exponent bits a value.

A float32 between two powers of two is 2^e (1 + m / 2^23), so adding a random number below 2^23 to its
bits carries into the exponent with the probability m / 2^23: exactly the mean of x. Below the normal
range the same addition gives 0 or 2^-126, with the right mean too. What is not finite has the
exponent 255, and decodes to an infinity.

Letters: n = values, N = payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import counter, native, signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Layout
from dgc_repro.kernel.thresholds import INFINITE

LARGEST = 254  # the exponent of 2^127, float32's largest power of two

_pack = native.Function("dgc_pack_powers_all")
_decode = native.Function("dgc_decode_powers_all")


class PowerLayout(Layout):
    """Of a batch: signs (i32[ceil(n / 32)], as kernel/signs.py lays them) and exponents (u8[n]) of each
    tensor."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        words = [signs.num_words(n) for n in sizes]
        super().__init__(
            sizes, [(words, torch.int32), (sizes, torch.uint8)], np.array(sizes) * 9 / 32
        )

    def decode(
        self, x: Batch, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
    ) -> None:
        if x.native:
            _decode(
                len(x), x.lengths, x.pointers, self.of(0), self.of(1), len(buffers),
                native.pointers(buffers), weight, accumulate,
            )  # fmt: skip
            return
        if x.on_gpu:
            from dgc_repro.kernel.gpu import bits as gpu

            gpu.decode_powers(x, self, buffers, weight, accumulate=accumulate)
            return
        for i, tensor in enumerate(x.tensors):
            flat = tensor.view(-1)
            for source, buffer in enumerate(buffers):
                words, exponents = self.views(buffer, i)
                sign = signs.unpack_bits(words, flat.numel()).to(torch.int32) << 31
                values = (sign | (exponents.to(torch.int32) << 23)).view(torch.float32) * weight
                flat.add_(values) if accumulate or source else flat.copy_(values)


def pack(x: Batch, keys: counter.Numbers, layout: PowerLayout, buffer: Tensor) -> None:
    """Round at random and pack. keys: i32[tensors]; buffer: u8[layout.size]."""
    if x.native:
        _pack(
            len(x), x.lengths, x.pointers, layout.of(0), layout.of(1), keys.ctypes.data,
            buffer.data_ptr(),
        )  # fmt: skip
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import bits as gpu

        gpu.pack_powers(x, keys, layout, buffer)
        return
    for i, tensor in enumerate(x.tensors):
        words, exponents = layout.views(buffer, i)
        bits = tensor.view(-1).view(torch.int32)
        size = bits & 0x7FFFFFFF
        index = torch.arange(bits.numel(), device=bits.device).to(torch.int32)
        hashed = counter.bits(index, counter.on_device(int(keys[i]), bits.device))
        power = ((size + ((hashed >> 9) & 0x7FFFFF)) >> 23).clamp(max=LARGEST)
        exponents.copy_(power.masked_fill(size >= INFINITE, 255))
        signs.pack_bits(bits < 0, words)
