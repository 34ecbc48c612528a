"""The sides that talk to servers."""
