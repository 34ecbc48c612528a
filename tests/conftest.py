"""For all tests. That it lies here puts this folder on the import path, where `support` is found.

And where the tests run in processes of their own (`--numprocesses`), the process that has the terminal
collects nothing, hence loads no other conftest: those that print a table at the end are loaded from here.
"""

from __future__ import annotations

from importlib import import_module

import pytest

TABLES = ("matrix.conftest", "sdk.conftest")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        for table in map(import_module, TABLES):
            if not config.pluginmanager.is_registered(table):
                config.pluginmanager.register(table)
