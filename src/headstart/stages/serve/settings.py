"""The settings of `headstart serve`."""

from __future__ import annotations

import ipaddress

from pydantic import Field

from headstart.core.config import Section


class ServeSettings(Section):
    """The address, the size of batches and caches, and the limits of a request."""

    host: str = Field("127.0.0.1", description="address to listen on; any other than loopback needs a key")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 for any that is free")
    workers: int = Field(1, ge=1, le=256, description="processes that answer, each with its own copy of the weights")
    worker_timeout_seconds: float = Field(
        60.0, gt=0, description="time without a sign of life after which a worker is killed and restarted"
    )
    batch_tokens: int | None = Field(
        None, ge=1, description="tokens of a batch, padding included; default: 1,024 on a CPU, 65,536 on a GPU"
    )
    parallel_batches: int | None = Field(
        None,
        ge=1,
        le=64,
        description="batches computed at the same time; default: one per core on a CPU (up to 4), else 1",
    )
    window_ms: float = Field(2.0, ge=0, le=1_000, description="time that an idle server waits for more rows")
    queue_rows: int = Field(1_024, ge=1, description="rows that may wait; further requests are refused with 429")
    deadline_seconds: float = Field(30.0, gt=0, description="time after which a waiting request is refused with 504")
    drain_seconds: float = Field(30.0, gt=0, description="time for accepted requests to finish after SIGTERM")
    cache_mb: float = Field(
        2_000.0, gt=0, description="memory for adapters, heads and whole models; least used go first"
    )
    max_inputs: int = Field(256, ge=1, description="inputs of one request")
    max_characters: int = Field(20_000, ge=1, description="characters of one input")
    max_body_mb: float = Field(4.0, gt=0, description="size of the body of a request")
    header_seconds: float = Field(10.0, gt=0, description="time in which the headers of a request must arrive")
    body_seconds: float = Field(10.0, gt=0, description="time in which the body of a request must arrive")
    reload_seconds: float = Field(2.0, gt=0, description="time between looks at the folders for new and replaced tasks")

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
