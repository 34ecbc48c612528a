"""What the protocol revisions have and have not; pure as the core is."""
