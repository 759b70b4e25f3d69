"""HTTP connections with a limit for the time in which the headers of a request must arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from headstart.stages.serve.refusals import Refusal


def with_header_timeout(protocol: type[Any], seconds: float) -> type[Any]:
    """Return a class of uvicorn's HTTP connections that closes one whose headers take longer than `seconds`.

    uvicorn limits the time between requests, but not that from the first byte of a request to its last header.
    """

    class HeaderTimeout(protocol):  # type: ignore[misc]
        """A connection with a timer that runs while no request is being answered."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # `cycle` is the request whose headers arrived last.
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._timer is None:
                self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _start(self) -> None:
            self._timer = self.loop.call_later(seconds, self._expire)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.write(_refusal(seconds))
                self.transport.close()

    return HeaderTimeout


def _refusal(seconds: float) -> bytes:
    body = json.dumps(Refusal(408, f"The headers did not arrive within {seconds:g} s.").body()).encode()
    head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
