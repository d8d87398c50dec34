"""The mistakes of new users with object stores, made against an S3 server in this process.

    python -m tests.docs.store_mistakes

records what cordwood says of each, and writes docs/mistakes.md with them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest

import cordwood
from demo.mistakes.page import StoreMistake, read_record, write_record, write_store_mistakes
from tests.storage.web_stores import Answer, Request, WebStore, web_store

_URL = "s3://bucket/run/100"
_DELETIONS = ("DELETE", "DELETE_MANY")
_ADDRESS = "http://127.0.0.1:9000"  # in the page, in place of the server's


class Attempt(NamedTuple):
    """A mistake with a store, made by one call.

    Attributes:
        title: the heading.
        how: what is wrong.
        variables: the environment; {address} stands for the server's host and
            port. None: the variable is not set.
        hook: what the server answers.
        url: the URL of the checkpoint.
        loads: True: the call is a load; it finds nothing if `exists` is false.
        exists: True: a checkpoint was saved there before.
        obeys_conditions: False: the store ignores conditions.
    """

    title: str
    how: str
    variables: Mapping[str, str | None] = {}
    hook: Callable[[Request], Answer | None] = lambda _: None
    url: str = _URL
    loads: bool = False
    exists: bool = False
    obeys_conditions: bool = True


def _refuses(code: str) -> Callable[[Request], Answer | None]:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
    return lambda _: Answer(403, body=body.encode())


def _forbids(*methods: str) -> Callable[[Request], Answer | None]:
    return lambda request: Answer(403) if request.method in methods else None


ATTEMPTS = (
    Attempt(
        "No credentials",
        "no variable, no profile and no role of the machine gives credentials",
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
    ),
    Attempt(
        "A wrong key",
        "the store does not know `AWS_ACCESS_KEY_ID`",
        {"AWS_ACCESS_KEY_ID": "somebody"},
    ),
    Attempt(
        "A wrong secret",
        "`AWS_SECRET_ACCESS_KEY` is not the secret of the key",
        hook=_refuses("SignatureDoesNotMatch"),
    ),
    Attempt(
        "A clock that is wrong",
        "the clock of the machine is an hour behind",
        hook=_refuses("RequestTimeTooSkewed"),
    ),
    Attempt(
        "A wrong region",
        "the bucket is in another region than `AWS_REGION`",
        {"AWS_REGION": "us-west-2"},
    ),
    Attempt(
        "A wrong port",
        "nothing listens at the port of `AWS_ENDPOINT_URL`",
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
    ),
    Attempt(
        "An unknown host",
        "there is no host of the name in `AWS_ENDPOINT_URL`",
        {"AWS_ENDPOINT_URL": "http://store.invalid:9000"},
    ),
    Attempt(
        "HTTPS where the store speaks HTTP",
        "`AWS_ENDPOINT_URL` begins with https:// instead of http://",
        {"AWS_ENDPOINT_URL": "https://{address}"},
    ),
    Attempt(
        "A bucket that does not exist",
        "the name of the bucket has a typing error",
        url="s3://bukcet/run/100",
    ),
    Attempt(
        "A bucket in the endpoint",
        "`AWS_ENDPOINT_URL` is the address of the bucket instead of the store",
        {"AWS_ENDPOINT_URL": "http://{address}/bucket"},
    ),
    Attempt(
        "An endpoint that is no store",
        "`AWS_ENDPOINT_URL` is the address of a web page, such as the console of the store",
        hook=lambda _: Answer(200, body=b"<!DOCTYPE html><html><title>Console</title></html>"),
    ),
    Attempt("Nothing at the URL", "the step was never saved", loads=True),
    Attempt(
        "No permission to write",
        "the credentials may only read",
        hook=_forbids("PUT", "CREATE_UPLOAD"),
    ),
    Attempt(
        "No permission to read",
        "the credentials may not read this bucket",
        hook=_forbids("GET", "HEAD", "LIST"),
        loads=True,
        exists=True,
    ),
    Attempt(
        "No permission to delete",
        "the credentials may not delete, and the save replaces a checkpoint",
        hook=_forbids(*_DELETIONS),
        exists=True,
    ),
    Attempt(
        "A store without conditional writes",
        "the store ignores the condition of a write",
        obeys_conditions=False,
    ),
    Attempt(
        "Saving to a web server",
        "the URL begins with https:// instead of s3://",
        url="https://example.org/run/100",
    ),
    Attempt(
        "A single file in a store",
        "the URL ends in .safetensors, which means a file",
        url="s3://bucket/model.safetensors",
    ),
    Attempt(
        "An unknown scheme", "the URL begins with s4:// instead of s3://", url="s4://bucket/run/100"
    ),
)


def make(attempt: Attempt) -> StoreMistake:
    """Make a mistake; return what cordwood raises or, if nothing, what it logs."""
    with pytest.MonkeyPatch.context() as patch, web_store("s3", patch) as web:
        server = os.environ["AWS_ENDPOINT_URL"]
        patch.setenv("HOME", "/nonexistent")  # no profile
        if attempt.exists:
            cordwood.save(attempt.url, {"w": np.ones(3)})
        address = server.removeprefix("http://")
        for name, value in attempt.variables.items():
            if value is None:
                patch.delenv(name)
            else:
                patch.setenv(name, value.format(address=address))
        web.obeys_conditions, web.hook = attempt.obeys_conditions, attempt.hook
        error, text = _call(attempt, web)
    call = "load" if attempt.loads else "save"
    how = f'{attempt.how}: `{call}("{attempt.url}"{"" if attempt.loads else ", tree"})`'
    return StoreMistake(attempt.title, how, error, _normalised(text, address))


def _call(attempt: Attempt, web: WebStore) -> tuple[str, str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("cordwood")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        if attempt.loads:
            cordwood.load(attempt.url)
        else:
            cordwood.save(attempt.url, {"w": np.zeros(3)})
    except Exception as e:  # noqa: BLE001  (whatever is raised is the outcome)
        return type(e).__name__, str(e)
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        web.hook = lambda _: None
    return "", "saves it; the log says: " + " ".join(lines)


def _normalised(text: str, address: str) -> str:
    """Return a message without parts that differ in every run or on every machine."""
    text = text.replace(address, _ADDRESS.removeprefix("http://"))
    text = re.sub(r"in [\d.]+(?:[nµm]?s)\b", "in …", text)
    text = re.sub(r"(status code: \d{3} [A-Za-z ]+): .*? \.\.\.", r"\1: …", text)  # cut anywhere
    text = re.sub(r"(http://169\.254\.169\.254/\S+).*?(; there are no)", r"\1 …\2", text)
    return re.sub(r"\b[0-9a-f]{16}\b", "…", text)


if __name__ == "__main__":
    write_store_mistakes([make(attempt) for attempt in ATTEMPTS])
    write_record(read_record())
