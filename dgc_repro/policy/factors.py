"""The compression factors that GraVAC goes through, weakest first (section III-D of the paper).

exponential    theta_min times 2, 4, 16, 256, ...
geometric      theta_min times ratio, ratio^2, ...

The last is theta_max, in the place of the first that would lie above it.
"""

from __future__ import annotations

EXPONENTIAL, GEOMETRIC = "exponential", "geometric"
MOST_FACTORS = 64


def factors_between(
    theta_min: float, theta_max: float, scaling: str, ratio: float
) -> tuple[float, ...]:
    """All of them. Raises ValueError where they are too many."""
    factors, exponent, theta_max = [float(theta_min)], 1.0, float(theta_max)
    while factors[-1] < theta_max:
        if len(factors) == MOST_FACTORS:
            raise ValueError(
                f"ratio: {ratio:g} makes more than {MOST_FACTORS} factors up to {theta_max:g}; give a "
                "larger one"
            )
        if scaling == GEOMETRIC:
            factor = factors[-1] * ratio
        else:
            factor, exponent = theta_min * 2.0**exponent, exponent * 2
        factors.append(min(factor, theta_max))
    return tuple(factors)
