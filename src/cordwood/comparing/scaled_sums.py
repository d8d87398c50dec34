"""Sums of squares and products that neither overflow nor underflow, their roots and quotients."""

from __future__ import annotations

import math
from typing import NamedTuple


class ScaledSum(NamedTuple):
    """The number value * 2**exponent."""

    value: float = 0.0
    exponent: int = 0


def add_scaled(one: ScaledSum, other: ScaledSum) -> ScaledSum:
    """Return the sum of two numbers."""
    if not one.value or not other.value:
        return other if other.value else one
    (x, a), (y, b) = _normal(one), _normal(other)
    most = max(a, b)
    return ScaledSum(math.ldexp(x, a - most) + math.ldexp(y, b - most), most)


def root_of_scaled(number: ScaledSum) -> float:
    """Return the square root; inf if it is beyond the range of float64."""
    return _root(number, ScaledSum(1.0))


def root_of_quotient(number: ScaledSum, divisor: ScaledSum) -> float:
    """Return the square root of a quotient; inf if the divisor is 0, but 0 for 0 / 0."""
    if not number.value:
        return 0.0
    return _root(number, divisor) if divisor.value else math.inf


def cosine_of(products: ScaledSum, squares: ScaledSum, other: ScaledSum) -> float | None:
    """Return the cosine of the angle of two vectors; None if one of them is 0.

    Args:
        products: the sum of the products of their elements.
        squares: the sum of the squares of the elements of the first.
        other: the same of the second.
    """
    if not squares.value or not other.value:
        return None
    (x, a), (y, b), (z, c) = _normal(products), _normal(squares), _normal(other)
    odd = (b + c) % 2
    cosine = math.ldexp(x / math.sqrt(math.ldexp(y * z, odd)), a - (b + c - odd) // 2)
    return max(-1.0, min(1.0, cosine))


def _root(number: ScaledSum, divisor: ScaledSum) -> float:
    (x, a), (y, b) = _normal(number), _normal(divisor)
    odd = (a - b) % 2
    try:
        return math.ldexp(math.sqrt(math.ldexp(x / y, odd)), (a - b - odd) // 2)
    except OverflowError:
        return math.inf


def _normal(number: ScaledSum) -> ScaledSum:
    fraction, exponent = math.frexp(number.value)
    return ScaledSum(fraction, number.exponent + exponent)
