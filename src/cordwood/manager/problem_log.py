"""The problems of a manager: logged, listed, and passed to the hook of the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cordwood.manager.manager_problem import ManagerProblem
from cordwood.threads.log import log

_MAX_LISTED = 100  # the newest


class ProblemLog:
    """The problems of one manager, of which the newest are listed.

    Args:
        root: the root of the manager, for the log.
        on_problem: called with each problem, in the thread that met it; None: nothing is called.
    """

    def __init__(self, root: str, on_problem: Callable[[ManagerProblem], None] | None) -> None:
        self._root = root
        self._on_problem = on_problem
        self._problems: deque[ManagerProblem] = deque(maxlen=_MAX_LISTED)

    def add(self, problem: ManagerProblem) -> None:
        """Log a problem as a warning, list it, and call the hook."""
        self._problems.append(problem)
        log.warning("%s: %s", self._root, problem)
        try:
            if self._on_problem is not None:
                self._on_problem(problem)
        except Exception:  # noqa: BLE001  (of the caller's hook; it is logged with its traceback)
            log.exception("on_problem failed for: %s", problem)

    def list(self) -> list[ManagerProblem]:
        """Return the newest problems, the oldest of them first."""
        return list(self._problems)
