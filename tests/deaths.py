"""A fake process that dies at any one of its calls."""

from __future__ import annotations

from collections.abc import Callable

from tests.processes.fake_processes import Died
from tests.threads import in_threads

__all__ = ["SILENCE_SECONDS", "die_at_any_call"]

SILENCE_SECONDS = 4.0  # where a process dies: none that lives is kept from beating for so long


def die_at_any_call(
    calls: int, attempt: Callable[[int], BaseException | None], *, least: int
) -> None:
    """Have it die before its second call, its third, and so on, in threads of their own.

    Before its first it has shown no sign of life. Each attempt takes as long as the silence.

    Args:
        calls: how many it made when nothing went wrong.
        attempt: does the work; the process is to die at its call of that number. What became of
            it; None: it had no such call this time.
        least: so many calls, from the second on, it has every time.
    """
    died: set[int] = set()

    def work(number: int) -> None:
        error = attempt(number + 1)
        if error is not None:
            assert isinstance(error, Died)
            died.add(number)

    in_threads(work, calls - 1)
    assert died >= set(range(least))
