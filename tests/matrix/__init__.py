"""Every client transport before every server transport, in one conversation."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("clients", "programs", "talk", "conversation"))
)
