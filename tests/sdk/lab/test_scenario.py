"""Scripts: read strictly, stretched with the lab, and each happening at its time."""

import logging
from logging.handlers import BufferingHandler

import pytest
from tests.timeouts import TIMEOUT_S

from potluck.errors import FileError, HomeError, UserError
from potluck.lab.runner import ScenarioRunner
from potluck.lab.scenario import (
    Bandwidth,
    Crash,
    Flow,
    Freeze,
    Join,
    Leave,
    Load,
    Loss,
    ScenarioContext,
    ScenarioEvent,
    check,
    read,
    slowed,
)

ALL = """
[[events]]
at_s = 3.0
do = "crash"
device = "a"

[[events]]
at_s = 1
do = "bandwidth"
medium = "air"
rate = "8 Mbit/s"

[[events]]
at_s = 2.0
do = "flow"
source = "a"
target = "b"
lasts_s = 5.0
"""


def test_a_file_is_read_in_order_of_time(tmp_path):
    (tmp_path / "script.toml").write_text(ALL)
    assert read(tmp_path / "script.toml") == (
        Bandwidth(at_s=1, medium="air", rate="8 Mbit/s"),
        Flow(at_s=2.0, source="a", target="b", lasts_s=5.0),
        Crash(at_s=3.0, device="a"),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[events]]\nat_s = 1\ndo = 'explode'", "must be one of bandwidth"),
        ("[[events]]\nat_s = 1\ndo = 'crash'", "'device' is missing"),
        ("[[events]]\nat_s = 1\ndo = 'crash'\ndevice = 'a'\nrate = 3", "no 'rate'"),
        ("[[events]]\nat_s = -1\ndo = 'crash'\ndevice = 'a'", r"at_s must be 0 to 1e"),
        ("[[events]]\nat_s = 'soon'\ndo = 'crash'\ndevice = 'a'", r"at_s must be 0 to 1e"),
        ("[[events]]\nat_s = 1\ndo = 'loss'\nmedium = 'air'\nloss_frac = 1.5", "loss_frac"),
        (
            "[[events]]\nat_s = 1\ndo = 'load'\ndevice = 'a'\nbusy_frac = 1\nlasts_s = 1",
            "busy_frac",
        ),
        ("[[events]]\nat_s = 1\ndo = 'bandwidth'\nmedium = 'air'\nrate = 'much'", "much"),
        ("[[events]]\nat_s = 1\ndo = 'bandwidth'\nmedium = 'air'\nrate = inf", "above zero"),
        (
            "[[events]]\nat_s = 1\ndo = 'flow'\nsource = 'a'\ntarget = 'a'\nlasts_s = 1",
            "event 1: .*two devices",
        ),
        ("[[event]]\nat_s = 1", "got event"),
        ("events = 3", "expected"),
        ("[[events", "expected TOML"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    (tmp_path / "script.toml").write_text(text)
    with pytest.raises(FileError, match=says):
        read(tmp_path / "script.toml")


CAST = ScenarioContext(devices=("a", "b"), media=("air",), emulated=("a",), absent=())


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            [Crash(at_s=2, device="x")],
            r"crash at 2 s \(device x\): there is no device 'x' in this lab. It has a, b",
        ),
        ([Flow(at_s=0, source="a", target="x", lasts_s=1)], "there is no device 'x'"),
        (
            [Bandwidth(at_s=0, medium="x", rate=1e6)],
            "there is no medium 'x' in this lab. It has air",
        ),
        ([Load(at_s=0, device="b", busy_frac=0.5, lasts_s=1)], "b is as fast as this machine"),
        ([Join(at_s=1, device="a")], "a is there already"),
        (
            [Leave(at_s=1, device="a"), Freeze(at_s=2, device="a", lasts_s=1)],
            "gone since its leave at 1 s",
        ),
        (
            [Crash(at_s=1, device="a"), Join(at_s=2, device="a"), Join(at_s=3, device="a")],
            "join at 3 s .* there already",
        ),
    ],
)
def test_what_cannot_happen_is_refused_before_anything_does(script, says):
    with pytest.raises(UserError, match=says):
        check(script, CAST)


def test_who_was_gone_before_joins_and_links_of_specs_do_not_change():
    gone = ScenarioContext(devices=("a", "b"), absent=("a",))
    check([Join(at_s=1, device="a"), Crash(at_s=2, device="a")], gone)
    with pytest.raises(UserError, match="gone when the script begins"):
        check([Crash(at_s=0, device="a")], gone)
    for item in (
        Flow(at_s=0, source="a", target="b", lasts_s=1),
        Loss(at_s=0, medium="air", loss_frac=0.1),
    ):
        with pytest.raises(UserError, match="TOML files, can change"):
            check([item], gone)


def test_scripts_stretch_with_the_lab():
    assert slowed(Bandwidth(at_s=1, medium="air", rate="8 Mbit/s"), 10) == Bandwidth(
        at_s=10, medium="air", rate=1e5
    )
    assert slowed(Freeze(at_s=1, device="a", lasts_s=2), 10) == Freeze(
        at_s=10, device="a", lasts_s=20
    )
    assert slowed(Loss(at_s=1, medium="air", loss_frac=0.1), 10) == Loss(
        at_s=10, medium="air", loss_frac=0.1
    )


class Recorded:
    """Devices and links that write down what is done to them."""

    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda *given: self.done.append((name, *given))


def played(script):
    devices, links = Recorded(), Recorded()
    scenario = ScenarioRunner(script, devices, links)
    assert scenario.wait(TIMEOUT_S)
    scenario.close()
    return scenario, devices.done, links.done


def test_what_lasts_ends_and_what_follows_waits_its_turn():
    script = [
        Load(at_s=0, device="a", busy_frac=0.75, lasts_s=0.02),
        Freeze(at_s=0.01, device="b", lasts_s=0.02),
        Crash(at_s=0.05, device="a"),
        Join(at_s=0.06, device="a"),
        Leave(at_s=0.07, device="b"),
    ]
    scenario, devices, _ = played(script)
    assert devices == [
        ("load", "a", 4.0),
        ("freeze", "b"),
        ("load", "a", 1.0),
        ("thaw", "b"),
        ("kill", "a"),
        ("restart", "a"),
        ("stop", "b"),
    ]
    assert [item for _, item, _, _ in scenario.happened] == [
        script[0],
        script[1],
        script[0],
        script[1],
        *script[2:],
    ]
    assert [str(each) for each in scenario.happened[2:4]] == [
        f"{script[0]} is over",
        f"{script[1]} is over",
    ]
    assert all(each.failure is None for each in scenario.happened)


def test_loss_is_told_medium_by_medium_and_calm_follows_the_end():
    _, _, links = played(
        [
            Loss(at_s=0, medium="air", loss_frac=0.1),
            Loss(at_s=0, medium="wire", loss_frac=0.2),
            Loss(at_s=0, medium="air", loss_frac=0.0),
        ]
    )
    assert links == [("lose", "air", 0.1), ("lose", "wire", 0.2), ("lose", "air", 0.0), ("calm",)]


def test_what_lasts_ends_with_the_script():
    devices = Recorded()
    scenario = ScenarioRunner(
        [Freeze(at_s=0, device="a", lasts_s=1e6), Crash(at_s=1e6, device="b")], devices, None
    )
    while not scenario.happened:
        scenario.wait(0.01)
    scenario.close()
    scenario.close()
    assert devices.done == [("freeze", "a"), ("thaw", "a")]


@pytest.fixture
def log():
    """What the lab has noted."""
    kept, lab = BufferingHandler(1000), logging.getLogger("potluck.lab")
    lab.addHandler(kept)
    yield kept.buffer
    lab.removeHandler(kept)


def test_a_happening_that_fails_is_noted_and_told_and_the_next_comes(log):
    script = [Bandwidth(at_s=0, medium="air", rate=1e6), Crash(at_s=0, device="a")]
    scenario = ScenarioRunner(script, devices := Recorded(), None)
    assert scenario.wait(TIMEOUT_S)
    (_, _, _, first), (_, _, _, second) = scenario.happened
    assert isinstance(first, HomeError)
    assert second is None
    assert devices.done == [("kill", "a")]
    assert [record.getMessage() for record in log] == [f"script: {script[0]} failed: {first}"]


def test_a_lab_that_is_slower_takes_longer_and_tells_what_the_script_says():
    happened, script = [], [Freeze(at_s=0.001, device="a", lasts_s=0.002)]
    scenario = ScenarioRunner(script, Recorded(), None, time_scale=10, tell=happened.append)
    assert scenario.wait(TIMEOUT_S)
    assert [(each.item, each.over) for each in happened] == [(script[0], False), (script[0], True)]
    assert all(each.passed_s >= at_s for each, at_s in zip(happened, (0.01, 0.03), strict=True))


def test_a_script_can_be_ended_early():
    devices = Recorded()
    scenario = ScenarioRunner([Crash(at_s=1e6, device="a")], devices, None)
    scenario.close()
    assert devices.done == []
    assert isinstance(ScenarioEvent(at_s=0), ScenarioEvent)
