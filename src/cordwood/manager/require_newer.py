"""The check that a step to save is newer than all steps that exist."""

from __future__ import annotations

from cordwood.errors import StepError
from cordwood.manager.step import Step, best_of_each
from cordwood.manager.steps import Steps
from cordwood.threads.log import log


def require_newer(steps: Steps, number: int, *, overwrite: bool) -> Step | None:
    """Raise StepError if an existing step does not allow a save; hide an unreadable index.

    The commit itself replaces other damaged files, and with `overwrite` a step of that number that
    cordwood has saved.

    Returns the newest step before it that a manager has saved; None if there is none.
    """
    every = steps.entries(start=0, down_to=lambda best: best.counts and best.step < number)
    entries = [each for each in every if each.step >= number]
    older = [each for each in best_of_each(every) if each.step < number and each.counts]
    newest = older[0] if older else None
    whole = [each.step for each in entries if each.whole]
    if whole and whole[-1] == number:
        existing = [each for each in entries if each.step == number and each.whole]
        commands = [each.removal_command for each in existing if each.is_of_another_tool]
        replaceable = all(each.is_replaceable for each in existing)
        if overwrite and replaceable:
            return newest
        replace = f"call manager.delete({number}) first"
        if replaceable:
            replace = "pass overwrite=True to save"
        if commands:
            replace = f"remove what another tool saved first: {'; '.join(commands)}"
        raise StepError(
            f"{steps.root}: step {number} already exists. To continue the run from it, "
            f"save step {number + 1} next; to replace it, {replace}"
        )
    if whole:
        raise StepError(
            f"{steps.root}: step {number} is not newer than step {whole[-1]}, "
            "which is there; delete the later steps first (delete_after), or save this run to "
            "another root"
        )
    for each in entries:
        if each.step != number:
            continue
        if each.in_the_way:
            raise StepError(f"{each.path} lies where step {number} goes: {each.in_the_way}")
        if each.damaged and not each.tool and each.record is None:
            reason = steps.storage.set_aside(each.entry)
            if reason:
                raise StepError(
                    f"{each.path} lies where step {number} goes, and is damaged: {reason}: "
                    "move that away"
                )
            log.warning("%s: what is damaged there is hidden until it is saved", each.path)
    return newest
