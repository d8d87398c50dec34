"""Jobs whose processes have a root each, with replicas and a mirror, killed again and again.

`make soak` does it 200 times, with 2 to 4 processes; roots are lost at times. `make test` does it
twice with 2 processes, which are all killed: tests/processes/test_unshared.py waits for survivors.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.processes.group import Group
from tests.soak.journal import Line, read_journal
from tests.soak.loop import HOW
from tests.soak.page import SOAK, as_table, write_section
from tests.threads import until

LIVES = int(os.environ.get("CORDWOOD_SOAK_LIVES", "200")) if SOAK else 2
ROOTS, COUNTS = (4, (2, 3, 4, 4)) if SOAK else (2, (2,))
SILENCE_SECONDS, TIMEOUT_SECONDS = 5.0, 20.0
SECONDS = 300.0  # until the first save
CALLS = 120  # system calls of one process
EXPECTED = ("ProcessError", "UNAVAILABLE")  # jax's own, if process 0 dies before all use devices
MOMENTS = ("restoring", "saving", "at a system call")


def test_every_job_resumes_from_the_newest_step_that_is_whole(tmp_path: Path) -> None:
    rng = random.Random(29)
    roots, mirror = [tmp_path / f"root-{i}" for i in range(ROOTS)], tmp_path / "mirror"
    kills: list[tuple[str, str]] = []
    sources: Counter[str] = Counter()
    newest, committed, refused = 0, 0, 0
    for life in range(LIVES):
        count = rng.choice(COUNTS)
        used = rng.sample(roots, count) if rng.random() < 0.3 else roots[:count]
        lost = lose_roots(rng, roots) if life else []
        expected, source = newest_whole(used, mirror)
        if not expected and any([*root.glob("[0-9]*/cordwood.json")] for root in used):
            require_refused(tmp_path, used, mirror)
            refused += 1
            lost = roots
            for root in roots:
                shutil.rmtree(root, ignore_errors=True)
        moment = rng.choice(MOMENTS) if life else "saving"
        journals = live(tmp_path, rng, used, mirror, moment)
        restored = [line.step for lines in journals for line in lines if line.what == "restored"]
        assert set(restored) <= {expected}, f"life {life}: {restored}, {expected} from {source}"
        if count == ROOTS and not lost:
            assert expected >= committed, f"life {life}: {committed} was committed: {expected}"
        if restored:
            sources[source] += 1
            newest = max(newest, expected)
        done = [line.step for lines in journals for line in lines if line.what == "committed"]
        committed = max(done, default=0) if count == ROOTS else 0
        kills.append((moment, str(count)))
    assert newest > LIVES // 4 or not SOAK
    table = Counter(kills)
    write_section(
        "Jobs with a root for each process",
        f"{LIVES} jobs of 2 to 4 processes of `jax.distributed`, one after another, each with a "
        "root of its own,\n`replicas=1` and a mirror of every fourth step. One process was killed, "
        "in most jobs the others right after it.\nBetween jobs one root was deleted, or two, or "
        "none, and jobs began with other roots. Each job that came so far\nresumed to the bit, "
        "from the newest step that was whole by what lay in its directories. "
        f"{refused} more jobs found only steps with files\nthat were nowhere, and did not begin: "
        "all roots were deleted then.\n\n"
        + as_table(
            ["killed while", *(f"{n} processes" for n in (2, 3, 4))],
            [[each, *(table[each, str(n)] for n in (2, 3, 4))] for each in MOMENTS],
        )
        + "\n"
        + as_table(
            ["resumed", "from roots", "from the mirror", "began anew", "wrong", "older than whole"],
            [[sources.total(), sources["roots"], sources["mirror"], sources["nothing"], 0, 0]],
        ),
    )


def lose_roots(rng: random.Random, roots: Sequence[Path]) -> list[Path]:
    """Delete no root, one, or rarely two; return them."""
    lost = rng.sample(list(roots), rng.choice((0, 0, 0, 1, 1, 2)))
    for root in lost:
        shutil.rmtree(root, ignore_errors=True)
    return lost


def require_refused(folder: Path, roots: Sequence[Path], mirror: Path) -> None:
    """Require that a job does not begin anew beside steps of which files are nowhere."""
    with Group(len(roots)) as group:
        group.start(
            "own_roots.train",
            roots=[str(root) for root in roots],
            mirror=str(mirror),
            journal=str(folder / "journal"),
            victim=0,
            kill=None,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        errors = [str(result.error) for result in group.results()]
    assert all("are nowhere" in error or "ProcessError" in error for error in errors), errors
    assert any("are nowhere" in error for error in errors), errors


def live(
    folder: Path, rng: random.Random, roots: Sequence[Path], mirror: Path, moment: str
) -> list[list[Line]]:
    """Start a job, which resumes, kill one of its processes, and return all journals."""
    count = len(roots)
    victim = rng.randrange(count)
    journals = [folder / f"journal-{process}" for process in range(count)]
    for path in journals:
        path.unlink(missing_ok=True)
    kill = None
    if moment == "at a system call":
        kill = int(rng.uniform(1, CALLS)), rng.choice(HOW)
    with Group(count) as group:
        group.run("managers.hasten", silence_seconds=SILENCE_SECONDS)
        group.start(
            "own_roots.train",
            roots=[str(root) for root in roots],
            mirror=str(mirror),
            journal=str(folder / "journal"),
            victim=victim,
            kill=kill,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        if kill is not None:
            until(lambda: not group.processes[victim].is_alive(), seconds=SECONDS)
        else:
            if moment == "saving":
                until(
                    lambda: any(line.what == "begun" for line in read_journal(journals[victim])),
                    seconds=SECONDS,
                )
            time.sleep(rng.uniform(0, 1.5))
            with suppress(ProcessLookupError):
                group.kill(victim)
        # Of a machine of several processes, or of a job that is cancelled, all die.
        if not SOAK or rng.random() < 0.9:
            time.sleep(rng.uniform(0, 0.3))
            for process in range(count):
                with suppress(ProcessLookupError):  # it has ended already
                    group.kill(process)
        results = group.results()
    for result in results:
        assert result.dead or any(text in str(result.error) for text in EXPECTED), result
    return [read_journal(path) for path in journals]


def newest_whole(roots: Sequence[Path], mirror: Path) -> tuple[int, str]:
    """Return the newest step that is whole by what lies in directories, and where it is."""
    in_roots = max(whole_steps(roots), default=0)
    mirrored = max(whole_steps([mirror]), default=0)
    newest = max(in_roots, mirrored)
    return newest, "nothing" if not newest else "roots" if newest == in_roots else "mirror"


def whole_steps(places: Sequence[Path]) -> set[int]:
    """Return the steps of which some places hold every file that one of their indexes names."""
    held: dict[tuple[int, str], set[tuple[str, int]]] = {}
    named: dict[tuple[int, str], set[tuple[str, int]]] = {}
    for place in places:
        for folder in place.iterdir() if place.exists() else ():
            index = folder / "cordwood.json"
            if not folder.name.isdigit() or not index.exists():
                continue
            items = json.loads(index.read_text())["items"]
            save = int(folder.name), json.dumps([each["save_id"] for each in items.values()])
            named[save] = {(row[0], row[1]) for each in items.values() for row in each["files"]}
            held.setdefault(save, set()).update(
                (path.name, path.stat().st_size) for path in folder.iterdir()
            )
    return {save[0] for save, files in named.items() if files <= held[save]}
