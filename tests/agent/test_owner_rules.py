"""The owner's rules, over every reading that there may be: what breaks them, what mends them, and
that a device at a limit does not come and go.
"""

import plistlib
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

import pytest

from potluck_agent.cli import arguments
from potluck_agent.cli.options import start_options
from potluck_agent.owner_rules import (
    BATTERY_MARGIN_FRAC,
    DAY_MINUTES,
    TEMP_MARGIN_C,
    DeviceConditions,
    OwnerRules,
    broken,
    reason,
)
from potluck_agent.service import launchd, systemd
from potluck_agent.service.install_steps import AgentService

N_TRIES = 2000


def any_readings(rng):
    return DeviceConditions(
        on_mains=rng.choice((True, False, None)),
        battery_frac=rng.choice((None, rng.random())),
        temp_c=rng.choice((None, rng.uniform(20, 110))),
        minute=rng.randrange(DAY_MINUTES),
    )


def any_rules(rng):
    return OwnerRules(
        only_on_mains=rng.choice((True, False)),
        min_battery_frac=rng.choice((None, rng.uniform(0.05, 1))),
        max_temp_c=rng.choice((None, rng.uniform(40, 100))),
        quiet_hours=rng.choice((None, tuple(rng.sample(range(DAY_MINUTES), 2)))),
    )


def any_case(seed):
    rng = random.Random(seed)
    rules = any_rules(rng)
    before = broken(rules, any_readings(rng), {})
    return rules, any_readings(rng), before


def test_without_rules_nothing_keeps_a_device_away():
    for seed in range(N_TRIES):
        assert broken(OwnerRules(), any_readings(random.Random(seed)), {}) == {}


def test_only_rules_that_were_given_are_broken_and_each_says_why():
    of = {
        "mains": "only_on_mains",
        "battery": "min_battery_frac",
        "temperature": "max_temp_c",
        "quiet hours": "quiet_hours",
    }
    n_broken = 0
    for seed in range(N_TRIES):
        rules, readings, before = any_case(seed)
        found = broken(rules, readings, before)
        n_broken += len(found)
        assert all(getattr(rules, of[rule]) for rule in found)
        assert all(found.values())
        assert reason(found) == "; ".join(found.values())
    assert n_broken > N_TRIES / 2


def test_worse_readings_break_no_fewer_rules():
    for seed in range(N_TRIES):
        rules, readings, before = any_case(seed)
        worse = replace(
            readings,
            on_mains=readings.on_mains and None,
            battery_frac=None if readings.battery_frac is None else readings.battery_frac / 2,
            temp_c=None if readings.temp_c is None else readings.temp_c + 10,
        )
        if readings.on_mains:
            worse = replace(worse, on_mains=False)
        found = broken(rules, readings, before).keys()
        assert found <= broken(rules, worse, before).keys()


def test_what_cannot_be_read_leaves_everything_as_it_was():
    for seed in range(N_TRIES):
        rules, readings, before = any_case(seed)
        rules = replace(rules, quiet_hours=None)
        before = {rule: why for rule, why in before.items() if rule != "quiet hours"}
        assert broken(rules, DeviceConditions(minute=readings.minute), before) == before


def test_a_reading_that_wavers_about_its_limit_changes_the_answer_once():
    for seed in range(200):
        rng = random.Random(seed)
        rules = OwnerRules(min_battery_frac=rng.uniform(0.1, 0.9), max_temp_c=rng.uniform(40, 100))
        answers, found = [], {}
        for _ in range(30):
            battery = rules.min_battery_frac + rng.uniform(-1, 0.99) * BATTERY_MARGIN_FRAC
            hot = rules.max_temp_c + rng.uniform(-0.99, 1) * TEMP_MARGIN_C
            found = broken(rules, DeviceConditions(battery_frac=battery, temp_c=hot), found)
            answers.append(set(found))
        assert all(a <= b for a, b in pairwise(answers))
        well = DeviceConditions(
            battery_frac=min(1.0, rules.min_battery_frac + BATTERY_MARGIN_FRAC),
            temp_c=rules.max_temp_c - TEMP_MARGIN_C,
        )
        assert broken(rules, well, found) == {}


def test_a_battery_that_has_to_be_full_is_enough_when_it_is():
    empty = broken(OwnerRules(min_battery_frac=1.0), DeviceConditions(battery_frac=0.5), {})
    assert empty
    assert broken(OwnerRules(min_battery_frac=1.0), DeviceConditions(battery_frac=1.0), empty) == {}


@pytest.mark.parametrize("hours", [(22 * 60, 7 * 60), (9 * 60, 17 * 60), (0, 1), (1439, 0)])
def test_quiet_hours_are_the_minutes_from_the_first_time_up_to_the_second(hours):
    start, stop = hours
    quiet, minute = set(), start
    while minute != stop:
        quiet.add(minute)
        minute = (minute + 1) % DAY_MINUTES
    rules = OwnerRules(quiet_hours=hours)
    for minute in range(DAY_MINUTES):
        assert bool(broken(rules, DeviceConditions(minute=minute), {})) == (minute in quiet)


# --- the command line -----------------------------------------------------------------------------

GIVEN = ["--only-on-mains", "--min-battery", "30%", "--max-temp", "80", "--quiet-hours"]


def test_rules_are_read_from_the_command_line():
    given = arguments.read([*GIVEN, "22:00-07:00", "--drain", "20"])
    chosen = start_options(given, 1)
    assert chosen.rules == OwnerRules(
        only_on_mains=True, min_battery_frac=0.3, max_temp_c=80.0, quiet_hours=(1320, 420)
    )
    assert chosen.drain_s == 20
    assert chosen.rules.words == (
        "only on mains",
        "battery at 30% or more",
        "at most 80 °C",
        "not from 22:00 to 07:00",
    )


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--min-battery", "130%", "1% to 100%"),
        ("--min-battery", "0", "1% to 100%"),
        ("--min-battery", "0.3", "1% to 100%"),
        ("--min-battery", "-5", "1% to 100%"),
        ("--min-battery", "half", "1% to 100%"),
        ("--max-temp", "400", "30 to 120"),
        ("--max-temp", "nan", "30 to 120"),
        ("--quiet-hours", "25:00", "22:00-07:00"),
        ("--quiet-hours", "22:00-24:00", "00:00 to 23:59"),
        ("--quiet-hours", "22:60-07:00", "00:00 to 23:59"),
        ("--quiet-hours", "22-7", "22:00-07:00"),
        ("--quiet-hours", "22:00-22:00", "the whole day"),
        ("--drain", "-1", "0.1 to 86400"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_is_expected(option, text, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.read([option, text])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert option in output
    assert expected in output


def test_a_service_gets_the_rules_as_they_were_given():
    words = arguments.start_words(["install", *GIVEN, "22:00-07:00", "--drain", "20", "--print"])
    assert words == [
        "--only-on-mains",
        "--min-battery=30%",
        "--max-temp=80",
        "--quiet-hours=22:00-07:00",
        "--drain=20",
    ]
    given = arguments.read(["install", *GIVEN, "22:00-07:00"])
    assert start_options(arguments.read(["start", *words]), 1).rules == OwnerRules(
        only_on_mains=given.only_on_mains,
        min_battery_frac=given.min_battery,
        max_temp_c=given.max_temp,
        quiet_hours=given.quiet_hours,
    )


@pytest.mark.parametrize("drain_s", [0.0, 60.0, 300.5])
def test_a_service_has_the_time_to_move_what_it_runs(drain_s):
    service = AgentService(
        command=("python",),
        user="ada",
        uid=1000,
        home=PurePath("/home/ada"),
        config=PurePath("/home/ada/.config"),
        is_system=False,
        drain_s=drain_s,
    )
    assert f"TimeoutStopSec={drain_s + 10:g}\n" in systemd.unit(service)
    assert plistlib.loads(launchd.plist(service))["ExitTimeOut"] >= drain_s + 10
