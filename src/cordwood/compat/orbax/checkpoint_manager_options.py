"""CheckpointManagerOptions: when a manager saves and which steps it keeps, as Orbax's has it."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

from cordwood.compat.orbax import preservation_policy as keeping
from cordwood.compat.orbax import save_decision_policy as saving
from cordwood.did_you_mean import nearest_name

T = TypeVar("T")

_NUMBERS = (
    "leave it out: {0} is read, and new steps are named by their numbers. If Orbax is to read all "
    "steps too, rename the old ones (mv run/{0} run/100), and leave it out there"
)

# Fields of Orbax's options that this class does not have, and what to do instead.
_OTHER_FIELDS = {
    "atomicity_options": "leave it out: every step is committed atomically",
    "enable_per_process_directory_creation": "leave it out: directories are made by one process",
    "enable_should_save_is_saving_in_progress_check": "leave it out",
    "file_options": "leave it out: files get the permissions of the process (umask)",
    "lightweight_initialize": "leave it out: nothing is read until it is needed",
    "multiprocessing_options": "leave it out: all processes of jax.distributed save together",
    "num_deletion_threads": "leave it out",
    "prevent_write_metrics": "leave metrics= of save out",
    "save_root_metadata": "leave it out: a root has no metadata of its own",
    "single_host_load_and_broadcast": "leave it out: each process reads what its devices need",
    "step_format_fixed_length": _NUMBERS.format("0100"),
    "step_name_format": _NUMBERS.format("ckpt_100"),
    "step_prefix": _NUMBERS.format("ckpt_100"),
    "temporary_path_class": "leave it out: every step is committed atomically",
    "todelete_full_path": "use cordwood copy before a step is deleted",
    "todelete_subdir": "use cordwood copy before a step is deleted",
}


@dataclass
class AsyncOptions:
    """Options of saves in the background.

    Attributes:
        timeout_secs: how long to wait for other processes that are late but alive.
        create_directories_asynchronously: has no effect.
        post_finalization_callback: called without arguments after each commit.
    """

    timeout_secs: int = 600
    barrier_sync_fn: Any = None
    post_finalization_callback: Callable[[], None] | None = None
    create_directories_asynchronously: bool = True


def _refusing_other_fields(cls: type[T]) -> type[T]:
    """Let the constructor of a dataclass say what to do instead of a field that it lacks."""
    construct: Any = cls.__init__

    @wraps(construct)
    def checked(self: Any, *values: Any, **named: Any) -> None:
        for name in named.keys() - cls.__annotations__.keys():
            close = nearest_name(name, cls.__annotations__)
            hint = _OTHER_FIELDS.get(name) or (f"did you mean {close!r}?" if close else "")
            raise TypeError(f"{cls.__name__} has no field {name!r}" + (f"; {hint}" if hint else ""))
        construct(self, *values, **named)

    setattr(cls, "__init__", checked)  # noqa: B010
    return cls


@_refusing_other_fields
@dataclass
class CheckpointManagerOptions:
    """When a manager saves, and which steps it keeps.

    Attributes:
        save_interval_steps: save the multiples of this number, and the first step.
        max_to_keep: keep that many of the newest steps, or of the best; None: all.
        keep_time_interval: keep also steps that lie that far apart in time.
        keep_period: keep also the multiples of this number.
        best_fn: the quality of a step, from its metrics.
        best_mode: "max" or "min": which quality is best.
        keep_checkpoints_without_metrics: with `best_fn`, keep all steps without metrics.
        create: make the root directory.
        cleanup_tmp_directories: has no effect: a manager removes what killed saves of cordwood
            have left. It does not remove temporary directories of Orbax.
        save_on_steps: save also these steps.
        should_save_fn: called with a step and the last one (or None); True saves it. Then
            `save_interval_steps` and `save_on_steps` do not count.
        enable_background_delete: has no effect: steps are deleted in the background.
        read_only: save and delete nothing.
        enable_async_checkpointing: save in the background.
        async_options: options of saves in the background.
        save_decision_policy: takes the place of the fields that say when to save.
        preservation_policy: takes the place of the fields that say which steps to keep.
    """

    save_interval_steps: int = 1
    max_to_keep: int | None = None
    keep_time_interval: timedelta | None = None
    keep_period: int | None = None
    best_fn: Callable[[Any], float] | None = None
    best_mode: str = "max"
    keep_checkpoints_without_metrics: bool = True
    create: bool = True
    cleanup_tmp_directories: bool = False
    save_on_steps: Container[int] | None = None
    enable_background_delete: bool = False
    read_only: bool = False
    enable_async_checkpointing: bool = True
    async_options: AsyncOptions | None = None
    should_save_fn: Callable[[int, int | None], bool] | None = None
    save_decision_policy: saving.SaveDecisionPolicy | None = None
    preservation_policy: keeping.PreservationPolicy | None = None

    def __post_init__(self) -> None:
        if self.best_mode not in ("min", "max"):
            raise ValueError(f"best_mode: expected 'min' or 'max', found {self.best_mode!r}")
        if self.preservation_policy is None and (self.max_to_keep or 0) < 0:
            raise ValueError(f"max_to_keep: expected None or at least 0, found {self.max_to_keep}")
        if self.preservation_policy is not None and (
            self.keep_time_interval or self.max_to_keep or self.keep_period
        ):
            raise ValueError(
                "preservation_policy: expected it without max_to_keep, keep_period and "
                "keep_time_interval, which say the same"
            )

    def when_to_save(self) -> saving.SaveDecisionPolicy:
        """Return the policy that says when to save."""
        if self.save_decision_policy is not None:
            return self.save_decision_policy
        if self.should_save_fn is not None:
            return saving.ShouldSaveFunctionPolicy(self.should_save_fn)
        policies: list[saving.SaveDecisionPolicy] = [saving.InitialSavePolicy()]
        if self.save_interval_steps:
            policies.append(saving.FixedIntervalPolicy(self.save_interval_steps))
        if self.save_on_steps is not None:
            policies.append(saving.SpecificStepsPolicy(self.save_on_steps))
        return saving.AnySavePolicy(policies)

    def what_to_keep(self) -> keeping.PreservationPolicy:
        """Return the policy that says which steps to keep."""
        if self.preservation_policy is not None:
            return self.preservation_policy
        policies: list[keeping.PreservationPolicy] = []
        if self.keep_period is not None:
            policies.append(keeping.EveryNSteps(self.keep_period))
        if self.keep_time_interval is not None:
            policies.append(keeping.EveryNSeconds(int(self.keep_time_interval.total_seconds())))
        if self.best_fn is None:
            policies.append(keeping.LatestN(self.max_to_keep))
        else:
            policies.append(
                keeping.BestN(
                    get_metric_fn=self.best_fn,
                    reverse=self.best_mode == "min",
                    n=self.max_to_keep,
                    keep_checkpoints_without_metrics=self.keep_checkpoints_without_metrics,
                )
            )
        return keeping.AnyPreservationPolicy(policies)
