"""Settings that several models share. Without torchvision, which takes a second to import."""

from __future__ import annotations

from typing import Annotated

from dgc_repro.checked import Count, one_of, within

STEMS = ("cifar", "imagenet")
Stem = Annotated[str, one_of(STEMS), "cifar is for 32x32 images, imagenet for 224x224"]
Width = Annotated[Count, "64 is the paper's, 8 a slim one"]
Classes = Annotated[int, within(2), "null takes the number from the dataset"]
