"""The text of a call in its journal: what it does, and the options that its result depends on."""

from __future__ import annotations

from typing import Any

from cordwood.encoding.digests import digest_of

_MAX_LENGTH = 120


def call_text(call: str, **options: Any) -> str:
    """Return a call with those of its options that are not None.

    A long value is shortened, and its digest added. So equal texts are of equal calls, in any
    process.

    >>> call_text("convert /run/1 to /small", cast="bf16", select=None)
    "convert /run/1 to /small, cast='bf16'"
    """
    texts = [
        f"{name}={_short(repr(value))}" for name, value in options.items() if value is not None
    ]
    return ", ".join([call, *texts])


def _short(text: str) -> str:
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[:_MAX_LENGTH]}... ({digest_of(text.encode(errors='surrogatepass')).hex()[:16]})"
