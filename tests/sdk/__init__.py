"""Clients and servers on the official SDKs of both eras, each before and behind the bridge."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.sides")
