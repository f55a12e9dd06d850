"""Values checked where they are declared: what passes, what is refused, and in which words."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from dgc_repro.checked import (
    Count,
    Positive,
    Rule,
    Share,
    checked,
    kind_of,
    one_of,
    refuse,
    within,
)
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import made

if TYPE_CHECKING:
    from decimal import Decimal

    import numpy as np

EVEN = Rule("{}, an even one", lambda value: value % 2 == 0)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "3", "a whole number, got '3'"),
        (int, True, "a whole number, got True"),
        (int, 10**16, "a whole number, at most 1e+15, got 10000000000000000"),
        (float, "1e-3", "a number, got '1e-3'"),
        (float, math.nan, "a number, got nan"),
        (float, 10**400, "a number, at most 1e+15, got 1"),
        (bool, "no", "true or false, got 'no'"),
        (str, 3, "a word, got 3; a number is a word in quotes: \"'3'\""),
        (Count, 0, "a whole number from 1, got 0"),
        (Share, 1.01, "a number above 0 and at most 1, got 1.01"),
        (Positive, math.inf, "a number above 0, got inf"),
        (Annotated[int, within(2, 16), "8 is usual"], 17, "a whole number from 2 to 16, got 17; 8 "),
        (Annotated[float, within(0, below=1)], 1, "a number from 0 to below 1, got 1"),
        (Annotated[float, within(above=0, below=1, name="a share")], 1, "a share above 0 and below 1"),
        (Annotated[int, EVEN], 3, "a whole number, an even one, got 3"),
        (Annotated[str, one_of({"fed": 1, "raw": 2})], "all", "one of fed, raw, got 'all'"),
        (Literal["mean", "sum"], "max", "one of mean, sum, got 'max'"),
        (Annotated[Count | None, "null for all"], 0, "a whole number from 1, or null, got 0; null for all"),
        (Sequence[Any], "word", "a list, got 'word'"),
        (Sequence[Count], [1, 0], "a list, each a whole number from 1, got [1, 0]"),
        (tuple[Compressor, ...], (Dense(), 1), "a list, each a Compressor, got (Dense(), 1)"),
        (Mapping[str, float], 3, "settings by name, as {name: value}, each a number, got 3"),
        (Compressor, "topk", "a Compressor, got 'topk'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(hint: Any, value: object, message: str) -> None:
    @dataclass
    class Part:
        setting: hint  # type: ignore[valid-type]

    Part.__annotations__["setting"] = hint
    with pytest.raises(ValueError, match=f"^setting: {re.escape(message)}") as caught:
        refuse(Part, {"setting": value})
    assert "\n" not in str(caught.value)


@checked
class Part:
    """A component like those of the package."""

    rank: Annotated[int, within(1), "4 is usual"] = 4
    share: Share = 1
    inner: Compressor | None = None
    price: Decimal | None = None
    doubled: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.rank)


@checked
class Longer(Part):
    """One that adds a field."""

    times: Count = 1


class Renamed(Longer):
    """One that is not decorated itself."""


@pytest.mark.parametrize("kind", [Part, Longer, Renamed])
def test_a_component_and_what_inherits_from_it_check_themselves(kind: type[Part]) -> None:
    with pytest.raises(ValueError, match=r"^rank: a whole number from 1, got 0; 4 is usual$"):
        kind(rank=0)
    part = kind(3, price="a type that only type checkers import")  # type: ignore[arg-type]
    assert part.doubled == 6
    assert part.share == 1
    assert type(part.share) is int  # nothing is converted
    assert pickle.loads(pickle.dumps(part)) == part
    assert replace(part, rank=5).doubled == 10
    with pytest.raises(AttributeError):
        part.rank = 4  # type: ignore[misc]


def test_a_component_that_checks_nothing_is_checked_when_it_is_made_from_a_config() -> None:
    @dataclass(frozen=True)
    class Own:
        rank: int = 1
        share: float = 0.5

        def __post_init__(self) -> None:
            if 1 / self.share < 1:
                raise ValueError(f"share: at most 1, got {self.share}")

    Own.__annotations__ = {"rank": int, "share": float}
    for settings, message in (
        ({"rank": "3"}, "compressor.rank: a whole number, got '3'"),
        ({"share": 2}, "compressor.share: at most 1, got 2"),
        ({"share": 0}, "compressor: these settings do not work together (division by zero)"),
        ({"rnak": 3}, "compressor.rnak: no such key; did you mean rank?"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            made(Own, settings, "compressor")
    assert made(Own, {"rank": 3}, "compressor") == Own(3)


def test_a_component_of_ones_own_is_checked_where_its_annotations_can_be_read() -> None:
    """Names for type checkers only, and classes that no config can hold, are left to the component."""
    given: dict[str, Any] = {"sizes": [1, 2], "pair": (0.9, 1), "root": "here", "array": None}
    assert made(Own, given, "compressor").root == "here"
    with pytest.raises(UserError, match=r"^compressor\.count: a whole number, got 'two'"):
        made(Own, given | {"count": "two"}, "compressor")
    assert kind_of("an annotation that is none").fits(3)


@dataclass
class Own:
    sizes: Ints[int]  # type: ignore[name-defined]  # noqa: F821  # as if imported for type checkers only
    pair: tuple[float, float]
    root: Path
    array: np.ndarray  # type: ignore[name-defined]
    count: int = 1
    shape: tuple[int, ...] = (1,)
