"""A restore beside a peer that sends wrong bytes, stops, is slow or refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood import CheckpointManager
from cordwood.manager.unshared import unshared_run
from cordwood.manager.unshared.unshared_storage import UnsharedStorage
from cordwood.storage.locations import Holder, LocalPath
from cordwood.storage.peers.peer_server import PeerServer
from cordwood.storage.peers.peer_step import PeerStep
from cordwood.storage.storage_protocol import NamingRules
from tests.manager.unshared.fake_run import (
    Run,
    every_device_is_a_process,
    in_the_foreground,
    like,
    replicate,
)
from tests.storage.peers.test_hostile_peers import (
    IMPATIENT,
    Answer,
    drips_the_body,
    flipped_bits,
    hostile_peer,
    never_answers,
    refuses_the_token,
    stops_in_the_middle,
)

__all__ = ["every_device_is_a_process", "in_the_foreground"]

COUNT, HOSTILE = 3, 1
ANSWERS = (flipped_bits, stops_in_the_middle, never_answers, drips_the_body, refuses_the_token)


class HostileServer:
    """A server of a root that answers each request in one way, in place of a PeerServer."""

    def __init__(self, root: LocalPath, answer: Answer) -> None:
        self._serving = hostile_peer(Path(root.text), answer)
        self.address = self._serving.__enter__()

    def close(self) -> None:
        self._serving.__exit__(None, None, None)


def use_hostile_server(patch: pytest.MonkeyPatch, run: Run, answer: Answer) -> None:
    """Let one process have such a server; only with that one the others are impatient."""
    place_of = UnsharedStorage._place

    def serve(
        root: LocalPath, rules: NamingRules, token: str, host: str
    ) -> HostileServer | PeerServer:
        if root.text == str(run.root(HOSTILE)):
            return HostileServer(root, answer)
        return PeerServer(root, rules, token, host=host)

    def place(storage: UnsharedStorage, entry: str, process: int) -> Holder:
        each = place_of(storage, entry, process)
        if isinstance(each, PeerStep) and process == HOSTILE:
            return replace(each, limits=IMPATIENT)
        return each

    patch.setattr(unshared_run, "PeerServer", serve)
    patch.setattr(UnsharedStorage, "_place", place)


def test_a_step_that_another_root_holds_is_restored_and_the_log_names_the_peer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    run.save(COUNT, [1])
    for writer, root in ((0, 1), (0, 2), (1, 2), (2, 1)):
        replicate(run, writer, 1, root)
    for answer in ANSWERS:
        shutil.rmtree(run.root(0))  # process 0 reads from process 1 first
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            use_hostile_server(patch, run, answer)
            assert run.restore(COUNT) == 1, answer
        texts = [record.getMessage() for record in caplog.records]
        assert any(f"process {HOSTILE} on" in text for text in texts), answer


def test_a_step_that_only_this_peer_holds_means_an_older_one_and_a_warning_that_names_it(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(COUNT, [1, 2], rewrite_every=1)
    for root in (0, 2):
        replicate(run, HOSTILE, 1, root)

    def work(manager: CheckpointManager, _: int) -> str:
        restored = manager.restore(like=like(COUNT))
        assert restored is not None
        assert restored.step == 1
        return " ".join(map(str, manager.problems))

    for answer in ANSWERS:
        with pytest.MonkeyPatch.context() as patch:
            use_hostile_server(patch, run, answer)
            with pytest.warns(
                RuntimeWarning, match=f"(?s)step 2 is passed over:.*process {HOSTILE} on"
            ):
                texts = run.values(COUNT, work)
        named = [f"process {HOSTILE} on" in text for text in texts]
        assert named == [True, False, True], answer
