"""For the cases of both eras."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "crossing(*ids): cases of docs/eras.md that this test holds")
