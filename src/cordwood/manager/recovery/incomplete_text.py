"""The text about a step that cannot be restored, as some of its files are nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.plan.recovery.complete_steps import IncompleteStep
from cordwood.processes.process_error_texts import process_names

_MAX_NAMED = 3  # files


def incomplete_text(step: IncompleteStep, names: Sequence[str] | None = None) -> str:
    """Return a sentence about what a step lacks, and who holds a part of it.

    Args:
        step: the step.
        names: the files that its index names, in their order; None: the index could not be read.
    """
    missing = [each for start, stop in step.missing for each in range(start, stop)]
    text = f"step {step.step}: {len(missing)} of its {step.file_count} files are missing"
    if names is not None:
        shown = [names[each] for each in missing[:_MAX_NAMED]]
        others = len(missing) - len(shown)
        text += f" ({', '.join(shown)}{f' and {others} more' if others else ''})"
    return f"{text}; its index is in the root of {process_names(step.processes)}"
