"""Settings that are checked where they are declared: a dataclass's annotations say types and ranges.

    @checked
    class PowerSGD:
        rank: Annotated[int, within(1), "4 is the paper's"] = 4
        feedback: Literal["own", "mean"] = "own"

``PowerSGD(rank=0)`` raises ValueError: "rank: a whole number from 1, got 0; 4 is the paper's". Values are
never converted: ``rank="4"`` is refused too. What concerns several fields stands in ``__post_init__``,
which runs after every field has been found to fit.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

MOST = 10**15
"""Of a whole number: no count here comes near it, and a float64 still holds it exactly."""
T = TypeVar("T")


class Kind(NamedTuple):
    """What an annotation allows. ``words``: the same for people; ``hint``: the likely fix; ``choices``: the
    words that are allowed, where no others are."""

    words: str
    fits: Callable[[Any], bool]
    hint: str = ""
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rule:
    """Beside a type in `Annotated`, it narrows the type. ``fits`` sees values of the type only; in
    ``words``, {} stands for those of the type. (A string beside a type is a hint.)"""

    words: str
    fits: Callable[[Any], bool] = lambda value: True
    choices: tuple[str, ...] = ()


def within(
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    name: str = "{}",
) -> Rule:
    """A range of numbers: ``least`` and ``most`` belong to it, ``above`` and ``below`` do not.
    ``name``: of the number, such as "a share"."""
    words, to, and_below = name, " at most", " below"
    if least is not None:
        words, to, and_below = f"{name} from {least}", " to", " to below"
    elif above is not None:
        words, to, and_below = f"{name} above {above}", " and at most", " and below"
    if most is not None:
        words += f"{to} {most}"
    elif below is not None:
        words += f"{and_below} {below}"
    low, high = -math.inf if least is None else least, math.inf if most is None else most

    def fits(value: float) -> bool:
        return (
            low <= value <= high
            and (above is None or value > above)
            and (below is None or value < below)
        )

    return Rule(words, fits)


def one_of(known: Iterable[object]) -> Rule:
    """One of a few words, such as the keys of a table."""
    words = tuple(known)
    shown = tuple(map(str, words))
    return Rule(f"one of {', '.join(shown)}", words.__contains__, shown)


Count = Annotated[int, within(1)]
Positive = Annotated[float, within(above=0)]
Rate = Annotated[
    float,
    within(above=0, most=10**15),  # torch's products of it fit float32
    Rule("{}, from 1.2e-38, or float32 loses digits of it", lambda value: value >= 2.0**-126),
]
"""Of learning."""
WeightDecay = Annotated[float, within(0, 10**15)]
Share = Annotated[float, within(above=0, most=1)]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked(cls: type[T]) -> type[T]:
    """A frozen dataclass whose constructor raises ValueError, beginning with the field's name, for the
    first value that does not fit its annotation."""
    then = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        refuse(type(self), vars(self))
        if then is not None:
            then(self)

    if not hasattr(then, "checks"):  # an inherited one checks the subclass's fields already
        __post_init__.checks = True  # type: ignore[attr-defined]
        cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(cls)


def refuse(cls: type, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for the first of these settings that does not fit its annotation in ``cls``, a
    dataclass of any origin."""
    kinds = _kinds(cls)
    for name, value in settings.items():
        kind = kinds.get(name, ANYTHING)
        if not kind.fits(value):
            huge = isinstance(value, int) and abs(value) > MOST
            words = f"{kind.words}, at most {MOST:.0e}" if huge else kind.words
            hint = "" if kind.hint == IN_QUOTES and not _is_number(value) else kind.hint
            raise ValueError(f"{name}: {words}, got {_text(value)}{hint and '; '}{hint}")


def _text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of more than 4,300 digits"


@cache
def _kinds(cls: type) -> dict[str, Kind]:
    """What each field that the constructor takes allows."""
    return {
        field.name: kind_of_field(cls, field.name)
        for field in dataclasses.fields(cls)
        if field.init
    }


def kind_of_field(cls: type, name: str) -> Kind:
    """What a field allows; `ANYTHING` where its annotation cannot be evaluated here, such as a name that is
    imported for type checkers only."""
    try:
        owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
        hint = inspect.get_annotations(owner)[name]
        one = types.SimpleNamespace(__annotations__={name: hint})
        found = get_type_hints(one, vars(sys.modules[owner.__module__]), include_extras=True)
        return kind_of(found[name])
    except Exception:  # whatever evaluating a user's annotation may raise
        return ANYTHING


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


ANYTHING = Kind("anything", lambda value: True)
IN_QUOTES = "a number is a word in quotes: \"'3'\""
PLAIN = {
    bool: Kind("true or false", lambda value: isinstance(value, bool)),
    int: Kind("a whole number", _is_whole),
    float: Kind("a number", _is_number),
    str: Kind("a word", lambda value: isinstance(value, str), IN_QUOTES),
    type(None): Kind("null", lambda value: value is None),
}


def kind_of(hint: Any) -> Kind:
    """What an annotation allows; `ANYTHING` where it is one that is not understood."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return ANYTHING
    if isinstance(hint, type) and origin is None:
        return PLAIN.get(hint) or _instance_of(hint)
    if origin is Annotated:
        kind = kind_of(inner[0])
        for extra in inner[1:]:
            if isinstance(extra, str):
                kind = kind._replace(hint=extra)
            elif isinstance(extra, Rule):
                kind = _narrowed(kind, extra)
        return kind
    if origin is Literal:
        return _narrowed(ANYTHING, one_of(inner))
    if origin in (Union, types.UnionType):
        return _either([kind_of(one) for one in inner])
    if origin in (Sequence, list, tuple):
        return _list_of(kind_of(inner[0]) if inner[1:] in ((), (...,)) else ANYTHING)
    if origin is Mapping:
        return _by_name(kind_of(inner[0]), kind_of(inner[1]))
    return ANYTHING


def _instance_of(cls: type) -> Kind:
    """An object of this package. Other classes are not checked: a user's component may make a Path or an
    Enum of the word in its config."""
    if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return ANYTHING
    try:
        isinstance(None, cls)
    except TypeError:  # a protocol that cannot tell
        return ANYTHING
    article = "an" if cls.__name__[0] in "AEIOU" else "a"
    return Kind(f"{article} {cls.__name__}", lambda value: isinstance(value, cls))


def _narrowed(kind: Kind, rule: Rule) -> Kind:
    words = rule.words.replace("{}", kind.words)
    choices = rule.choices or kind.choices
    return Kind(words, lambda value: kind.fits(value) and rule.fits(value), choices=choices)


def _either(kinds: Sequence[Kind]) -> Kind:
    return Kind(
        ", or ".join(kind.words for kind in kinds),
        lambda value: any(kind.fits(value) for kind in kinds),
        "; ".join(kind.hint for kind in kinds if kind.hint),
    )


def _list_of(each: Kind) -> Kind:
    """A sequence of any type: a config has lists where a component has tuples."""

    def fits(value: Any) -> bool:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(each.fits(one) for one in value)

    words = "a list" if each is ANYTHING else f"a list, each {each.words}"
    return Kind(words, fits, each.hint)


def _by_name(name: Kind, each: Kind) -> Kind:
    def fits(value: Any) -> bool:
        is_by_name = isinstance(value, Mapping)
        return is_by_name and all(name.fits(key) and each.fits(value[key]) for key in value)

    like = "settings by name, as {name: value}"
    return Kind(like if each is ANYTHING else f"{like}, each {each.words}", fits, each.hint)
