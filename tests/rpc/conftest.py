"""Fixtures of the tests of the gRPC edges."""

import pytest

from tests.rpc.fake_links import FakeEdge


@pytest.fixture
async def edge() -> FakeEdge:
    """An edge with one link, which is up."""
    made = FakeEdge()
    await made.links[0].up()
    return made
