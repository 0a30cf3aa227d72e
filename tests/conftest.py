"""How long hypothesis tries: the same examples each time in `make test`, ever new ones in `make
test-long`.

No test may need the last line of defence, of the notebook or of the agents that it starts, but
those marked `faults`.

Garbage is looked for seldom: it took a tenth of the CPU time of tests of planning and runs.

And Ctrl-C: whoever is started with `&` ignores it, as do all processes that tests start, unless
they get it back.
"""

import gc
import importlib.util
import logging
import os
import signal
import sys
import threading

import pytest
from hypothesis import HealthCheck, settings
from tests.few import few

from potluck.sessions import fork_server
from potluck.sessions.local_agents import LocalAgents
from potluck_agent import fault_log
from potluck_wire import chunks

signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(200_000, *gc.get_threshold()[1:])

# No deadlines: a slow machine is no wrong answer.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=40)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


class _Faults(logging.Handler):
    """What must not happen and did, in this process or in an agent that it started."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()}\n{record.exc_text or record.exc_info}")


_faults = _Faults()
logging.getLogger("potluck.faults").addHandler(_faults)
_close = LocalAgents.close


def _look_and_close(agents: LocalAgents) -> None:
    """Before its directory goes: whether any of its agents has kept a report."""
    _faults.seen += [path.read_text() for path in agents.directory.glob(f"*/{fault_log.FILE}")]
    _close(agents)


LocalAgents.close = _look_and_close  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def no_faults(request):
    """None from one test to the next; what a home that several share has kept is found when it is
    closed.
    """
    yield
    seen, _faults.seen = _faults.seen, []
    assert not seen or request.node.get_closest_marker("faults"), "\n".join(seen)


@pytest.fixture(scope="module")
def small_chunks():
    """Values of a few bytes may come in several chunks: what is tested is the same, and quicker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MIN_CHUNK_BYTES", 1)
        yield


@pytest.fixture(autouse=True, scope="module")
def alike_exported_once(request):
    """But where exporting itself is tested, and in `make test-long`."""
    anew = request.path.stem == "test_exporting" or os.environ.get("HYPOTHESIS_PROFILE") == "long"
    if anew or importlib.util.find_spec("torch") is None:
        yield
        return
    from tests import exports

    with exports.shared():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, obj):
    """Where long tests are left out, their cases are not made: they are most of all cases."""
    if collector.config.option.markexpr == "not long":
        marks = getattr(obj, "pytestmark", [])
        return [] if any(mark.name == "long" for mark in marks) else None
    return None


@pytest.hookimpl(tryfirst=True)  # before cases that are `long` are left out
def pytest_collection_modifyitems(items):
    """Of the cases of a test that is marked `few(n)`, only n are not `long`: see `tests/few.py`."""
    cases = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("long"):
            cases.setdefault((item.path, item.cls, item.function), []).append(item)
    for each in cases.values():
        n = each[0].get_closest_marker("few").args[0]
        kept = few([case.callspec.params for case in each], n)
        for number, item in enumerate(each):
            if number not in kept:
                item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, scope="session")
def seeds_of_what_is_there():
    """`torch.manual_seed` keeps a traceback for each kind of accelerator that was never used: a
    millisecond each time.
    """
    with pytest.MonkeyPatch.context() as patch:
        torch = sys.modules.get("torch")
        for kind in ("cuda", "xpu", "mtia") if torch is not None else ():
            if not getattr(torch, kind).is_available():
                patch.setattr(getattr(torch, kind), "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_fork_server():
    """For all homes of all tests: loading torch takes two seconds each time."""
    holder = threading.Event()
    fork_server.keep(holder)
    yield
    fork_server.give_back(holder)


def pytest_collection_finish():
    """All that is there by now stays to the end: garbage is looked for among what comes."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    """What was kept by homes that were closed after the last test."""
    if _faults.seen:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write("\n".join(_faults.seen))
