"""The error that a request is answered with: HTTP status and OpenAI's error object."""

from __future__ import annotations

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    503: "unavailable_error",
    504: "timeout_error",
}
SERVER_ERROR = "server_error"


class ApiError(Exception):
    """param: the field of the request that is wrong; retry_after: seconds, for the header of that name; close: what
    the connection brings after this cannot be read as a request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.close = close

    def body(self) -> dict[str, object]:
        """{"error": ...} as OpenAI's clients read it."""
        kind = TYPES.get(self.status, SERVER_ERROR)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.close:
            headers["Connection"] = "close"
        return headers


def bad_request(param: str, message: str) -> ApiError:
    """A field that is wrong; the message starts with its name."""
    return ApiError(400, f"{param}: {message}", param=param)
