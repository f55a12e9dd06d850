"""Which images a worker sees at which step, and what happens to them on the way to the network.

Everything here is a pure function of (seed, epoch, rank, step): no state is carried, so a run
resumes in the middle of an epoch by asking for the steps from `start_step` on, and a simulated
worker sees the same images as a real one.

Sharding: one permutation of all n samples an epoch; rank r of N takes every N-th from the r-th on.
All ranks make the same number of full batches, floor(n / (N b)); the up to N b - 1 samples at the
end of the permutation sit out, other ones in each epoch.

Legend: n = samples, N = world size, b = batch size of a worker, H = height, W = width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from dgc_repro.errors import UserError

ALTERNATES = "shift_flip"
"""The augmentation that takes `alternating_flips`."""
AUGMENTATIONS = ("none", "crop", "crop_flip", ALTERNATES)
CROP_PADDING_PIXELS = 4  # He et al. 2016, section 4.2: 4 pixels a side, black before normalization

_MASK = (1 << 64) - 1
SHIFT_PIXELS = 2  # airbench's translation

# Keep the streams apart whatever the other words are; 3 is train/randomness.py's.
_ORDER, _AUGMENT, _FLIP, _WINDOWS = 1, 2, 4, 5


def steps_per_epoch(n: int, batch_size: int, world_size: int) -> int:
    """Full batches each worker makes of n samples.

    Raises UserError if there is not one.
    """
    steps = n // (batch_size * world_size)
    if steps == 0:
        raise UserError(
            f"launch.workers: {world_size} workers x {batch_size} images a batch need "
            f"{world_size * batch_size} training images for one step, there are {n}; "
            "use fewer workers, a smaller batch or more data"
        )
    return steps


def epoch_batches(
    n: int,
    batch_size: int,
    world_size: int,
    rank: int,
    seed: int,
    epoch: int,
    start_step: int = 0,
) -> Iterator[Tensor]:
    """Yield the indices (i64[b]) of this rank's batches of one epoch, from `start_step` on.

    Raises UserError, at the call, if there are fewer samples than one step needs.
    """
    assert 0 <= rank < world_size
    assert start_step >= 0
    steps = steps_per_epoch(n, batch_size, world_size)
    generator = torch.Generator().manual_seed(mixed_seed(_ORDER, seed, epoch))
    shard = torch.randperm(n, generator=generator)[rank::world_size]
    return iter(shard[: steps * batch_size].view(steps, batch_size)[start_step:].unbind())


def eval_shard(n: int, world_size: int, rank: int) -> Tensor:
    """Indices (i64) this rank evaluates; over the ranks, every sample exactly once."""
    assert 0 <= rank < world_size
    return torch.arange(n)[rank::world_size]


def augment_generator(seed: int, epoch: int, rank: int, step: int) -> torch.Generator:
    """A CPU generator for the random crops and flips of one batch.

    On the CPU, so that one batch is cropped alike on every device.
    """
    return torch.Generator().manual_seed(mixed_seed(_AUGMENT, seed, epoch, rank, step))


def window_generator(seed: int, epoch: int, rank: int, step: int) -> torch.Generator:
    """A CPU generator for the places at which the windows of one batch begin."""
    return torch.Generator().manual_seed(mixed_seed(_WINDOWS, seed, epoch, rank, step))


def mixed_seed(*words: int) -> int:
    """Fold integers into 64 bits by SplitMix64's finalizer, word after word.

    A sum (seed + rank) would give neighbours the same stream: rank 1 of seed 0 and rank 0 of seed
    1. Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    state = 0
    for word in words:
        state = ((state + 0x9E3779B97F4A7C15) ^ word) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    # Torch's CPU generator reads the low 32 bits, which the finalizer mixes as well as the rest.
    return state


def augment_and_normalize(
    images: Tensor,
    mode: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    generator: torch.Generator,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Training batch: u8[b,3,H,W] -> f32[b,3,H,W] on the same device.

    mode: `none`; `crop`, a window of H x W at a random place of the image padded by 4 black pixels
    a side; `crop_flip`, and mirrored left to right with probability 1/2. Each image has its own
    draw. `shift_flip`: translated by up to 2 pixels each way, with the image reflected at its edges, and
    ``mirrored`` (bool[b]) says which images are mirrored: see `alternating_flips`. `mean` and `std` as in
    `normalize`.
    """
    assert mode in AUGMENTATIONS, mode
    if mode == ALTERNATES:
        assert mirrored is not None
        return normalize(_random_shift(images, mirrored, generator), mean, std)
    if mode != "none":
        images = _random_crop(images, generator)
    if mode == "crop_flip":
        images = _random_flip(images, generator)
    return normalize(images, mean, std)


def uploaded(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device. To a GPU it goes from pinned memory, and nothing waits for it."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x / 255 - mean) / std, u8[b,C,H,W] -> f32[b,C,H,W]; mean, std per channel, in 0..1."""
    scale, shift = _affine(mean, std, images.device)
    return images.to(torch.float32).mul_(scale).add_(shift)


def _random_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    pad = CROP_PADDING_PIXELS
    count, _, height, width = images.shape
    corner = uploaded(torch.randint(2 * pad + 1, (2, count), generator=generator), images.device)
    padded = F.pad(images, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # view u8[b,3,9,9,H,W]
    return windows[torch.arange(count, device=images.device), :, corner[0], corner[1]]


def _random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator, dtype=torch.bool)
    return torch.where(uploaded(flipped, images.device), images.flip(3), images)


def _random_shift(images: Tensor, mirrored: Tensor, generator: torch.Generator) -> Tensor:
    """Read each image at shifted and reflected places, from right to left where it is mirrored."""
    count, channels, height, width = images.shape
    shift = torch.randint(-SHIFT_PIXELS, SHIFT_PIXELS + 1, (2, count, 1), generator=generator)

    def places(size: int, by: Tensor) -> Tensor:
        at = (torch.arange(size) + by).abs()  # i64[b,size]
        return torch.minimum(at, 2 * (size - 1) - at)

    rows, columns = places(height, shift[0]), places(width, shift[1])
    columns = torch.where(mirrored.cpu()[:, None], columns.flip(1), columns)
    flat = uploaded((rows[:, :, None] * width + columns[:, None, :]).flatten(1), images.device)
    flat = flat[:, None].expand(-1, channels, -1)
    return images.flatten(2).gather(2, flat).view_as(images)


def alternating_flips(n: int, seed: int, epoch: int) -> Tensor:
    """bool[n]: which images are mirrored in an epoch: a random half in the first one, the others in the next,
    and so on (Jordan, 2024, arXiv:2404.00498, section 3.6)."""
    return _first_flips(n, seed) ^ bool(epoch % 2)


@lru_cache(maxsize=2)
def _first_flips(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(mixed_seed(_FLIP, seed))
    return torch.randint(2, (n,), generator=generator, dtype=torch.bool)


@lru_cache(maxsize=32)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """x -> x * scale + shift, f32[C,1,1] each; cached, a copy to the device stalls it."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale, shift.view(-1, 1, 1)
