"""Keep policies as text, as a command takes them: "last 3 | every 1000 | best 1 loss". Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.policies.keep_policies import (
    KeepAt,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepPolicy,
    KeepWithin,
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXPECTED = (
    "last N, every N, best N METRIC [max], at STEP STEP ..., or within 7d (s, m, h, d), "
    "joined by | (either) and & (both)"
)


def parse_keep(text: str) -> KeepPolicy:
    """Return the keep policy that a text describes; & binds stronger than |.

    Raises ValueError for another text; it names the part and says what is expected.

    >>> parse_keep("last 3 | every 1000 & best 5 loss")
    KeepLast(count=3) | KeepEvery(count=1000) & KeepBest(count=5, metric='loss', mode='min')
    """
    either: list[KeepPolicy] = []
    for part in text.split("|"):
        both = [_policy(each) for each in part.split("&")]
        joined = both[0]
        for policy in both[1:]:
            joined = joined & policy
        either.append(joined)
    result = either[0]
    for policy in either[1:]:
        result = result | policy
    return result


def _policy(text: str) -> KeepPolicy:
    kind, *words = text.split() or [""]
    try:
        if kind in _KINDS:
            return _KINDS[kind](words)
    except (ValueError, IndexError, KeyError, TypeError):
        pass
    raise ValueError(f"expected {_EXPECTED}; found {text.strip()!r}")


def _number(words: Sequence[str]) -> int:
    (word,) = words
    return int(word)


def _best(words: Sequence[str]) -> KeepPolicy:
    count, metric, *mode = words
    if not mode:
        return KeepBest(int(count), metric)
    (mode_name,) = mode
    return KeepBest(int(count), metric, {"max": "max", "min": "min"}[mode_name])  # type: ignore[arg-type]


def _within(words: Sequence[str]) -> KeepPolicy:
    (word,) = words
    return KeepWithin(float(word[:-1]) * _UNITS[word[-1]])


_KINDS: dict[str, Callable[[Sequence[str]], KeepPolicy]] = {
    "last": lambda words: KeepLast(_number(words)),
    "every": lambda words: KeepEvery(_number(words)),
    "best": _best,
    "at": lambda words: KeepAt([int(word) for word in words]),
    "within": _within,
}
