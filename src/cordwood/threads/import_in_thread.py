"""Imports that the main thread does not make itself."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

from cordwood.threads.started_thread import StartedThread


def import_in_thread(name: str) -> ModuleType:
    """Import a module in another thread, and return it.

    The main thread would hold the locks of modules that are half imported. A signal handler that
    saves, in yet another thread, would wait for them.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return importlib.import_module(name)
    modules: list[ModuleType] = []
    errors: list[BaseException] = []

    def import_it() -> None:
        try:
            modules.append(importlib.import_module(name))
        except BaseException as e:  # noqa: BLE001  (raised in the main thread)
            errors.append(e)

    try:
        StartedThread(import_it).wait()
    except RuntimeError:  # no more threads are possible
        import_it()
    if errors:
        raise errors.pop()
    return modules.pop() if modules else importlib.import_module(name)
