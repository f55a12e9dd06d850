"""One check of a claim, measured: on which side of the claimed range it lies, and how it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgc_repro.paper.claims import Check
from dgc_repro.paper.statistics import Prior

FORMS = {"value": "{:.4g}", "difference": "{:+.3g}", "ratio": "{:.3g}x"}


@dataclass(frozen=True)
class Effect:
    """One check, measured: ``mean`` over ``n`` seeds with its interval. A NaN ``mean``: undefined in some
    seed. ``names``: its rows in words. ``p``: of the hypothesis that the value lies in the claimed range,
    where there is an interval. ``prior``: of the variances of its `Check.group`."""

    check: Check
    n: int
    mean: float
    low: float
    high: float
    unit: str = ""
    names: tuple[str, ...] = ()
    p: float | None = None
    prior: Prior | None = None

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies in the claimed range."""
        return self._sides(self.low)[0] and self._sides(self.high)[1]

    @property
    def outside(self) -> bool:
        """Whether the whole interval lies outside."""
        overlaps = self._sides(self.high)[0] and self._sides(self.low)[1]
        return not (overlaps or math.isnan(self.mean))

    @property
    def p_outside(self) -> float:
        """The p-value of "it lies in the claimed range"; 0 or 1 for a number without a spread."""
        return float(not self.outside) if self.p is None else self.p

    @property
    def points_inside(self) -> bool:
        """Whether the mean lies in the claimed range."""
        return all(self._sides(self.mean))

    def _sides(self, value: float) -> tuple[bool, bool]:
        """Whether a value lies above the range's lower end, and below its upper end. Against a row that never
        reaches a target a difference is infinite and a ratio may be 0: such a value lies in a range that is
        open to that side. A row's own infinite value lies in no range."""
        check, is_pair = self.check, self.check.lesser is not None
        return (
            value > check.above or (is_pair and value == check.least >= check.above),
            value < check.below or (is_pair and value == check.below == math.inf),
        )

    @property
    def text(self) -> str:
        """Quantity, rows, number with interval, and the claimed range."""
        check = self.check
        what = (" / " if check.ratio else " - ").join(self.names)
        quantity = ", ".join(part for part in (check.quantity, check.setting) if part)
        claimed = self.claimed.replace("above", ">").replace("below", "<")
        printed = f", printed {self.printed}" if self.printed else ""
        return f"{quantity}, {what}: {self.brief} (claimed {claimed}{printed})"

    @property
    def what(self) -> str:
        """Quantity and rows, in the order in which they are compared."""
        parts = (self.check.quantity, self.check.setting, self._compared)
        return ", ".join(part for part in parts if part)

    @property
    def needed(self) -> str:
        """Quantity and rows, to continue "The claim needs"."""
        setting = f", {self.check.setting}" if self.check.setting else ""
        return f"{self.check.quantity}{setting} of {self._compared}"

    @property
    def _compared(self) -> str:
        """The rows in the order in which they are compared."""
        return (" over " if self.check.ratio else " minus ").join(self.names)

    @property
    def claimed(self) -> str:
        check, number = self.check, self._number
        if math.isinf(check.below):
            return f"above {number(check.above)}"
        if check.above <= check.least:
            return f"below {number(check.below)}"
        return f"{number(check.above)} to {number(check.below)}"

    @property
    def printed(self) -> str:
        """The printed number; empty where there is none."""
        return "" if math.isnan(self.check.printed) else self._number(self.check.printed)

    @property
    def measured(self) -> str:
        """The number with its unit, and its interval where it has one."""
        if math.isnan(self.mean):
            return "undefined"
        text = f"{self._number(self.mean)} {self._unit}".rstrip()
        ends = f" ({self._number(self.low)} to {self._number(self.high)})"
        return text + (ends if self.low != self.high else "")

    @property
    def excluded(self) -> str:
        """What the interval leaves of an order that it does not decide; empty of another claim."""
        check, number = self.check, self._number
        is_order = math.isinf(check.below) or check.above <= check.least
        if self.low == self.high or not is_order or not math.isfinite(self.low + self.high):
            return ""
        end = self.high if math.isinf(check.below) else self.low
        return f"{self._compared} is at {'most' if end is self.high else 'least'} {number(end)}"

    @property
    def directed(self) -> str:
        """The rows in the order in which they are compared, and the number."""
        return f"{self._compared}: {self.brief}"

    @property
    def brief(self) -> str:
        """The number with its interval; a difference of percentages in points."""
        if math.isnan(self.mean):
            return "undefined"
        ends = f" [{self._number(self.low)}, {self._number(self.high)}]"
        text = self._number(self.mean) + (ends if self.low != self.high else "")
        return f"{text} {self._unit}".rstrip()

    @property
    def _unit(self) -> str:
        """A difference of percentages is in points, and a ratio has no unit."""
        is_points = self.check.kind == "difference" and self.unit == "%"
        return "" if self.check.ratio else "points" if is_points else self.unit

    def _number(self, value: float) -> str:
        if math.isinf(value):
            return "infinite" if value > 0 else "-infinite"
        return FORMS[self.check.kind].format(value)
