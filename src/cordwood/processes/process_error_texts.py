"""The texts of errors that name the processes which are late, silent or restarted."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_NAMED = 16  # processes in a message


def process_names(processes: Iterable[int]) -> str:
    """Return "process 2", or "processes 1, 5 and 7"."""
    numbers = list(processes)
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = [str(number) for number in numbers[:_MAX_NAMED]]
    last = f"{len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else shown.pop()
    return f"processes {', '.join(shown)} and {last}"


def silence_text(processes: list[int], seconds: float, purpose: str) -> str:
    """Return the error text for processes that had arrived and then sent no heartbeat."""
    return (
        f"{process_names(processes)} gave no sign of life for {seconds:g} s while all met to "
        f"{purpose}: dead, or cut off"
    )


def restart_text(process: int, purpose: str) -> str:
    """Return the error text for a process that was restarted while the others were not."""
    return (
        f"process {process} came to {purpose} and is out of step with process 0, which has met "
        "another process of that number; if it was restarted alone, restart the whole job"
    )
