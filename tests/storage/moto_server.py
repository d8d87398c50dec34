"""moto's S3 server on loopback, in this process, with conditional writes that are atomic."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["moto_endpoint"]

BUCKET = "bucket"


@functools.cache
def moto_endpoint() -> str:
    """Start the server, once in a process; return its URL. It has one bucket, "bucket"."""
    os.environ.setdefault("S3_UPLOAD_PART_MIN_SIZE", "1")  # moto reads it when it is imported
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_by_one(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request after another: moto checks a condition and writes in two steps."""
        with lock:
            return list(application(environ, start_response))

    server = make_server("127.0.0.1", 0, one_by_one, threaded=True)
    threading.Thread(target=server.serve_forever, name="moto", daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    return url
