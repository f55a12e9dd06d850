"""Images out of the parquet files in which the Hugging Face hub keeps small image sets.

A row is `img` (a struct of `bytes`, the encoded image, and `path`) and one or more integer label
columns. The bytes are PNG on the hub and may be JPEG in a mirror; which it was is returned, because
a result on JPEG images has to say so.

60,000 images of 32x32 decode in 5 to 12 s on one core. A run decodes those that it uses, and nothing is
cached.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

from dgc_repro.dataset.images import Images
from dgc_repro.errors import UserError

FOLDERS = ("plain_text", "cifar100")
JPEG_MAGIC = b"\xff\xd8"


def find_files(root: Path, part: str) -> list[Path]:
    """The files `<part>-*.parquet` in `root` or, failing that, in one of the hub's folders below, in order.

    Raises UserError if some of `<part>-00000-of-00003.parquet` and so on are missing.
    """
    for folder in (root, *(root / name for name in FOLDERS)):
        files = sorted(folder.glob(f"{part}-*.parquet"))
        if files:
            expected = re.fullmatch(rf"{part}-\d+-of-(\d+)(-\w+)?\.parquet", files[0].name)
            if expected and int(expected[1]) != len(files):
                raise UserError(
                    f"dataset.root: {folder} has {len(files)} of the {int(expected[1])} "
                    f"{part}-*.parquet files; copy the missing ones there too"
                )
            return files
    return []


def read_images(
    files: list[Path],
    side_pixels: int,
    label_column: str,
    num_classes: int,
    used: Callable[[int], Tensor] | None = None,
) -> tuple[Images, bool]:
    """Decode the rows of `files`; returns (u8[n,3,side,side] and i64[n] labels, were they JPEG).

    ``used``: from n, the rows that are needed (i64); the images of the others stay black. None: all.

    Raises UserError, naming the file, if one cannot be read or lacks the columns, and the row if an
    image does not decode, has another size, or a label is not in 0..num_classes - 1.
    """
    encoded: list[bytes | None] = []
    labels: list[int | None] = []
    places: list[tuple[Path, int]] = []
    for file in files:
        images_here, labels_here = _read_columns(file, label_column)
        encoded += images_here
        labels += labels_here
        places += [(file, row) for row in range(len(labels_here))]
    if not encoded:
        raise UserError(f"dataset.root: {files[0]} has no rows; download it again")

    for label, (file, row) in zip(labels, places, strict=True):
        if label is None or not 0 <= label < num_classes:
            raise UserError(
                f"dataset.root: {file} row {row}: label {label} is not in 0..{num_classes - 1}; "
                "is this another data set?"
            )
    pixels = np.zeros((len(encoded), side_pixels, side_pixels, 3), dtype=np.uint8)
    for i in range(len(encoded)) if used is None else used(len(encoded)).sort().values.tolist():
        file, row = places[i]
        image = _decode(encoded[i], file, row)
        if image.size != (side_pixels, side_pixels):
            raise UserError(
                f"dataset.root: {file} row {row}: the image is {image.width}x{image.height}, "
                f"expected {side_pixels}x{side_pixels}; is this another data set?"
            )
        pixels[i] = np.asarray(image)
    channels_first = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    was_jpeg = (encoded[0] or b"").startswith(JPEG_MAGIC)
    return Images(channels_first, torch.tensor(labels, dtype=torch.int64)), was_jpeg


def _read_columns(file: Path, label_column: str) -> tuple[list[bytes | None], list[int | None]]:
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"dataset.root: {file} cannot be read as parquet ({str(error).splitlines()[0]}); "
            "it may be truncated, download it again"
        ) from error
    types = {field.name: field.type for field in table.schema}
    image, label = types.get("img"), types.get(label_column)
    fits = (
        image is not None
        and pa.types.is_struct(image)
        and any(child.name == "bytes" and pa.types.is_binary(child.type) for child in image)
        and label is not None
        and pa.types.is_integer(label)
    )
    if not fits:
        found = ", ".join(f"{name} ({type_})" for name, type_ in types.items()) or "no columns"
        raise UserError(
            f"dataset.root: {file} must have the columns img (struct of bytes and path) and "
            f"{label_column} (integer), found {found}; is this another data set?"
        )
    encoded = pc.struct_field(table.column("img"), "bytes")
    return encoded.to_pylist(), table.column(label_column).to_pylist()


def _decode(data: bytes | None, file: Path, row: int) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data or b""))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")
    # PIL's decoders raise OSError, SyntaxError, ValueError and struct.error on damaged bytes.
    except Exception as error:
        raise UserError(
            f"dataset.root: {file} row {row}: the image does not decode "
            f"({type(error).__name__}); the file is damaged, download it again"
        ) from error
