"""The code that makes a mistake with a library and returns the outcome."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import NOT_ASKED, Mistake, Outcome, Surroundings, state
from demo.mistakes.shown import returned

__all__ = ["attempt", "outcome", "why_not"]

_ROOT = Path(__file__).resolve().parent.parent.parent
_UNPRIVILEGED = "-dac_override,-dac_read_search"  # the capabilities that open all files to root
_MOUNT = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'


def outcome(mistake: Mistake, name: str, folder: Path) -> Outcome:
    """Make a mistake with the library `name`, in an empty folder; return the outcome."""
    act = mistake.acts.get(name)
    if isinstance(act, str):
        return Outcome(NOT_ASKED, act)
    path = _path(name, folder)
    with _in(folder):
        if not mistake.saves:
            LIBRARIES[name].save(path, (mistake.saved or state)())
        change = mistake.change
        if isinstance(change, Mapping):
            change = change.get(name)
        if change is not None:
            change(path)
    if mistake.surroundings is None:
        return attempt(mistake, name, folder)
    return _apart(mistake.surroundings, mistake.title, name, folder)


def attempt(mistake: Mistake, name: str, folder: Path) -> Outcome:
    """Run the save or load of a mistake, in a folder that is prepared; return the outcome."""
    library, path = LIBRARIES[name], _path(name, folder)
    act = mistake.acts.get(name)
    saved = (mistake.saved or state)()
    said = ""
    with _in(folder):
        try:
            if callable(act):
                tree = act(path)
            elif mistake.saves:
                library.save(path, saved)
                said = "saves it; loaded into the same tree: "
                tree = library.load(path, saved)
            else:
                tree = library.load(path, saved if mistake.like is None else mistake.like())
        except Exception as e:  # noqa: BLE001  (whatever is raised is the outcome)
            name, text = type(e).__name__, normalised(_message(e), folder)
            return Outcome("", f"{said}{name}: {text}") if said else Outcome(name, text)
        return Outcome("", said + returned(tree, saved))


def why_not(surroundings: Surroundings) -> str:
    """Return the reason why this machine cannot provide the surroundings, or ""."""
    if surroundings.unprivileged and os.geteuid() == 0 and not shutil.which("setpriv"):
        return "root is let in everywhere, and there is no setpriv"
    if surroundings.full_disk:
        done = subprocess.run(
            [*_namespace(), "sh", "-c", _MOUNT, "/mnt", "true"], capture_output=True, check=False
        )
        return done.stderr.decode()
    return ""


def _namespace() -> list[str]:
    return ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]


def _apart(surroundings: Surroundings, title: str, name: str, folder: Path) -> Outcome:
    """Run `attempt` in its own process."""
    command = [sys.executable, "-m", "demo.mistakes.run_attempt", title, name, str(folder)]
    if surroundings.full_disk:
        command = [*_namespace(), "sh", "-c", _MOUNT, str(folder), *command]
    if surroundings.unprivileged and os.geteuid() == 0:
        command = [
            "setpriv",
            f"--inh-caps={_UNPRIVILEGED}",
            f"--bounding-set={_UNPRIVILEGED}",
            *command,
        ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if surroundings.devices is not None:
        count = f"--xla_force_host_platform_device_count={surroundings.devices}"
        environment["XLA_FLAGS"] = count
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{title}, {name}: {done.stderr}")
    return Outcome(*json.loads(done.stdout.splitlines()[-1]))


def _path(name: str, folder: Path) -> Path:
    return folder / f"ckpt{LIBRARIES[name].suffix}"


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Change to a folder, so that relative paths refer to it, and ignore warnings."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)


def _message(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    cause = error.__cause__
    while cause is not None and str(cause) in text:
        cause = cause.__cause__
    if cause is None:
        return text
    return f"{text}\nfrom {type(cause).__name__}: {_message(cause)}"


def normalised(text: str, folder: Path) -> str:
    """Return the text without parts that differ in every run, such as folders and addresses."""
    for place in (folder, _ROOT):
        text = text.replace(f"{place}/", "").replace(str(place), ".")
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
    text = re.sub(r"data-[0-9a-f]{16}", "data-…", text)
    text = re.sub(r"\.py:\d+", ".py:…", text)
    text = re.sub(r"\{('\w+'(?:, '\w+')+)\}", _in_order, text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip()


def _in_order(match: re.Match[str]) -> str:
    return "{" + ", ".join(sorted(match[1].split(", "))) + "}"
