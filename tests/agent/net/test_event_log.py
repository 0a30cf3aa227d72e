"""What the owner is told at once: bounded whoever causes it, and nothing that one causes hides what
another one does.
"""

import pytest

from potluck_agent.log_file import LINES, WINDOW_S, LogFile
from potluck_agent.net.event_log import EventLog

CAUSES = {
    "notes": lambda log, number: log.note(f"cannot send {number}"),
    "a relay": lambda log, number: log.note_state("relay", f"reached at port {number}"),
    "memory": lambda log, number: log.cut(number, 2**20),
    "faults": lambda log, number: log.fault(f"a fault {number}", "faults.txt"),
    "pairings": lambda log, number: log.paired("ada", "k" * 40),
}


class Owner:
    """Reads what is printed."""

    def __init__(self, path):
        self.now_s, self.read = 0.0, []
        file = LogFile(path, "info", pytest.fail, self.clock)
        self.log = EventLog(file, self.read.append, self.clock)

    def clock(self):
        return self.now_s


@pytest.mark.parametrize("cause", CAUSES)
def test_each_kind_is_printed_so_often_and_the_rest_are_counted(tmp_path, cause):
    owner = Owner(tmp_path / "agent.log")
    for number in range(LINES + 500):
        CAUSES[cause](owner.log, number)
    assert len(owner.read) <= LINES
    for other in CAUSES.keys() - {cause}:
        n_before = len(owner.read)
        CAUSES[other](owner.log, 1)
        assert len(owner.read) == n_before + 1, other
    owner.now_s = WINDOW_S
    n_before = len(owner.read)
    CAUSES[cause](owner.log, -1)
    told, new = owner.read[n_before:]
    assert "500 more lines" in told
    assert "left out" not in new
