"""A GCS server for tests: the XML interface, which obstore speaks."""

from __future__ import annotations

from tests.storage.bucket import Request, Response, Stored
from tests.storage.object_answers import error
from tests.storage.object_servers import ObjectHandler

TOKEN = "token"


class GcsHandler(ObjectHandler):
    """A connection to GCS."""

    def credentials_refusal(self, request: Request) -> Response | None:
        token = request.headers.get("authorization")
        if token is None:
            return error(403, "AccessDenied", request.key)
        if token != f"Bearer {TOKEN}":
            return error(401, "AuthenticationRequired", request.key)
        return None

    def condition_refusal(self, request: Request, stored: Stored | None) -> Response | None:
        match = request.headers.get("x-goog-if-generation-match")
        if match is not None and match != ("0" if stored is None else stored.generation):
            return error(412, key=request.key)
        return None
