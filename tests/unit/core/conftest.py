"""Settings for the tests of core."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code: time is judged by the whole suite's timeout.
settings.register_profile("unhurried", deadline=None, max_examples=60)
settings.load_profile("unhurried")
