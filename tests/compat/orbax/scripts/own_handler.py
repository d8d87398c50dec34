"""A handler of a script, for files that are no tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    class CallbackHandler(ocp.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            args.callback(directory)

        def restore(self, directory: Any, args: Any = None) -> Any:
            return (Path(directory) / "norm.txt").read_text()

    @ocp.args.register_with_handler(CallbackHandler, for_save=True)
    @dataclasses.dataclass
    class CallbackSave(ocp.args.CheckpointArgs):
        callback: Callable[[Path], None]

    @ocp.args.register_with_handler(CallbackHandler, for_restore=True)
    @dataclasses.dataclass
    class CallbackRestore(ocp.args.CheckpointArgs):
        pass

    def write_norm(folder: Any) -> None:
        (Path(folder) / "norm.txt").write_text("mean 0.5")

    handlers = {"assets": CallbackHandler(), "params": ocp.PyTreeCheckpointHandler()}
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    manager = ocp.CheckpointManager(directory, item_handlers=handlers, options=options)
    items = {"assets": CallbackSave(write_norm), "params": ocp.args.PyTreeSave({"w": jnp.ones(2)})}
    saved = manager.save(5, args=ocp.args.Composite(**items))
    manager.wait_until_finished()
    restored = manager.restore(
        5, args=ocp.args.Composite(assets=CallbackRestore(), params=ocp.args.PyTreeRestore())
    )
    return {
        "saved": saved,
        "assets": restored["assets"],
        "params": restored["params"],
        "file": (directory / "5" / "assets" / "norm.txt").exists(),
    }
