"""A request to restore a step, and the options of `restore`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood.io.progress import ProgressOption
from cordwood.loading.load_options import TreeOptions


class RestoreOptions(TreeOptions, total=False):
    """Options of `restore`: those of a tree, and which tree."""

    prefix: str | None


class RestoreRequest(NamedTuple):
    """The request to restore a step, before the step is chosen."""

    like: Any
    items: Mapping[str, Any]  # by name: a tree like the expected one, a stateful object, or None
    options: RestoreOptions
    progress: ProgressOption
