"""What was asked for, as one `Daemon`: by options of a command, or by a configuration file.

`servers` and `process` make it of options, wherever they were said; a file is read into the same
options, by the same functions. So there is one way in.
"""
