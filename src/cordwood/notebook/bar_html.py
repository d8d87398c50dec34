"""A progress bar as HTML and as text. Pure."""

from __future__ import annotations

from html import escape

from cordwood.message_text import printable, size_text


def bar_text(
    verb: str, done_bytes: int, total_bytes: int, doing: str, seconds: float, state: str
) -> str:
    """Return a progress bar as one line of text.

    Args:
        verb: what the call does, such as "saving".
        done_bytes: the number of bytes that are done.
        total_bytes: the number of bytes in all; 0 if it is not known.
        doing: the leaf or file at hand, or "".
        seconds: the time since the start.
        state: "running", "done" or "failed".

    >>> bar_text("saving", 1 << 20, 1 << 22, "params/w", 2.0, "running")
    'saving: 1.0 MiB of 4.0 MiB, 512.0 KiB/s, params/w'
    >>> bar_text("saving", 1 << 22, 1 << 22, "params/w", 2.0, "done")
    'saving: done, 4.0 MiB in 2.0 s'
    """
    size = size_text(done_bytes)
    if state != "running":
        return f"{verb}: {state}, {size} in {seconds:.1f} s"
    parts = [f"{size} of {size_text(total_bytes)}" if total_bytes else size]
    if seconds > 0 and done_bytes:
        parts.append(f"{size_text(done_bytes / seconds)}/s")
    if doing:
        parts.append(printable(doing, keep=""))
    return f"{verb}: {', '.join(parts)}"


def bar_html(
    verb: str, done_bytes: int, total_bytes: int, doing: str, seconds: float, state: str
) -> str:
    """Return a progress bar as HTML without scripts; arguments as for `bar_text`."""
    text = escape(bar_text(verb, done_bytes, total_bytes, doing, seconds, state))
    element = ""
    if state == "running":
        value = f' value="{min(done_bytes, total_bytes)}" max="{total_bytes}"' * bool(total_bytes)
        element = f"<progress{value}></progress> "
    return f'<div style="font-family:monospace;white-space:nowrap">{element}{text}</div>'
