"""Steps of a run, as `orbax.checkpoint.v1.training` has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cordwood.compat.orbax import preservation_policy as preservation_policies
from cordwood.compat.orbax import save_decision_policy as save_decision_policies
from cordwood.compat.orbax.checkpoint_manager import CheckpointManager
from cordwood.compat.orbax.checkpoint_manager_options import CheckpointManagerOptions
from cordwood.compat.orbax.experimental.v1.checkpointables import (
    STATE,
    AsyncResponse,
    as_restore_arguments,
    as_save_arguments,
    stored_names,
)
from cordwood.compat.orbax.items_to_store import refuse_custom_metadata
from cordwood.errors import StepError

__all__ = [
    "CheckpointMetadata",
    "Checkpointer",
    "StepAlreadyExistsError",
    "StepNotFoundError",
    "preservation_policies",
    "save_decision_policies",
]


class StepAlreadyExistsError(StepError, FileExistsError):
    """A step that exists was to be saved without `overwrite=True`."""


class StepNotFoundError(FileNotFoundError):
    """There is no such step."""


@dataclass
class CheckpointMetadata:
    """A step, or a single checkpoint: its number, place, metrics, and metadata of its trees."""

    step: int | None
    path: str | os.PathLike[str]
    metadata: Any = None
    metrics: Any = None
    commit_timestamp_nsecs: int | None = None


class Checkpointer:
    """The steps of a run.

    Args:
        directory: the root.
        save_decision_policy: when to save; None: whenever no save is running.
        preservation_policy: which steps to keep; None: all.
        cleanup_tmp_directories: has no effect.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        save_decision_policy: save_decision_policies.SaveDecisionPolicy | None = None,
        preservation_policy: preservation_policies.PreservationPolicy | None = None,
        cleanup_tmp_directories: bool = False,
    ) -> None:
        del cleanup_tmp_directories
        default = save_decision_policies.ContinuousCheckpointingPolicy()
        self._manager = CheckpointManager(
            directory,
            options=CheckpointManagerOptions(
                save_decision_policy=save_decision_policy or default,
                preservation_policy=preservation_policy or preservation_policies.PreserveAll(),
            ),
        )

    @property
    def directory(self) -> Path | str:
        """The root: an absolute path, or a URL as text."""
        return self._manager.directory

    @property
    def checkpoints(self) -> list[CheckpointMetadata]:
        """The steps, by increasing number."""
        return [self._described(step) for step in self._manager.all_steps()]

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The newest step; None if there is none."""
        step = self._manager.latest_step()
        return None if step is None else self._described(step)

    def _described(self, step: int) -> CheckpointMetadata:
        metrics = self._manager.metrics(step)
        root = self.directory
        path = root / str(step) if isinstance(root, Path) else f"{root}/{step}"
        return CheckpointMetadata(step, path, metrics=metrics)

    def should_save(self, step: int) -> bool:
        """Return True if `save` would save that step."""
        return self._manager.should_save(step)

    def save(
        self,
        step: int,
        state: Any,
        *,
        checkpointable_name: str = STATE,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> bool:
        """Save a tree as a step, and wait for it; return False if the policy does not ask for it.

        Args:
            step: its number.
            state: the tree.
            checkpointable_name: the name of the tree in the step.
            force: save whatever the policy says.
            overwrite: replace the step of that number, if there is one, whatever the policy says.
            metrics: numbers by name.
            custom_metadata: not taken: save it as a checkpointable.

        Raises StepAlreadyExistsError without `overwrite` if the step exists, and StepError with it
        if a newer one does.
        """
        response = self.save_async(
            step,
            state,
            checkpointable_name=checkpointable_name,
            force=force,
            overwrite=overwrite,
            metrics=metrics,
            custom_metadata=custom_metadata,
        )
        return response is not None and bool(response.result())

    def save_async(
        self, step: int, state: Any, *, checkpointable_name: str = STATE, **options: Any
    ) -> AsyncResponse | None:
        """Begin to save a tree as a step; None if the policy does not ask for it."""
        return self.save_checkpointables_async(step, {checkpointable_name: state}, **options)

    def save_checkpointables(
        self, step: int, checkpointables: Mapping[str, Any], **options: Any
    ) -> bool:
        """Save several trees by name as a step; arguments and result as of `save`."""
        response = self.save_checkpointables_async(step, checkpointables, **options)
        return response is not None and bool(response.result())

    def save_checkpointables_async(
        self,
        step: int,
        checkpointables: Mapping[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> AsyncResponse | None:
        """Begin to save several trees by name as a step; None if the policy does not ask for it."""
        refuse_custom_metadata(custom_metadata)
        exists = step in self._manager.all_steps()
        if exists and not overwrite:
            raise StepAlreadyExistsError(f"Step {step} already exists.")
        if not exists and not force and not self._manager.should_save(step):
            return None
        items = as_save_arguments(checkpointables)
        self._manager.save_items(step, items, metrics, overwrite=exists)
        return AsyncResponse(self._manager.wait_until_finished, True)

    def load(
        self,
        step: int | CheckpointMetadata | None = None,
        abstract_state: Any = None,
        *,
        checkpointable_name: str = STATE,
    ) -> Any:
        """Load the tree of a step, also of one that Orbax saved.

        Args:
            step: its number; None: the newest.
            abstract_state: a tree of `jax.ShapeDtypeStruct`s or arrays; None: as it was saved.
            checkpointable_name: the name of the tree.

        Raises StepNotFoundError if there is no such step; ValueError where names or shapes differ.
        """
        loaded = self.load_checkpointables(step, {checkpointable_name: abstract_state})
        return loaded[checkpointable_name]

    def load_checkpointables(
        self,
        step: int | CheckpointMetadata | None = None,
        abstract_checkpointables: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Load several trees of a step by name; with None all of them, as they were saved."""
        number = self._number(step)
        names = self._manager.names_at(number)
        if abstract_checkpointables is None:
            abstract_checkpointables = dict.fromkeys(names)
        stored = stored_names(abstract_checkpointables, names)
        requests = {
            stored[name]: as_restore_arguments(target)
            for name, target in abstract_checkpointables.items()
        }
        loaded = self._manager.restore_items(number, requests)
        return {name: loaded[stored[name]] for name in abstract_checkpointables}

    def _number(self, step: int | CheckpointMetadata | None) -> int:
        """Return the number of a step that exists. Raises StepNotFoundError."""
        number = step.step if isinstance(step, CheckpointMetadata) else step
        steps = self._manager.all_steps()
        if number is None and steps:
            return steps[-1]
        if number is None or number not in steps:
            raise StepNotFoundError(
                f"there is no step {'' if number is None else number} in {self.directory}"
            )
        return number

    def metadata(self, step: int | CheckpointMetadata | None = None) -> CheckpointMetadata:
        """Return a step with shapes and dtypes of its tree."""
        number = self._number(step)
        described = self._described(number)
        described.metadata = self._manager.metadata(number).item_metadata
        return described

    def delete(self, step: int | CheckpointMetadata, *, missing_ok: bool = False) -> bool:
        """Delete a step; return False if `missing_ok` and there is none."""
        try:
            self._manager.delete(self._number(step))
        except FileNotFoundError:
            if not missing_ok:
                raise
            return False
        return True

    def reload(self) -> None:
        """Do nothing: every call lists the root again."""

    def is_saving_in_progress(self) -> bool:
        """Return True while a step is being saved."""
        return self._manager.is_saving_in_progress()

    def wait(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for the running save; raise its exception if it failed."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._manager.__exit__(kind, error, trace)
