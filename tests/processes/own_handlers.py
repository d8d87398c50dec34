"""Scenarios of a group whose script has a handler of its own, with the calls of Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

import cordwood.compat.orbax as ocp


class NotesHandler(ocp.CheckpointHandler):
    """One file by process 0, as of settings, and one by each process."""

    def save(self, directory: Path, args: Any) -> None:
        process = jax.process_index()
        if process == 0:
            (directory / "settings.txt").write_text(args.text)
        (directory / "processes").mkdir()
        (directory / "processes" / f"{process}.txt").write_text(f"process {process}")

    def restore(self, directory: Path, args: Any) -> dict[str, str]:
        files = [path for path in directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(directory)): path.read_text() for path in sorted(files)}


@ocp.args.register_with_handler(NotesHandler, for_save=True)
class NotesSave(ocp.args.CheckpointArgs):
    def __init__(self, text: str) -> None:
        self.text = text


@ocp.args.register_with_handler(NotesHandler, for_restore=True)
class NotesRestore(ocp.args.CheckpointArgs):
    pass


def save_and_restore(root: str) -> dict[str, str]:
    """Save a step by a manager and a checkpoint by a checkpointer; return the restored files."""
    tree = {"w": np.arange(4.0)}
    items = ocp.args.Composite(state=ocp.args.StandardSave(tree), notes=NotesSave("lr 0.1"))
    with ocp.CheckpointManager(f"{root}/run") as manager:
        manager.save(1, args=items)
        manager.wait_until_finished()
        restored = manager.restore(1, args=ocp.args.Composite(notes=NotesRestore()))
    with ocp.Checkpointer(NotesHandler()) as checkpointer:
        checkpointer.save(f"{root}/notes", args=NotesSave("lr 0.1"))
        again = checkpointer.restore(f"{root}/notes", args=NotesRestore())
    assert again == restored["notes"]
    files: dict[str, str] = restored["notes"]
    return files
