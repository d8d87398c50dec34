"""The places that hold a step, and the hosts that it is lost with."""

from __future__ import annotations

from cordwood.plan.recovery.complete_steps import CompleteStep
from cordwood.plan.recovery.step_places import StepPlaces, place_without_files, places_of

HOSTS = ("a", "a", "b")
HELD = {0: ((0, 2),), 1: ((1, 2),), 2: ((2, 3),)}


def test_a_host_is_named_that_alone_holds_a_file() -> None:
    step = CompleteStep(7, "", 0.0, 3, HELD, is_mirrored=False)
    places = places_of(step, HOSTS)
    assert places == StepPlaces(7, True, False, 3, {0: 2, 1: 1, 2: 1}, ("a", "b"), (0, 2))
    assert str(places) == (
        "step 7: 3 files: 2 at process 0, 1 at process 1, 1 at process 2; "
        "lost with any one of the hosts a, b"
    )


def test_replicas_on_other_hosts_protect_a_step() -> None:
    held = {0: ((0, 3),), 2: ((0, 3),)}
    places = places_of(CompleteStep(7, "", 0.0, 3, held, is_mirrored=False), HOSTS)
    assert (places.lost_with_hosts, places.lost_with_processes) == ((), ())
    same_host = {0: ((0, 3),), 1: ((0, 3),)}
    places = places_of(CompleteStep(7, "", 0.0, 3, same_host, is_mirrored=False), HOSTS)
    assert (places.lost_with_hosts, places.lost_with_processes) == (("a",), ())


def test_a_mirrored_step_is_lost_with_no_host() -> None:
    places = places_of(CompleteStep(7, "", 0.0, 3, HELD, is_mirrored=True), HOSTS)
    assert places.lost_with_hosts == ()
    assert str(places).endswith("1 at process 2; in the mirror")
    alone = place_without_files(8, in_root=False, mirrored=True)
    assert str(alone) == "step 8: in the mirror"
