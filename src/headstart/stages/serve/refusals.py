"""What a client is told when a request is not answered: a status, a sentence, and perhaps when to try again."""

from __future__ import annotations


class Refusal(Exception):
    """A request that is not answered. The message is one or two sentences and contains no part of a text."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Keep the HTTP status, the message, and the number of seconds after which a retry makes sense."""
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    def body(self) -> dict[str, object]:
        """Return the reply in the form of OpenAI's errors."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.status}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the reply."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
