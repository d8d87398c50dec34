"""The repetition of a request that fails for a temporary reason; each one is a line of the log.

A store that has never answered this process is given up after the second failure. No request is
repeated after the deadline of a call that has one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from cordwood.storage.object_stores.bucket_cache import StoreExperience
from cordwood.storage.object_stores.object_store_errors import failure_of, request_error
from cordwood.storage.object_stores.request_deadline import (
    refuse_silence,
    seconds_until_deadline,
)
from cordwood.storage.object_stores.request_loop import POLL_SECONDS, run_request
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop

T = TypeVar("T")

_RETRIES = 8  # after answers that say "later": about two minutes
_RETRIES_AFTER_SILENCE = 1  # after a timeout, which is half of the time that a stall may take
_FIRST_RETRIES = 1  # of a store that has never answered
_MAX_DELAY_SECONDS = 32.0


class RequestRetries:
    """The repetition of requests to one store after temporary failures.

    Args:
        experience: what this process has learned of the store.
    """

    def __init__(self, experience: StoreExperience) -> None:
        self._experience = experience
        self._has_answered = False  # a request of these

    def send(
        self, send: Callable[[], Coroutine[Any, Any, T]], url: str, *, doing: str, stoppable: bool
    ) -> T:
        """Send a request; repeat it after temporary failures.

        Raises what obstore raises, unless the failure is temporary; then after the last attempt.

        Args:
            send: sends the request.
            url: of the object, for the log.
            doing: what the request does, for the log.
            stoppable: end the request early if `check_stop` raises.
        """
        attempt = 0
        while True:
            check = partial(_check_wait, time.monotonic()) if stoppable else _go_on
            is_last = seconds_until_deadline() <= 0
            try:
                result = run_request(send, f"an answer of the store about {url}", check)
            except Exception as e:
                if is_last:  # it says less about the store than a failure that may take its time
                    raise
                failure = failure_of(e)
                is_reachable = self._experience.has_answered
                if failure.status:
                    self._experience.has_answered = True
                limit = _RETRIES_AFTER_SILENCE if failure.timed_out else _RETRIES
                if not is_reachable and not failure.status:
                    limit = 0 if failure.timed_out and self._has_answered else _FIRST_RETRIES
                if not failure.is_temporary or attempt >= limit:
                    if failure.timed_out:
                        self._experience.has_answered = False
                    raise
                attempt += 1
                seconds = min(_delay_seconds(attempt), max(0.0, seconds_until_deadline()))
                log.warning(
                    "%s: %s; attempt %d of %d follows in %.1f s",
                    url,
                    request_error(e, url, doing).strerror,
                    attempt + 1,
                    limit + 1,
                    seconds,
                )
                _sleep(seconds)
            else:
                self._experience.has_answered = self._has_answered = True
                return result


def _check_wait(began: float) -> None:
    """Raise an exception if the wait for a request, begun at that monotonic time, is to end."""
    check_stop()
    refuse_silence(began)


def _go_on() -> None:
    """Do nothing: a request that changes the store is waited for."""


def _delay_seconds(attempt: int) -> float:
    most: float = min(_MAX_DELAY_SECONDS, 2.0 ** (attempt - 1))
    return random.uniform(most / 2, most)  # noqa: S311  (not a secret)


def _sleep(seconds: float) -> None:
    """Wait before a request is repeated. Raises what `check_stop` raises."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(POLL_SECONDS, remaining))
        check_stop()
