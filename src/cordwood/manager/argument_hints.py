"""What to type instead of a name that other tools have, and this library does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from cordwood.did_you_mean import nearest_name

P = ParamSpec("P")
R = TypeVar("R")

# Names of orbax.checkpoint.CheckpointManager, and of Flax and eFormer, and what does the same here.
ATTRIBUTES: Mapping[str, str] = {
    "all_steps": "steps()",
    "best_step": "best(), with keep=KeepBest(...), or best('loss')",
    "check_for_errors": "wait(), which raises what a save failed with",
    "directory": "root",
    "is_saving_in_progress": "the PendingSave that save() returns: its `done`",
    "item_metadata": "cordwood.open(f'{manager.root}/{step}'), which lists the leaves",
    "latest_checkpoint": "latest()",
    "latest_step": "latest()",
    "load": "restore()",
    "load_pytree": "restore()",
    "reached_preemption": "preempted, with preemption_seconds=",
    "reload": "nothing: the root is listed anew at each call",
    "restore_checkpoint": "restore()",
    "save_checkpoint": "save()",
    "save_pytree": "save()",
    "wait_until_finished": "wait()",
}

# Arguments, and of which of the calls here.
ARGUMENTS: Mapping[str, str] = {
    "args": "the tree itself: save(step, tree), restore(step, like=tree)",
    "async_options": "background=",
    "best_fn": "keep=KeepBest(3, 'loss'), and metrics= of save",
    "best_mode": "keep=KeepBest(3, 'loss', mode='max')",
    "create": "nothing: the first save makes the root",
    "custom_metadata": "extras=",
    "enable_async_checkpointing": "background=",
    "item_handlers": "nothing: trees need none",
    "item_names": "items= of save and restore",
    "keep_period": "keep=KeepLast(3) | KeepEvery(1000)",
    "keep_time_interval": "keep=KeepLast(3) | KeepWithin(3600)",
    "max_to_keep": "keep=3",
    "overwrite": "delete(step), then save",
    "options": "arguments of CheckpointManager itself: save=100, keep=3",
    "path": "root",
    "restore_args": "like= and shardings=",
    "restore_kwargs": "like= and shardings=",
    "save_interval_steps": "save=100",
    "save_on_steps": "save=AtSteps([10, 20])",
    "step_prefix": "nothing: a step is called by its number",
    "target": "like=",
    "template": "like=",
}


def no_attribute(kind: str, name: str) -> str:
    """Return the message of an AttributeError, with what does the same where that is known."""
    message = f"{kind!r} object has no attribute {name!r}"
    if name in ATTRIBUTES:
        return f"{message}; use {ATTRIBUTES[name]}"
    return message


def refuse_arguments(call: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError if a call was given arguments that it does not have.

    Args:
        call: its name, for the message.
        unknown: the names that it was given beside those it has.
        known: the names of those it has.
    """
    names = list(known)
    for name in unknown:
        close = nearest_name(name, names)
        if name in ARGUMENTS:
            hint = f"use {ARGUMENTS[name]}"
        elif close is not None:
            hint = f"did you mean {close!r}?"
        else:
            hint = f"it takes {', '.join(names)}"
        raise TypeError(f"{call}() got an unexpected keyword argument {name!r}; {hint}")


def with_hints(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: of an argument that the function lacks, the TypeError says what to use.

    Args:
        call: what the function is called by users.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [*inspect.signature(function).parameters][1:]

        @wraps(function)
        def checked(*arguments: P.args, **named: P.kwargs) -> R:
            unknown = named.keys() - set(names)
            if unknown:
                refuse_arguments(call, sorted(unknown), names)
            return function(*arguments, **named)

        return checked

    return decorate
