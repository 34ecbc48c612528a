"""The daemon as an operator runs it: a process, a file, signals, and what it tells of itself."""
