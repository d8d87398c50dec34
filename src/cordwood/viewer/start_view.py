"""The resource `start`: what the viewer shows, and its title."""

from __future__ import annotations

import shlex
from importlib.metadata import version

from cordwood.formats.step_names import number_in_name
from cordwood.io.progress import Report
from cordwood.viewer.sources import Sources


def start_view(sources: Sources, report: Report | None) -> dict[str, object]:  # noqa: ARG001
    """Return what was opened: the kind, the names of the sources and their paths."""
    named = sources.paths.values() if sources.root is None else [sources.root]
    paths = list(map(str, named))
    values = {"--format": sources.arguments.format, "--prefix": sources.arguments.prefix}
    options = [word for name, text in values.items() if text is not None for word in (name, text)]
    return {
        "kind": sources.kind,
        "title": " and ".join(map(_title, paths)),
        "version": version("cordwood"),
        "sources": list(sources.paths),
        "paths": {name: str(path) for name, path in sources.paths.items()},
        "command": shlex.join(["cordwood", "view", *paths, *options]),
        "exported": False,
    }


def _title(path: str) -> str:
    """Return a short name of a checkpoint: that of its file, or of its run and its step.

    >>> _title("models/a.safetensors"), _title("runs/gpt2/100/")
    ('a.safetensors', 'gpt2/100')
    """
    folder, _, name = path.rstrip("/").rpartition("/")
    run = folder.rpartition("/")[2]
    return f"{run}/{name}" if run and number_in_name(name) is not None else name or path
