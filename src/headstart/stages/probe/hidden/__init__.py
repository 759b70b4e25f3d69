"""Hidden states of words, and what the probes `neighbors` and `layers` compute from them."""
