"""Fixtures of the tests with software that we did not write: its installation, once per run."""

from __future__ import annotations

import pytest

from .provision import Software, provide


@pytest.fixture(scope="session")
def software() -> Software:
    """Installed on first use. A package that cannot be had is an error, never a skip."""
    return provide()
