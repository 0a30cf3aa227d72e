"""Clocks of the wall may jump by days: nothing that decides reads one (F10)."""

from tests.agent.core.core_driver import RUN, Talk
from tests.security.sources import called, imported, trees

WALL = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.ctime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.datetime.now",
    "datetime.date.today",
    "date.today",
}


# the owner's quiet hours are hours of the day, and spans are dated beside those of other programs
OF_THE_DAY = ("potluck_agent/meters/conditions.py", "potluck/serve/gateway/traces.py")


def test_f10_no_wall_clock_is_read_anywhere():
    for path, tree in trees():
        if not path.as_posix().endswith(OF_THE_DAY):
            assert not (called(tree) | imported(tree)) & WALL, path


def test_f10_a_core_that_is_told_of_years_goes_on():
    """Its only clock is the one that it is told; even that may stand still or be years ahead."""
    talk = Talk().begin()
    for after_s in (0.0, 3 * 86_400.0, 0.0, 10 * 365 * 86_400.0):
        talk.tick(after_s)
        talk.receive(RUN)
    assert talk.core is not None
