"""Progress of a long call, which is reported to a callback or a bar; and the log of long waits.

Bytes are counted where they are read or written. With `progress=True` there is a bar in a terminal
or in a notebook, and nothing elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from html import escape
from typing import Any, NamedTuple, TypeAlias

from cordwood.io.log import log
from cordwood.message_text import printable, size_text
from cordwood.public_names import document_fields

_EVERY_SECONDS = 0.1
_MAX_DOING = 40  # characters of the leaf or file at hand
REPORT_SECONDS = 10.0  # a wait is reported after this time, then after twice this time, ...


@document_fields
class Progress(NamedTuple):
    """Progress of a save, load, verification or conversion.

    Attributes:
        done_bytes: bytes that have been read or written.
        total_bytes: bytes in all; an estimate that may change.
        doing: the leaf or file at hand; "" where it is not known.
    """

    done_bytes: int
    total_bytes: int
    doing: str = ""


Report: TypeAlias = Callable[[Progress], None]
ProgressOption: TypeAlias = Report | bool | None  # of public functions; True: a bar


class ProgressMeter:
    """A byte counter that reports to a callback, from one thread at a time.

    Args:
        total_bytes: the expected number of bytes.
        report: called at the start, at most ten times a second, and when all bytes are done.
    """

    def __init__(self, total_bytes: int, report: Report) -> None:
        self._progress = Progress(0, total_bytes)
        self._report = report
        self._lock = threading.Lock()
        self._reported_seconds = time.monotonic()
        report(self._progress)

    def advance(self, size_bytes: int, doing: str = "") -> None:
        """Count more bytes as done. Raises what the callback raises."""
        with self._lock:
            done, total, what = self._progress
            done += size_bytes
            self._progress = Progress(done, max(done, total), doing or what)
            seconds = time.monotonic()
            is_last = size_bytes > 0 and done == total
            if seconds - self._reported_seconds < _EVERY_SECONDS and not is_last:
                return
            self._reported_seconds = seconds
            self._report(self._progress)

    def finish(self) -> None:
        """Report that all is done."""
        done, _, what = self._progress
        self._report(Progress(done, done, what))


# The meter of the call in this thread, which passes it to its worker threads.
METER: ContextVar[ProgressMeter | None] = ContextVar("meter", default=None)


@contextmanager
def report_progress(total_bytes: int, report: Report | None) -> Iterator[None]:
    """Report the progress of the block; with None report nothing."""
    if report is None:
        yield
        return
    meter = ProgressMeter(total_bytes, report)
    token = METER.set(meter)
    try:
        yield
    finally:
        METER.reset(token)
    meter.finish()


class ProgressOfParts:
    """The progress of a call in several parts, each of which reports its own.

    Args:
        report: the callback of the whole call; it receives the progress of all parts as one.
        estimates: the estimated bytes of each part by its name, "" for one without a name. A part
            that has begun replaces its estimate.

    >>> parts = ProgressOfParts(print, {"": 8, "ema": 8})
    >>> parts.begin("")(Progress(2, 2))
    Progress(done_bytes=2, total_bytes=10, doing='')
    >>> parts.begin("ema")(Progress(1, 8, "w"))
    Progress(done_bytes=3, total_bytes=10, doing='ema: w')
    """

    def __init__(self, report: Report, estimates: Mapping[str, int]) -> None:
        self._report = report
        self._estimates = dict(estimates)  # of the parts that have not begun
        self._name = ""
        self._earlier = self._part = Progress(0, 0)

    def begin(self, name: str) -> Report:
        """Return the callback of a part, which is used until the next part begins."""
        (done, total, _), (more, more_total, _) = self._earlier, self._part
        self._earlier, self._part = Progress(done + more, total + more_total), Progress(0, 0)
        self._name = name
        del self._estimates[name]
        return self._report_part

    def _report_part(self, progress: Progress) -> None:
        self._part = progress
        total = self._earlier.total_bytes + progress.total_bytes + sum(self._estimates.values())
        doing = ": ".join(filter(None, [self._name, progress.doing]))
        self._report(Progress(self._earlier.done_bytes + progress.done_bytes, total, doing))


def require_progress_option(progress: ProgressOption) -> None:
    """Raise TypeError unless a value is one that `progress=` takes."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"progress={progress!r:.80}: expected True for a bar, None, or a function that takes a "
            "cordwood.results.Progress"
        )


def progress_display(progress: ProgressOption, verb: str) -> AbstractContextManager[Report | None]:
    """Return a context manager that gives the function to report progress to, or None.

    A function is returned as it is. With True, a bar is shown from the start of the block to its
    end, also if the block raises: on standard error if that is a terminal, or below the cell of a
    notebook. Of several processes only process 0 shows it. The block may run in another thread.

    Args:
        progress: the argument of the public function.
        verb: what the call does, such as "saving".

    Raises TypeError for other values.
    """
    require_progress_option(progress)
    if callable(progress):
        return nullcontext(progress)
    if not progress:
        return nullcontext(None)
    from cordwood.processes.rendezvous import current_processes

    if current_processes().index != 0:
        return nullcontext(None)
    shell = _notebook_shell()
    try:
        if shell is not None:
            return _shown(_NotebookBar(shell, verb))
        if sys.stderr is not None and sys.stderr.isatty():
            return _shown(_TerminalBar(verb))
    except Exception:  # noqa: BLE001  (standard error is closed, or is no file: there is no bar)
        return nullcontext(None)
    return nullcontext(None)


@contextmanager
def _shown(bar: _TerminalBar | _NotebookBar) -> Iterator[Report]:
    """Show a bar during the block. If it cannot be drawn, the block goes on without it."""
    broken = failed = False

    def attempt(action: Callable[[], None]) -> None:
        nonlocal broken
        if broken:
            return
        try:
            action()
        except Exception:  # noqa: BLE001  (a closed terminal must not end a save)
            broken = True

    attempt(bar.start)
    try:
        yield lambda progress: attempt(lambda: bar.draw(progress))
    except BaseException:
        failed = True
        raise
    finally:
        attempt(lambda: bar.stop(failed=failed))


class _TerminalBar:
    """A line on standard error, which disappears at the end: bytes, rate, leaf or file at hand.

    It is drawn only when progress is reported, so it needs no thread, and it leaves `sys.stdout`
    and `sys.stderr` as they are.
    """

    def __init__(self, verb: str) -> None:
        from rich import progress as rich
        from rich.console import Console

        self._rich = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.DownloadColumn(binary_units=True),
            rich.TransferSpeedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[doing]}", style="dim", markup=False),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._verb = verb

    def start(self) -> None:
        self._task = self._rich.add_task(self._verb, total=None, doing="")
        self._rich.start()

    def draw(self, progress: Progress) -> None:
        done, total, doing = progress
        self._rich.update(
            self._task,
            completed=done,
            total=total or None,
            doing=printable(doing[-_MAX_DOING:], keep=""),
            refresh=True,
        )

    def stop(self, *, failed: bool) -> None:
        del failed
        self._rich.stop()


# The display of the latest finished bar, by cell and verb: a loop in one cell has one line.
_finished_displays: dict[tuple[int, str], Any] = {}


def _notebook_shell() -> Any | None:
    """Return IPython's shell if this process is the kernel of a notebook; never import IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class _NotebookBar:
    """A line of HTML in the output of a cell. At the end it says how long the call took."""

    def __init__(self, shell: Any, verb: str) -> None:
        import IPython.display

        self._verb = verb
        self._cell = shell.execution_count, verb
        self._latest = Progress(0, 0)
        self._begun_seconds = time.monotonic()
        handle = _finished_displays.pop(self._cell, None)
        if handle is None:  # shown now: a thread would not know to which cell it belongs
            show: Callable[..., Any] = IPython.display.display
            handle = show(self._content("running"), raw=True, display_id=True)
        self._handle = handle

    def start(self) -> None:
        self._begun_seconds = time.monotonic()

    def draw(self, progress: Progress) -> None:
        self._latest = progress
        self._handle.update(self._content("running"), raw=True)

    def stop(self, *, failed: bool) -> None:
        self._handle.update(self._content("failed" if failed else "done"), raw=True)
        _finished_displays.clear()
        _finished_displays[self._cell] = self._handle

    def _content(self, state: str) -> dict[str, str]:
        seconds = time.monotonic() - self._begun_seconds
        done, total, doing = self._latest
        arguments = self._verb, done, total, doing[-_MAX_DOING:], seconds, state
        return {"text/html": bar_html(*arguments), "text/plain": bar_text(*arguments)}


def bar_text(
    verb: str, done_bytes: int, total_bytes: int, doing: str, seconds: float, state: str
) -> str:
    """Return a progress bar as one line of text.

    Args:
        verb: what the call does, such as "saving".
        done_bytes: the number of bytes that are done.
        total_bytes: the number of bytes in all; 0 if it is not known.
        doing: the leaf or file at hand, or "".
        seconds: the time since the start.
        state: "running", "done" or "failed".

    >>> bar_text("saving", 1 << 20, 1 << 22, "params/w", 2.0, "running")
    'saving: 1.0 MiB of 4.0 MiB, 512.0 KiB/s, params/w'
    >>> bar_text("saving", 1 << 22, 1 << 22, "params/w", 2.0, "done")
    'saving: done, 4.0 MiB in 2.0 s'
    """
    size = size_text(done_bytes)
    if state != "running":
        return f"{verb}: {state}, {size} in {seconds:.1f} s"
    parts = [f"{size} of {size_text(total_bytes)}" if total_bytes else size]
    if seconds > 0 and done_bytes:
        parts.append(f"{size_text(done_bytes / seconds)}/s")
    if doing:
        parts.append(printable(doing, keep=""))
    return f"{verb}: {', '.join(parts)}"


def bar_html(
    verb: str, done_bytes: int, total_bytes: int, doing: str, seconds: float, state: str
) -> str:
    """Return a progress bar as HTML without scripts; arguments as for `bar_text`."""
    text = escape(bar_text(verb, done_bytes, total_bytes, doing, seconds, state))
    element = ""
    if state == "running":
        value = f' value="{min(done_bytes, total_bytes)}" max="{total_bytes}"' * bool(total_bytes)
        element = f"<progress{value}></progress> "
    return f'<div style="font-family:monospace;white-space:nowrap">{element}{text}</div>'


class WaitLogger:
    """The log reports of one wait: after 10 s, and again at growing intervals.

    The loop that waits calls `tick` at least once a second.
    Logs a warning after REPORT_SECONDS, and again after 2, 4, 8 ... times as long. A wait that
    was reported is reported once more, at INFO, when `end` is called.

    Example:
        wait_logger = WaitLogger("process 1 to save 'run/5'")
        while not future.done(timeout=0.5):
            wait_logger.tick()
        wait_logger.end()

    Args:
        what: the object of the wait: "waiting for {what}". A function is called for each report,
            so that it can name who holds a lock at that moment; it must not raise.
        hint: advice for the user, added after a semicolon.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        what: str | Callable[[], str],
        *,
        hint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._hint = f"; {hint}" if hint else ""
        self._clock = clock
        self._start = clock()
        self._next_seconds = REPORT_SECONDS
        self._reported = ""

    @property
    def seconds(self) -> float:
        """The time since the wait began."""
        return self._clock() - self._start

    def tick(self) -> None:
        """Log the wait, if a report is due."""
        seconds = self.seconds
        if seconds < self._next_seconds:
            return
        while self._next_seconds <= seconds:
            self._next_seconds *= 2
        self._reported = self._what if isinstance(self._what, str) else self._what()
        log.warning("waiting for %s, %.0f s so far%s", self._reported, seconds, self._hint)

    def end(self) -> None:
        """Log that the wait is over, if it was reported."""
        if self._reported:
            log.info("no longer waiting for %s, after %.0f s", self._reported, self.seconds)
            self._reported = ""
