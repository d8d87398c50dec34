"""Checkpointers: save and restore one checkpoint at a path, with the calls of Orbax."""

from __future__ import annotations

import json
import os
from typing import Any, Self

from cordwood.api.save_async import start_save
from cordwood.compat.orbax.args import Composite, PyTreeRestore, StandardRestore, StandardSave
from cordwood.compat.orbax.checkpoint_to_replace import checkpoint_to_replace
from cordwood.compat.orbax.handlers import (
    CheckpointHandler,
    CompositeCheckpointHandler,
    PyTreeCheckpointHandler,
    StandardCheckpointHandler,
    arguments_for,
    is_users,
)
from cordwood.compat.orbax.item_metadata import StepMetadata, metadata_of_items
from cordwood.compat.orbax.items_to_store import (
    DEFAULT_ITEM,
    NO_TREE,
    items_to_store,
    refuse_custom_metadata,
)
from cordwood.compat.orbax.stored_items import JSON_KEY, NAME_KEY, restore_items, stored_items
from cordwood.errors import UnsupportedLeafError
from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.table import DEFAULT, Format
from cordwood.io.memory.staging_memory import checked_options
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.saving.background_saves import PendingSave
from cordwood.storage.locations import LocalPath, Location, parse_location
from cordwood.threads.run_in_worker import run_in_worker


class Checkpointer:
    """Saves and restores one checkpoint at a path, and waits for each save.

    Args:
        handler: the kind of item, such as `StandardCheckpointHandler()`, or a handler of yours.
        options: options of Orbax, which have no effect.
    """

    def __init__(self, handler: CheckpointHandler, **options: Any) -> None:
        self.handler = handler
        self._timeout_seconds = _seconds_in(options)
        self._pending: PendingSave | None = None
        is_users(handler)

    def save(
        self,
        directory: str | os.PathLike[str],
        *values: Any,
        force: bool = False,
        custom_metadata: Any = None,
        **named: Any,
    ) -> None:
        """Save a checkpoint.

        Args:
            directory: the destination.
            values: the item, or its arguments, such as `args.StandardSave(tree)`.
            force: replace what is there, if it is a checkpoint, and no run.
            custom_metadata: not taken: save it as an item of a `Composite`, by `args.JsonSave`.
            named: `args=`, or the fields of the arguments.

        Raises ValueError if there is something at `directory`.
        """
        refuse_custom_metadata(custom_metadata)
        self.wait_until_finished()
        location = parse_location(directory)
        value = arguments_for(self.handler, values, named, for_save=True)
        items, handlers = self._items(value)
        group = ProcessGroup(str(location), self._timeout_seconds)
        stored = items_to_store(items, handlers, group)
        if stored.states:
            raise UnsupportedLeafError(
                f"{', '.join(stored.states)}: states of iterators are saved by a CheckpointManager"
            )
        with group.rendezvous("look at the destination of") as processes:
            replaced = None
            if processes.index == 0:
                replaced = checkpoint_to_replace(location, force=force)
            is_replacing = processes.exchange(None, lambda _: replaced is not None)
        (name, tree), *others = stored.trees.items() or [(NO_TREE, {})]
        metadata = {} if name == DEFAULT_ITEM else {NAME_KEY: name}
        orbax = isinstance(location, LocalPath) and bool(stored.trees)
        if stored.json:
            metadata[JSON_KEY] = json.dumps(stored.json)
        self._pending = run_in_worker(
            lambda: start_save(
                location,
                tree,
                SaveOptions(items=dict(others), replaces=replaced),
                metadata,
                format=DEFAULT if is_replacing else _format_of_new(location),
                orbax=orbax and metadata.get(NAME_KEY, True),
                staging=checked_options(None, False),
                progress=None,
                timeout_seconds=self._timeout_seconds,
            )
        )
        self._pending._let_begin()
        if not is_async(self):
            self.wait_until_finished()

    def restore(self, directory: str | os.PathLike[str], *values: Any, **named: Any) -> Any:
        """Restore a checkpoint, also one that Orbax wrote.

        Args:
            directory: the checkpoint.
            values: the target, or arguments such as `args.StandardRestore(target)`.
            named: `args=`, or the fields of the arguments.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: names or shapes of the target differ.
        """
        self.wait_until_finished()
        location = parse_location(directory)
        stored = stored_items(location, None)
        if isinstance(self.handler, CompositeCheckpointHandler):
            value = {}
            if values or named:
                value = arguments_for(self.handler, values, named, for_save=False)
            requests = dict(value.items()) or dict.fromkeys(stored.names)
            _, handlers = self._items(Composite(**requests))
        else:
            value = arguments_for(self.handler, values, named, for_save=False)
            requests, handlers = self._items(value)
            if DEFAULT_ITEM not in stored.trees and len(stored.names) == 1:
                requests = {stored.names[0]: value}
        group = ProcessGroup(str(location), self._timeout_seconds)
        restored = restore_items(stored, requests, handlers, group)
        if isinstance(self.handler, CompositeCheckpointHandler):
            return Composite(**restored)
        return next(iter(restored.values()))

    def _items(self, value: Any) -> tuple[dict[str, Any], dict[str, CheckpointHandler]]:
        """Return the arguments of each item by name, and the user's handlers of items."""
        if isinstance(self.handler, CompositeCheckpointHandler):
            if not isinstance(value, Composite):
                raise ValueError(f"expected args.Composite(name=...), found {type(value).__name__}")
            handlers = {
                name: each
                for name, each in self.handler.handlers.items()
                if each is not None and is_users(each)
            }
            return dict(value.items()), handlers
        users = {DEFAULT_ITEM: self.handler} if is_users(self.handler) else {}
        return {DEFAULT_ITEM: value}, users

    def metadata(self, directory: str | os.PathLike[str]) -> StepMetadata:
        """Return shapes and dtypes of a checkpoint. Raises FileNotFoundError if there is none."""
        self.wait_until_finished()
        stored = stored_items(parse_location(directory), None)
        single = not isinstance(self.handler, CompositeCheckpointHandler)
        return StepMetadata(metadata_of_items(stored, single=single and stored.is_single))

    def wait_until_finished(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def check_for_errors(self) -> None:
        """Raise the exception of a save that failed."""
        if self._pending is not None and self._pending.done:
            self.wait_until_finished()

    def close(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        self.wait_until_finished()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class AsyncCheckpointer(Checkpointer):
    """Saves one checkpoint at a path, in the background."""


class StandardCheckpointer(AsyncCheckpointer):
    """Saves one tree at a path, in the background."""

    def __init__(self, **options: Any) -> None:
        super().__init__(StandardCheckpointHandler(), **options)

    def save(  # type: ignore[override]
        self,
        directory: str | os.PathLike[str],
        state: Any,
        *,
        save_args: Any = None,
        force: bool = False,
        custom_metadata: Any = None,
    ) -> None:
        """Begin to save a tree; `wait_until_finished`, `close` and the next call wait for it.

        Args:
            directory: the destination.
            state: the tree.
            save_args: a tree of `SaveArgs`, whose dtypes cast the leaves.
            force: replace what is there, if it is a checkpoint, and no run.
            custom_metadata: not taken.

        Raises ValueError if there is something at `directory`.
        """
        value = StandardSave(state, save_args)
        super().save(directory, args=value, force=force, custom_metadata=custom_metadata)

    def restore(
        self, directory: str | os.PathLike[str], target: Any = None, *, strict: bool = True
    ) -> Any:
        """Restore a tree as `target` is one; None: as it was saved.

        Raises ValueError where names differ, or with `strict` shapes.
        """
        return super().restore(directory, args=StandardRestore(target, strict=strict))


class PyTreeCheckpointer(Checkpointer):
    """Saves one tree at a path, and waits for it."""

    def __init__(self, primary_host: int | None = 0, **options: Any) -> None:
        del primary_host
        super().__init__(PyTreeCheckpointHandler(), **options)

    def restore(self, directory: str | os.PathLike[str], *values: Any, **named: Any) -> Any:
        """Restore a tree.

        Args:
            directory: the checkpoint.
            values: the target, the tree of `RestoreArgs`, and transforms.
            named: `item=`, `restore_args=`, `transforms=`; or `args=args.PyTreeRestore(...)`.

        Raises as `Checkpointer.restore`.
        """
        if not values and not named:
            return super().restore(directory, args=PyTreeRestore())
        return super().restore(directory, *values, **named)


def is_async(checkpointer: object) -> bool:
    """Return True for a checkpointer that saves in the background."""
    return isinstance(checkpointer, AsyncCheckpointer)


def _seconds_in(options: dict[str, Any]) -> float:
    """Return the time-out among the options of a checkpointer."""
    async_options = options.get("async_options")
    given = options.get("timeout_secs", getattr(async_options, "timeout_secs", None))
    return TIMEOUT_SECONDS if given is None else float(given)


def _format_of_new(location: Location) -> Format:
    return format_for_saving(location, format=DEFAULT.name, prefix=None)
