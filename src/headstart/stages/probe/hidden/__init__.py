"""Hidden states of words, and what the probes `neighbours` and `layers` compute from them."""
