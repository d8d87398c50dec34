"""Ctrl-C ends a wait for a thread, also where the signal wakes another thread."""

from __future__ import annotations

from tests.children import run_python

# The kernel gives the signal to the thread that sends it, as the main thread has blocked it.
CODE = """
import os, signal, threading
from cordwood.threads.wait_until_ended import wait_until_ended

begun = threading.Event()

def send():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

sender = threading.Thread(target=send, daemon=True)
sender.start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
begun.set()
try:
    wait_until_ended(sender)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    assert run_python(CODE) == "interrupted\n"
