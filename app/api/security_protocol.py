"""What is no HTTP, answered as a problem too; it never reaches the application."""

import json
from typing import Final

import h11
from starlette.datastructures import MutableHeaders
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.problems import MEDIA_TYPE
from app.api.security_headers import add_to

# Of a request's first line and headers. What is between this and the bounds in `security` is
# answered with their statuses.
MAX_HEAD_BYTES: Final = 64 * 1024

_BODY: Final = json.dumps(
    {
        "type": "urn:haulage:problem:bad-http",
        "title": "Bad Request",
        "status": 400,
        "detail": f"not HTTP/1.1, or its head exceeds {MAX_HEAD_BYTES} bytes",
        "instance": "",
    }
).encode()


class ProblemProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with our words."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  ours says more
        """Answer and hang up; only hang up in the middle of an answer."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = MutableHeaders({"Content-Type": MEDIA_TYPE, "Connection": "close"})
            headers["Content-Length"] = str(len(_BODY))
            add_to(headers, "")
            response = h11.Response(status_code=400, headers=headers.raw, reason=b"Bad Request")
            for event in (response, h11.Data(data=_BODY), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
