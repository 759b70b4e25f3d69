"""`headstart evaluate`: score a finished model on other data, and write the page of its errors."""

from headstart.stages.evaluate.run import run

__all__ = ["run"]
