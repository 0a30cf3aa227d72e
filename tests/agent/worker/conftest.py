"""A fork server, for workers that are forked."""

import sys

import pytest

from potluck_agent.worker import fork_server as servers


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    """Where it listens."""
    if sys.platform != "linux":
        pytest.skip("workers are forked on Linux alone")
    path = tmp_path_factory.mktemp("forks") / "socket"
    process = servers.start(path)
    assert process.stdout.read(1)
    yield path
    process.kill()
    process.communicate()
