"""The sides that clients talk to."""
