"""The pure core: no I/O, no clock, no randomness; whatever is needed of them is passed in."""
