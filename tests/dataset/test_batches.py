"""Sharding, cropping, flipping and normalizing: who sees what, when, and how it looks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from dgc_repro.dataset.batches import (
    SHIFT_PIXELS,
    alternating_flips,
    augment_and_normalize,
    augment_generator,
    epoch_batches,
    eval_shard,
    mixed_seed,
    normalize,
    steps_per_epoch,
)
from dgc_repro.dataset.images import Images, Splits
from dgc_repro.train.image_task import ImageTask
from dgc_repro.train.settings import TrainSettings

# x -> x / 255 - 0 over 1/255: the pixel values themselves, as floats.
AS_IS = ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))


def epoch(n: int, batch: int, world: int, seed: int = 0, epoch: int = 0) -> list[list[Tensor]]:
    return [list(epoch_batches(n, batch, world, rank, seed, epoch)) for rank in range(world)]


@pytest.mark.parametrize(
    ("n", "batch", "world"), [(103, 4, 3), (96, 8, 4), (10, 1, 1), (64, 32, 2)]
)
def test_ranks_make_equally_many_full_batches_and_share_no_sample(
    n: int, batch: int, world: int
) -> None:
    ranks = epoch(n, batch, world)
    steps = steps_per_epoch(n, batch, world)
    assert {len(batches) for batches in ranks} == {steps}
    assert {len(indices) for batches in ranks for indices in batches} == {batch}
    seen = torch.cat([indices for batches in ranks for indices in batches]).tolist()
    assert len(set(seen)) == len(seen) == steps * batch * world
    assert n - len(seen) < batch * world
    assert set(seen) <= set(range(n))


@pytest.mark.parametrize(("n", "world"), [(10, 3), (7, 2), (12, 4), (2, 5), (360, 7)])
def test_every_sample_is_evaluated_exactly_once(n: int, world: int) -> None:
    shards = [eval_shard(n, world, rank) for rank in range(world)]
    assert sorted(torch.cat(shards).tolist()) == list(range(n))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_neighbouring_seeds_epochs_ranks_and_steps_have_their_own_stream() -> None:
    places = list(itertools.product(range(8), repeat=4))
    low_words = {mixed_seed(2, *place) & 0xFFFFFFFF for place in places}
    # Torch's CPU generator reads 32 bits; 4,096 random ones collide with probability 0.2 %, these
    # are fixed and do not.
    assert len(low_words) == len(places)
    assert mixed_seed(0, 1) != mixed_seed(1, 0) != mixed_seed(0, 1, 0)


def coded_images(count: int) -> Tensor:
    """Images whose pixel says where it is: red = row + 1, green = column + 1, blue = image."""
    side = torch.arange(1, 33, dtype=torch.uint8)
    rows, columns = side.view(1, 32, 1), side.view(1, 1, 32)
    image = torch.stack([a.expand(count, 32, 32) for a in (rows, columns)], dim=1)
    blue = (torch.arange(count) % 200 + 1).to(torch.uint8).view(-1, 1, 1, 1)
    return torch.cat([image, blue.expand(count, 1, 32, 32)], dim=1)


def read_back(augmented: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(row shift, column shift, flipped) of each image, read from the codes at its centre."""
    pixels = augmented.round().to(torch.int64)
    down = pixels[:, 0, 16, 16] - 17
    flipped = pixels[:, 1, 16, 17] < pixels[:, 1, 16, 16]
    # A flip mirrors the window: output column 16 is the window's column 15.
    right = pixels[:, 1, 16, 16] - torch.where(flipped, 16, 17)
    return down, right, flipped


def test_crop_and_flip_give_each_image_its_own_window() -> None:
    count = 200
    images = coded_images(count)
    out = augment_and_normalize(images, "crop_flip", *AS_IS, augment_generator(0, 0, 0, 0))
    down, right, flipped = read_back(out)
    for i in range(count):
        padded = torch.zeros(3, 40, 40)
        padded[:, 4:36, 4:36] = images[i].float()
        top, left = 4 + int(down[i]), 4 + int(right[i])
        window = padded[:, top : top + 32, left : left + 32]
        expected = window.flip(2) if flipped[i] else window
        # x * scale with scale = 1 / (255 * (1 / 255)) is x up to two float32 roundings.
        torch.testing.assert_close(out[i], expected, atol=1e-4, rtol=0)


def test_crops_are_uniform_over_nine_by_nine_places_and_flips_over_two() -> None:
    count = 16_200
    out = augment_and_normalize(
        coded_images(count), "crop_flip", *AS_IS, augment_generator(1, 2, 0, 3)
    )
    down, right, flipped = read_back(out)
    counts = torch.zeros(9, 9)
    counts.index_put_((down + 4, right + 4), torch.ones(count), accumulate=True)
    expected = count / 81
    # Chi-square with 80 degrees of freedom exceeds 125 with probability 0.1 %; the seed is fixed.
    assert ((counts - expected) ** 2 / expected).sum().item() < 125
    # Binomial(16,200, 1/2): 64 is one standard deviation, 200 three.
    assert abs(int(flipped.sum()) - count // 2) < 200
    # A flip that went with the place would pass both tests above; |correlation| under 4 / sqrt(n).
    for shift in (down, right):
        pair = torch.stack([shift.double(), flipped.double()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 4 / count**0.5


def test_a_batch_is_augmented_by_its_place_alone_and_nothing_else_changes() -> None:
    images = coded_images(16)
    before, state = images.clone(), torch.get_rng_state()

    def at(*place: int) -> Tensor:
        return augment_and_normalize(images, "crop_flip", *AS_IS, augment_generator(*place))

    assert torch.equal(at(1, 2, 3, 4), at(1, 2, 3, 4))
    for other in [(2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5), (2, 1, 3, 4)]:
        assert not torch.equal(at(1, 2, 3, 4), at(*other)), other
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


def reflected(place: int, size: int) -> int:
    """The place inside an image that lies behind its edge: the edge itself is not repeated."""
    if place < 0:
        return -place
    return 2 * (size - 1) - place if place >= size else place


def shifted(image: Tensor, down: int, right: int, *, mirrored: bool) -> Tensor:
    """By a plain loop over pixels."""
    _, height, width = image.shape
    out = torch.empty_like(image)
    for row, column in itertools.product(range(height), range(width)):
        from_column = width - 1 - column if mirrored else column
        out[:, row, column] = image[
            :, reflected(row + down, height), reflected(from_column + right, width)
        ]
    return out


def test_a_shift_reflects_at_the_edges_and_mirrors_whom_it_is_told() -> None:
    count, side = 60, 8
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)
    mirrored = torch.arange(count) % 3 == 0
    out = augment_and_normalize(
        images, "shift_flip", *AS_IS, augment_generator(0, 0, 0, 0), mirrored
    )
    by = range(-SHIFT_PIXELS, SHIFT_PIXELS + 1)
    seen = set()
    for image, found, flip in zip(images, out, mirrored.tolist(), strict=True):
        places = [
            place
            for place in itertools.product(by, by)
            if torch.equal(found.round().to(torch.uint8), shifted(image, *place, mirrored=flip))
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert {down for down, _ in seen} == {right for _, right in seen} == set(by)
    assert len(seen) > 15, "rows and columns have draws of their own"


def test_a_task_mirrors_an_image_by_its_place_in_the_data_whatever_batch_it_is_in() -> None:
    """Images that differ left and right, whose class says which image it is."""
    count, workers = 64, 2
    images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    images[..., 16:] = 255
    part = Images(images, torch.arange(count))
    splits = Splits(part, part, part, count, *AS_IS, "halves", "shift_flip")
    settings = TrainSettings(epochs=2, batch_size=8, accumulate=2)
    task = ImageTask(splits, settings, seed=5)
    for epoch in range(2):
        expected = alternating_flips(count, 5, epoch)
        for rank in range(workers):
            for batch in task.batches(epoch, workers, rank, 0):
                for inputs, labels in batch.micro_batches:
                    left_is_bright = inputs[:, 0, 16, 4] > 100
                    assert torch.equal(left_is_bright, expected[labels])


def test_normalization_is_per_channel_in_units_of_0_to_1() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    out = normalize(images, (0.5, 0.2, 0.0), (0.25, 0.1, 2.0)).flatten()
    # Two float32 roundings of numbers of order 1.
    torch.testing.assert_close(out, torch.tensor([-2.0, 0.0, 0.5]), atol=1e-6, rtol=0)
    assert out.dtype == torch.float32


def test_each_image_is_mirrored_in_exactly_every_second_epoch() -> None:
    first, second, third = (alternating_flips(4000, 3, epoch) for epoch in range(3))
    assert torch.equal(second, ~first)
    assert torch.equal(third, first)
    assert (
        abs(int(first.sum()) - 2000) < 4 * 32
    )  # binomial(4,000, 1/2): 32 is its standard deviation
