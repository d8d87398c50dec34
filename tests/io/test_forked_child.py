"""Forked children: they save and load, and get an error for what belongs to their parent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

START = """
import os, signal, sys, threading
from unittest.mock import patch
import numpy as np
import cordwood as cw
from cordwood.storage import write_files

T, root = {"w": np.ones(3)}, sys.argv[1]
original, go = write_files.fill_file, threading.Event()
def slow(*arguments, **named):
    go.wait()
    return original(*arguments, **named)

def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.waitpid(child, 0)[1]

def refused(call):
    try:
        call()
    except OSError as e:
        print(type(e).__name__, e.strerror.split(":")[0].replace(str(os.getppid()), "PARENT"))
    else:
        print("not refused")
"""

FORKED = (
    "StorageError this process was forked from one that had used an object store, and no request "
    "works in it"
)


def run(code: str, root: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code), str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(root), "ROOT").splitlines()


def test_a_child_saves_and_loads_while_its_parent_saves(tmp_path: Path) -> None:
    code = """
    with patch("cordwood.storage.local_transaction.fill_file", slow):
        pending = cw.save_async(f"{root}/parent", T)

        def child():
            go.set()
            cw.save(f"{root}/child", T)
            cw.save_async(f"{root}/child", T).wait()
            with cw.CheckpointManager(f"{root}/run") as manager:
                manager.save(1, T)
            print(cw.load(f"{root}/child")["w"].sum(), manager.steps(), pending.done)

        print(in_child(child))
        go.set()
        pending.wait()
    """
    assert run(code, tmp_path) == ["3.0 [1] False", "0"]


def test_what_belongs_to_the_parent_is_refused_in_a_child(tmp_path: Path) -> None:
    code = """
    manager = cw.CheckpointManager(f"{root}/run")
    manager.save(1, T)
    manager.wait()
    with patch("cordwood.storage.local_transaction.fill_file", slow):
        manager.save(2, {"w": np.zeros(3)})  # not linked
        pending = cw.save_async(f"{root}/tree", T)

        def child():
            refused(lambda: manager.save(3, T))
            refused(manager.wait)
            refused(lambda: manager.delete(1))
            refused(pending.wait)
            print(manager.steps(), manager.restore(1).step)
            manager.close()  # there is nothing to wait for here

        print(in_child(child))
        go.set()
        manager.wait()
        pending.wait()
    print(manager.steps())
    """
    manager, save = [
        f"StorageError the {what} belongs to process PARENT, from which this one was forked"
        for what in ("manager of ROOT/run", "save of ROOT/tree")
    ]
    assert run(code, tmp_path) == [manager, manager, manager, save, "[1] 1", "0", "[1, 2]"]


def test_a_store_that_the_parent_has_used_is_refused_in_a_child(tmp_path: Path) -> None:
    code = """
    cw.save("memory://parent/tree", T)
    print(in_child(lambda: refused(lambda: cw.save("memory://parent/other", T))))
    """
    assert run(code, tmp_path) == [FORKED, "0"]
