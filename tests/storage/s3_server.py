"""An S3 server for tests and benchmarks: `python -m tests.storage.s3_server --port 0`."""

from __future__ import annotations

import argparse
import re
import threading

from tests.storage.bucket import Bucket, Request, Response, Stored
from tests.storage.object_answers import error
from tests.storage.object_servers import ObjectHandler, serve

ACCESS_KEY = "key"
REGION = "eu-west-1"


class S3Handler(ObjectHandler):
    """A connection to S3. Signatures are looked at for their key and region only."""

    def credentials_refusal(self, request: Request) -> Response | None:
        signature = re.match(
            r"AWS4-HMAC-SHA256 Credential=([^/]*)/\d{8}/([^/]*)/s3/aws4_request, ?SignedHeaders=",
            request.headers.get("authorization", ""),
        )
        if signature is None:
            return error(403, "AccessDenied", request.key)
        if signature[1] != ACCESS_KEY:
            return error(403, "InvalidAccessKeyId", request.key)
        if signature[2] != REGION:
            return error(400, "AuthorizationHeaderMalformed", request.key)
        return None

    def condition_refusal(self, request: Request, stored: Stored | None) -> Response | None:
        match = request.headers.get("if-match")
        none_match = request.headers.get("if-none-match")
        if match is not None:
            if stored is None:
                return error(404, "NoSuchKey", request.key)
            tags = {"quoted": [stored.tag], "bare": [stored.tag.strip('"')]}.get(
                self.bucket.takes_tags, [stored.tag, stored.tag.strip('"')]
            )
            if match not in ("*", *tags):
                return error(412, key=request.key)
        if none_match is not None and none_match != "*":
            return error(501, key=request.key)
        if none_match == "*" and stored is not None:
            return error(412, key=request.key)
        return None


def main() -> None:
    """Serve an empty bucket named "bucket" until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--digests", action="store_true", help="check and make digests (slower)")
    arguments = parser.parse_args()
    bucket = Bucket(checks_digests=arguments.digests, records=False)
    with serve(S3Handler, bucket, arguments.port) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
