"""Responses as bytes, for a record."""

from __future__ import annotations

import json
from typing import Any

from retrysafe.errors import ResultNotEncodable
from retrysafe.http.messages import Response
from retrysafe.protocol.records import StoredResult

MEDIA_TYPE = "application/vnd.retrysafe.http-response"
VERSION = 1
_line = json.JSONEncoder(separators=(",", ":")).encode


class ResponseCodec:
    """A response is one line of JSON (status, field lines, whether the body is kept), then the body's bytes."""

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode a `Response`."""
        response: Response = value
        head = {
            "status": response.status,
            "headers": [[name.decode("latin-1"), text.decode("latin-1")] for name, text in response.headers],
            "omitted": response.body is None,
        }
        return StoredResult(b"%b\n%b" % (_line(head).encode(), response.body or b""), MEDIA_TYPE, VERSION)

    def decode(self, stored: StoredResult, annotation: Any) -> Response:
        """Decode; raises `ResultNotEncodable` for what is no response, or of a version that we do not know."""
        if stored.body is None:
            raise ResultNotEncodable("The response was withheld when the request completed.")
        if (stored.media_type, stored.codec_version) != (MEDIA_TYPE, VERSION):
            kind = f"{stored.media_type} version {stored.codec_version}"
            raise ResultNotEncodable(f"The stored result is {kind}; this reads {MEDIA_TYPE} version {VERSION}.")
        line, _, body = stored.body.partition(b"\n")
        try:
            head = json.loads(line)
            headers = tuple((name.encode("latin-1"), text.encode("latin-1")) for name, text in head["headers"])
            return Response(int(head["status"]), headers, None if head["omitted"] else body)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ResultNotEncodable(f"The stored response cannot be read: {error!r}") from error
