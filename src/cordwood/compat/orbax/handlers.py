"""Handlers, which say to a checkpointer or a manager what kind of item it stores."""

from __future__ import annotations

from typing import Any

from cordwood.compat.orbax import args as arguments

__all__ = [
    "ArrayCheckpointHandler",
    "AsyncCheckpointHandler",
    "CheckpointHandler",
    "CompositeCheckpointHandler",
    "JsonCheckpointHandler",
    "PyTreeCheckpointHandler",
    "StandardCheckpointHandler",
]


_NO_METHOD = (
    "{0}: {1}(directory, args) is not written: a handler of yours needs a {1} that works on files "
    "itself, because the handlers of cordwood.compat.orbax have none to call by super()"
)


class CheckpointHandler:
    """The base class of handlers, also of your own.

    A handler of yours has `save(directory, args)`, which writes files into an empty directory, and
    `restore(directory, args)`, which gets a directory with the same files. They are stored in the
    step, and committed with it.
    """

    def save(self, directory: Any, args: Any) -> None:
        """Write an item as files into a directory."""
        raise NotImplementedError(_NO_METHOD.format(type(self).__name__, "save"))

    def restore(self, directory: Any, args: Any) -> Any:
        """Return an item from the files in a directory."""
        raise NotImplementedError(_NO_METHOD.format(type(self).__name__, "restore"))


AsyncCheckpointHandler = CheckpointHandler


_INHERITED = CheckpointHandler.save, CheckpointHandler.restore


class _KindOfItem(CheckpointHandler):
    """A handler that cordwood needs no more of than its kind; options of Orbax have no effect."""

    save_class: type[arguments.CheckpointArgs]
    restore_class: type[arguments.CheckpointArgs]

    def __init__(self, *options: Any, **named: Any) -> None:
        del options, named


class StandardCheckpointHandler(_KindOfItem):
    """The handler of trees."""

    save_class = arguments.StandardSave
    restore_class = arguments.StandardRestore


class PyTreeCheckpointHandler(_KindOfItem):
    """The handler of trees, with arguments for each leaf."""

    save_class = arguments.PyTreeSave
    restore_class = arguments.PyTreeRestore


class ArrayCheckpointHandler(_KindOfItem):
    """The handler of single arrays."""

    save_class = arguments.ArraySave
    restore_class = arguments.ArrayRestore


class JsonCheckpointHandler(_KindOfItem):
    """The handler of values that JSON holds."""

    save_class = arguments.JsonSave
    restore_class = arguments.JsonRestore


class CompositeCheckpointHandler(CheckpointHandler):
    """The handler of several items by name.

    Args:
        item_names: the names of items; each may be any kind.
        handlers: handlers by the names of items.
    """

    def __init__(self, *item_names: str, **handlers: CheckpointHandler) -> None:
        self.handlers = {**dict.fromkeys(item_names), **handlers}


def arguments_for(
    handler: object, values: tuple[Any, ...], named: dict[str, Any], *, for_save: bool
) -> Any:
    """Return the arguments of a legacy call for a handler: one of the values, or made of them.

    Args:
        handler: the handler.
        values: the positional arguments of the call, after the place.
        named: the others.
        for_save: True for a call of `save`, False for one of `restore`.
    """
    for value in (*values, *named.values()):
        if isinstance(value, arguments.CheckpointArgs | arguments.Composite) or (
            arguments.handler_class_of(value) is not None
        ):
            return value
    made = getattr(handler, "save_class" if for_save else "restore_class", None)
    if made is None:
        if len(values) + len(named) == 1:
            return next(iter((*values, *named.values())))
        raise ValueError(
            f"{type(handler).__name__}: expected args=, such as args=args.Composite(...)"
        )
    return made(*values, **named)


def is_users(handler: object) -> bool:
    """Return True for a handler that a user wrote. Raises TypeError if it has no such methods."""
    if handler is None or isinstance(handler, CompositeCheckpointHandler):
        return False
    kind: Any = type(handler)
    if isinstance(handler, _KindOfItem) and (kind.save, kind.restore) == _INHERITED:
        return False
    missing = [name for name in ("save", "restore") if not callable(getattr(handler, name, None))]
    if missing:
        raise TypeError(
            f"{type(handler).__name__} has no {' and no '.join(missing)}: a handler of yours needs "
            "save(directory, args) and restore(directory, args)"
        )
    return True
