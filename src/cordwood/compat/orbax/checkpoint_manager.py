"""CheckpointManager with the calls of Orbax, over the manager of cordwood."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cordwood.compat.orbax.args import CheckpointArgs, Composite, handler_class_of
from cordwood.compat.orbax.checkpoint_manager_options import CheckpointManagerOptions
from cordwood.compat.orbax.checkpointers import Checkpointer, is_async
from cordwood.compat.orbax.handlers import (
    CheckpointHandler,
    PyTreeCheckpointHandler,
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
from cordwood.compat.orbax.preservation_policy import OrbaxKeepPolicy
from cordwood.compat.orbax.save_decision_policy import OrbaxSavePolicy
from cordwood.compat.orbax.stored_items import StoredItems, restore_items, stored_items
from cordwood.errors import StepError
from cordwood.formats.step_names import step_number
from cordwood.manager.manager import CheckpointManager as Manager
from cordwood.manager.missing_steps import finished_step
from cordwood.manager.save_report import SaveReport
from cordwood.manager.step import Step
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.saving.background_saves import PendingSave
from cordwood.storage.directories import make_ancestors
from cordwood.storage.locations import LocalPath, parse_location
from cordwood.storage.paths import absolute_path


class StepAlreadyExistsError(StepError):
    """A step that exists was to be saved again."""


class CheckpointManager:
    """The steps of a run, with the calls of `orbax.checkpoint.CheckpointManager`.

    It saves steps of cordwood, and restores them and those that Orbax saved in the same root.

    Args:
        directory: the root; a relative path too, or a URL.
        checkpointers: the legacy form: a checkpointer, or several by the names of their items.
        options: when to save and which steps to keep.
        item_names: has no effect: each call names its items.
        item_handlers: handlers by the names of items, or one for the only item. Handlers of yours
            save and restore with `save(directory, args)` and `restore(directory, args)`.
        logger: has no effect: the logger is `cordwood`.
        handler_registry: not taken: pass `item_handlers`.
        metadata: not taken: save it as an item, by `args.JsonSave`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        checkpointers: Checkpointer | Mapping[str, Checkpointer] | None = None,
        options: CheckpointManagerOptions | None = None,
        metadata: Mapping[str, Any] | None = None,
        item_names: Any = None,
        item_handlers: CheckpointHandler | Mapping[str, CheckpointHandler] | None = None,
        logger: Any = None,
        handler_registry: Any = None,
    ) -> None:
        del logger, item_names
        if metadata is not None or handler_registry is not None:
            raise TypeError(
                "CheckpointManager: metadata= is not taken: save it with each step, as "
                "args.Composite(state=..., meta=args.JsonSave(metadata)); nor is "
                "handler_registry=: pass item_handlers={name: handler}"
            )
        options = options or CheckpointManagerOptions()
        background = options.enable_async_checkpointing
        self._is_legacy = checkpointers is not None
        self._kinds, self._single = (
            _kinds_of(item_handlers),
            None if item_handlers is None else (not isinstance(item_handlers, Mapping)),
        )
        if checkpointers is not None:
            by_name = _by_name(checkpointers)
            background = any(map(is_async, by_name.values()))
            self._kinds = {name: each.handler for name, each in by_name.items()}
            self._single = isinstance(checkpointers, Checkpointer)
        self._handlers = {name: each for name, each in self._kinds.items() if is_users(each)}
        self._options = options
        self._failure: BaseException | None = None
        self._pending: PendingSave | None = None
        self._root = parse_location(directory)
        if options.create and isinstance(self._root, LocalPath) and not options.read_only:
            make_ancestors(absolute_path(self._root).text, [])
        seconds = TIMEOUT_SECONDS
        callback = None
        if options.async_options is not None:
            seconds = options.async_options.timeout_secs
            callback = options.async_options.post_finalization_callback
        self._callback = callback
        self._manager = Manager(
            directory,
            save=OrbaxSavePolicy(options.when_to_save()),
            keep=OrbaxKeepPolicy(options.what_to_keep()),
            background=background,
            orbax=isinstance(self._root, LocalPath),  # links are not possible in object stores
            on_save=None if callback is None else self._call_back,
            timeout_seconds=seconds,
        )
        self._steps, self._group = self._manager._steps, self._manager._group

    def _call_back(self, report: SaveReport) -> None:
        del report
        if self._callback is not None:
            self._callback()

    @property
    def directory(self) -> Path | str:
        """The root: an absolute path, or a URL as text."""
        if isinstance(self._root, LocalPath):
            return Path(absolute_path(self._root))
        return str(self._root)

    def save(
        self,
        step: int,
        items: Any = None,
        save_kwargs: Any = None,
        metrics: Any = None,
        force: bool | None = False,
        args: Any = None,
        custom_metadata: Any = None,
    ) -> bool:
        """Save a step if the options ask for it; return False if they do not, or it exists.

        Args:
            step: its number.
            items: the legacy form: the tree, or trees by the names of their items.
            save_kwargs: the legacy form: `{"save_args": ...}`, or that by the names of items.
            metrics: numbers by name.
            force: save whatever the options say.
            args: `args.StandardSave(tree)` and the like, or a `Composite` of several.
            custom_metadata: not taken: save it as an item, by `args.JsonSave`.

        Raises:
            ValueError: the arguments do not fit together; or with `force`, the step exists.
            Others: as `cordwood.CheckpointManager.save`; the failure of the save before too.
        """
        refuse_custom_metadata(custom_metadata)
        by_name = self._arguments(items, save_kwargs, args, for_save=True)
        if self._options.read_only or (not force and not self.should_save(step)):
            return False
        self.save_items(step, by_name, metrics)
        return True

    def save_items(
        self, step: int, by_name: Mapping[str, Any], metrics: Any, *, overwrite: bool = False
    ) -> None:
        """Save a step whatever the options say, from the arguments of each item by name.

        `overwrite` says that the step exists, and is to be replaced. Raises as `save`.
        """
        self.wait_until_finished()
        number = step_number(step)
        existing = None if overwrite else self._steps.at(number)
        if existing is not None and existing.whole:
            raise StepAlreadyExistsError(f"Checkpoint for step {number} already exists.")
        stored = items_to_store(by_name, self._handlers, self._group)
        (name, tree), *others = stored.trees.items() or [(NO_TREE, {})]
        self._pending = self._manager.save(
            number,
            tree,
            prefix=None if name == DEFAULT_ITEM else name,
            metrics=metrics,
            extras=dict(stored.json) or None,
            items={**dict(others), **stored.states} or None,
            force=True,
            overwrite=overwrite,
        )

    def restore(
        self,
        step: int | None,
        items: Any = None,
        restore_kwargs: Any = None,
        directory: str | os.PathLike[str] | None = None,
        args: Any = None,
    ) -> Any:
        """Restore a step, or with None the latest.

        Args:
            step: its number.
            items: the legacy form: the target tree, or targets by the names of their items.
            restore_kwargs: the legacy form: `{"restore_args": ...}`, or that by names.
            directory: another root.
            args: `args.StandardRestore(target)` and the like, or a `Composite` of several.

        Returns the item, or with several a `Composite` of them.

        Raises:
            FileNotFoundError: there is no such step.
            KeyError: the step has no item of that name.
            ValueError: names or shapes of the target differ.
        """
        if directory is not None:
            with CheckpointManager(
                directory, options=CheckpointManagerOptions(read_only=True, create=False)
            ) as other:
                other._kinds, other._handlers = self._kinds, self._handlers
                other._single = self._single
                return other.restore(step, items, restore_kwargs, None, args)
        self._wait_quietly()
        if step is None:
            step = self._manager.latest()
            if step is None:
                raise FileNotFoundError(f"No steps found in {self._manager.root}.")
        stored = self._items_at(step)
        if self._single is None:
            self._single = stored.is_single if args is None else not isinstance(args, Composite)
        requests = self._arguments(items, restore_kwargs, args, for_save=False)
        if not requests:
            requests = dict.fromkeys([DEFAULT_ITEM] if self._single else stored.names)
        values = restore_items(stored, requests, self._handlers, self._group)
        return values[DEFAULT_ITEM] if self._single else Composite(**values)

    def restore_items(self, step: int, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return items of a step by name, from the arguments of each. Raises as `restore`."""
        self._wait_quietly()
        return restore_items(self._items_at(step), requests, self._handlers, self._group)

    def _arguments(self, items: Any, keywords: Any, args: Any, *, for_save: bool) -> dict[str, Any]:
        """Return the arguments of each item by name, from either form of a call.

        Raises ValueError if they do not fit together.
        """
        if isinstance(items, CheckpointArgs | Composite):
            raise ValueError("expected the arguments by the keyword: args=args.StandardSave(tree)")
        if for_save and items is None and args is None:
            raise ValueError("save: expected args=, such as args=args.StandardSave(tree)")
        if args is not None:
            is_several = isinstance(args, Composite)
            if not is_several and not _is_arguments(args):
                raise ValueError(
                    "args=: expected arguments such as args.StandardSave(tree), found "
                    f"{type(args).__name__}"
                )
            if self._single is None:
                self._single = not is_several
            if self._single and is_several:
                raise ValueError(
                    "args=: found a Composite, and this manager has one item without a name"
                )
            if not self._single and not is_several:
                raise ValueError(
                    "args=: expected args.Composite(name=...), because this manager has several "
                    f"items, found {type(args).__name__}"
                )
            if for_save and is_several and DEFAULT_ITEM in args:
                raise ValueError(
                    f"args=: {DEFAULT_ITEM!r} is the item without a name: save it alone, or give "
                    "it another name"
                )
            return dict(args.items()) if is_several else {DEFAULT_ITEM: args}
        if self._single is None:
            self._single = for_save
        if self._single:
            items = None if items is None and keywords is None else {DEFAULT_ITEM: items}
            keywords = {DEFAULT_ITEM: keywords}
        names = dict.fromkeys([*(items or {}), *(keywords or {} if items is not None else {})])
        return {
            name: arguments_for(
                self._kinds.get(name) or PyTreeCheckpointHandler(),
                ((items or {}).get(name),),
                dict((keywords or {}).get(name) or {}),
                for_save=for_save,
            )
            for name in names
        }

    def should_save(self, step: int) -> bool:
        """Return True if `save` would save that step."""
        if self._options.read_only:
            return False
        number = step_number(step)
        if self._manager.should_save(number):
            return True
        if not self.reached_preemption(number):
            return False
        last = self._manager.latest()
        return last is None or last < number

    def reached_preemption(self, step: int) -> bool:
        """Return True if JAX says that the job is preempted and all processes are at this step."""
        if self._group.count == 1:
            return False
        from jax.experimental import multihost_utils

        try:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        except RuntimeError:  # the service is off
            return False

    def all_steps(self, read: bool = False) -> list[int]:
        """Return the numbers of the steps, increasing, once the running save has ended."""
        del read
        self._wait_quietly()
        return self._manager.steps()

    def latest_step(self) -> int | None:
        """Return the number of the newest step, once the running save has ended; None: no step."""
        self._wait_quietly()
        return self._manager.latest()

    def best_step(self) -> int | None:
        """Return the step with the best `best_fn`; None if none has metrics."""
        best_fn = self._options.best_fn
        if best_fn is None:
            return self.latest_step()
        sign = -1.0 if self._options.best_mode == "min" else 1.0
        metrics = {step: self._manager.metrics(step) for step in self.all_steps()}
        ranked = [(sign * float(best_fn(each)), step) for step, each in metrics.items() if each]
        return max(ranked)[1] if ranked else None

    def metrics(self, step: int) -> dict[str, float] | None:
        """Return the metrics of a step; None if it has none."""
        self._wait_quietly()
        return self._manager.metrics(step) or None

    def item_metadata(self, step: int) -> Any:
        """Return shapes and dtypes of the item of a step, or a `Composite` for several."""
        return self.metadata(step).item_metadata

    def metadata(self, step: int | None = None) -> StepMetadata:
        """Return the metadata of a step; without a number, that of the root, which is empty."""
        if step is None:
            return StepMetadata()
        self._wait_quietly()
        entry = self._step_at(step)
        stored = stored_items(entry.location, entry.record)
        single = stored.is_single if self._single is None else self._single
        saved = entry.saved
        nanoseconds = None if saved is None else int(saved.time * 1e9)
        return StepMetadata(
            metadata_of_items(stored, single=single),
            entry.metrics,
            commit_timestamp_nsecs=nanoseconds,
        )

    def _step_at(self, step: int) -> Step:
        entry = finished_step(self._steps, step_number(step))
        entry.require_known()
        return entry

    def _items_at(self, step: int) -> StoredItems:
        entry = self._step_at(step)
        return stored_items(entry.location, entry.record)

    def names_at(self, step: int) -> list[str]:
        """Return the names of the items of a step, sorted."""
        self._wait_quietly()
        return self._items_at(step).names

    def is_saving_in_progress(self) -> bool:
        """Return True while a step is being saved."""
        return self._pending is not None and not self._pending.done

    def wait_until_finished(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        self._wait_quietly()
        self.check_for_errors()

    def check_for_errors(self) -> None:
        """Raise the exception of a save that failed, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _wait_quietly(self) -> None:
        """Wait for the running save, and keep its exception for `check_for_errors`."""
        try:
            self._manager.wait()
        except Exception as e:  # noqa: BLE001  (raised by the next call that waits)
            self._failure = e

    def delete(self, step: int) -> None:
        """Delete a step, of Orbax too. Raises FileNotFoundError if there is none."""
        if self._options.read_only:
            return
        self._wait_quietly()
        entry = self._steps.at(step_number(step))
        if entry is not None and entry.is_of_another_tool:
            self._group.agree(
                f"delete step {step} of", lambda: remove(plan_removal(str(entry.location)))
            )
            return
        self._manager.delete(step)

    def reload(self) -> None:
        """Do nothing: every call lists the root again."""

    def close(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        self._wait_quietly()
        self._manager.close()
        self.check_for_errors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._manager.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"CheckpointManager({self._manager.root!r}, options={self._options!r})"


def _is_arguments(args: object) -> bool:
    """Return True for arguments of an item, also of Grain or of a user's handler."""
    return (
        isinstance(args, CheckpointArgs)
        or handler_class_of(args) is not None
        or type(args).__name__ in ("CheckpointSave", "CheckpointRestore")
    )


def _kinds_of(handlers: Any) -> dict[str, Any]:
    if handlers is None:
        return {}
    return dict(handlers) if isinstance(handlers, Mapping) else {DEFAULT_ITEM: handlers}


def _by_name(checkpointers: Any) -> dict[str, Checkpointer]:
    """Return checkpointers by the names of their items. Raises ValueError for other values."""
    by_name = checkpointers
    if not isinstance(checkpointers, Mapping):
        by_name = {DEFAULT_ITEM: checkpointers}
    for name, each in by_name.items():
        if not isinstance(each, Checkpointer):
            raise ValueError(
                f"checkpointers: {name}: expected a Checkpointer such as PyTreeCheckpointer(), "
                f"found {each!r:.80}"
            )
    return dict(by_name)
