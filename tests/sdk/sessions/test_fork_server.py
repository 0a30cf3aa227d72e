"""The fork server of this process: there while somebody holds it, and nothing is left of it."""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from potluck.sessions.fork_server import ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")


def test_where_its_path_is_too_long_agents_do_without(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    server = ForkServer()
    server.await_ready()
    assert server.arguments() == server.workers_of(1) == []
    server.close()
    assert not list(deep.iterdir())


def test_closed_it_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = psutil.Process().children()
    server = ForkServer()
    assert server.arguments()
    server.close()
    server.close()  # twice is fine
    assert psutil.Process().children() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_homes_that_are_made_at_the_same_time_await_the_same_server():
    server = ForkServer()
    try:
        with ThreadPoolExecutor(8) as threads:
            for waiting in [threads.submit(server.await_ready) for _ in range(8)]:
                waiting.result()
        assert server.arguments()
    finally:
        server.close()
