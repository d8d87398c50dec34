"""Hints for names that other tools have and this library does not: the name to use instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from cordwood.did_you_mean import nearest_name

P = ParamSpec("P")
R = TypeVar("R")

# Names of orbax.checkpoint.CheckpointManager, Flax and eFormer, and the equivalent here.
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

# Arguments of those, and the equivalent here.
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
    """Return the message of an AttributeError, with the equivalent name if there is one."""
    message = f"{kind!r} object has no attribute {name!r}"
    if name in ATTRIBUTES:
        return f"{message}; use {ATTRIBUTES[name]}"
    return message


def refuse_arguments(call: str, unknown: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise TypeError if a call was given arguments that it does not have.

    Args:
        call: its name, for the message.
        unknown: the names of arguments that it does not have.
        parameters: the names of its arguments.
    """
    names = list(parameters)
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
    """Return a decorator that makes a function explain arguments that it does not have.

    The TypeError then names the argument to use.

    Args:
        call: the name of the function, as users know it.
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
