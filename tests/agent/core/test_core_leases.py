"""Coordinators ask to act: terms only grow, what was promised is on disk before it is said, and
runs of older terms end.
"""

import json
from dataclasses import replace

import pytest
from tests.agent.core.core_driver import (
    OTHER_KEY,
    OTHER_SENDER,
    OWNER_KEY,
    OWNER_SENDER,
    Talk,
    plan,
    recv,
)

from potluck_agent.core.events import KeepLeases, ToPeer, Undone
from potluck_agent.core.leases import MAX_KEPT, LeaseTable
from potluck_agent.errors import AgentError
from potluck_agent.lease_file import FILE, is_sound, keep, kept
from potluck_wire.limits import MAX_INT, MAX_LEASE_S, MAX_LEASES, MAX_STR_BYTES
from potluck_wire.messages import Lease, Leased, Prepare, Prepared, RefusalCode, Refused

PROMISE = Lease(task="t", name="job", term=1, lasts_s=2.0)
WRITE = Lease(task="t", name="job", term=1, serial=1, lasts_s=5.0, record="A")


def two():
    """A core with two coordinators."""
    return Talk().begin().begin(OTHER_SENDER)


def asks(talk, message, sender=OWNER_SENDER):
    """The answer, and whether it waits for the disk."""
    *_, action = talk.receive(message, sender=sender)
    is_kept = isinstance(action, KeepLeases)
    reply = action.answer if is_kept else action
    assert reply.key == sender.key
    return reply.message, is_kept


def test_a_promise_is_on_disk_before_it_is_said():
    talk = two()
    (action,) = talk.receive(PROMISE)
    granted = Leased(task="t", granted=True, term=1, left_s=2.0)
    assert action.answer == ToPeer(key=OWNER_KEY, message=granted)
    assert is_sound(action.rows)
    again = LeaseTable(json.dumps(action.rows))
    assert again.term("job") == 1


def test_a_renewal_changes_nothing_on_disk():
    talk = two()
    asks(talk, PROMISE)
    assert asks(talk, WRITE)[1]
    talk.now_s += 3.0
    answer, is_kept = asks(talk, WRITE)
    assert (answer.granted, answer.left_s, answer.record, is_kept) == (True, 5.0, "A", False)


@pytest.mark.parametrize(
    ("lease", "is_granted"),
    [
        (replace(PROMISE, term=2), False),  # the lease is another's
        (replace(WRITE, term=2), False),
        (replace(PROMISE, term=1), False),
        (replace(WRITE, serial=2), False),  # that term is another's
    ],
)
def test_while_it_is_held_another_one_gets_nothing(lease, is_granted):
    talk = two()
    asks(talk, WRITE)
    talk.now_s += 4.9
    answer, _ = asks(talk, lease, OTHER_SENDER)
    assert answer.granted is is_granted
    assert answer.left_s == pytest.approx(0.1)
    assert (answer.term, answer.accepted_term, answer.accepted_serial) == (1, 1, 1)
    assert answer.record == "A"


def test_once_it_is_over_another_one_gets_a_newer_term_and_the_old_one_nothing():
    talk = two()
    asks(talk, WRITE)
    talk.now_s += 5.0
    answer, is_kept = asks(talk, replace(PROMISE, term=2), OTHER_SENDER)
    assert (answer.granted, answer.record, is_kept) == (True, "A", True)
    late, _ = asks(talk, replace(WRITE, serial=2))
    assert (late.granted, late.term) == (False, 2)


def test_its_holder_may_take_a_newer_term_at_any_time_and_give_it_back():
    talk = two()
    asks(talk, WRITE)
    assert asks(talk, replace(PROMISE, term=5))[0].granted
    assert asks(talk, replace(WRITE, term=5, lasts_s=0.0))[0].granted
    assert asks(talk, replace(PROMISE, term=6), OTHER_SENDER)[0].granted


def test_records_of_a_term_are_written_in_order():
    talk = two()
    asks(talk, WRITE)
    assert asks(talk, replace(WRITE, serial=3, record="C"))[0].granted
    for late in (WRITE, replace(WRITE, serial=3, record="D")):
        answer, _ = asks(talk, late)
        assert (answer.granted, answer.record) == (False, "C")


@pytest.mark.parametrize(
    "lease",
    [
        replace(PROMISE, name=""),
        replace(PROMISE, name="a/b"),
        replace(PROMISE, term=0),
        replace(PROMISE, lasts_s=-1.0),
        replace(PROMISE, lasts_s=MAX_LEASE_S + 1),
        replace(PROMISE, serial=1),
        replace(WRITE, serial=0),
    ],
)
def test_what_is_no_question_is_not_granted(lease):
    answer, is_kept = asks(two(), lease)
    assert not answer.granted
    assert not is_kept


def test_what_could_not_be_kept_is_kept_with_the_next_answer():
    talk = two()
    (action,) = talk.receive(WRITE)
    talk.core.handle(Undone(action, "KeepLeases: the disk is full"), talk.now_s)
    assert asks(talk, WRITE)[1]
    assert not asks(talk, WRITE)[1]


def test_after_a_restart_a_lease_runs_for_as_long_as_it_was_given():
    talk = two()
    (action,) = talk.receive(WRITE)
    again = Talk(leases=json.dumps(action.rows)).begin().begin(OTHER_SENDER)
    answer, _ = asks(again, replace(PROMISE, term=2), OTHER_SENDER)
    assert (answer.granted, answer.left_s) == (False, 5.0)
    again.now_s += 5.0
    assert asks(again, replace(PROMISE, term=2), OTHER_SENDER)[0].granted


def test_runs_of_an_older_term_end_and_are_not_taken_any_more():
    talk = two()
    asks(talk, WRITE)
    old = Prepare(run="r", epoch=1, lease="job", term=1)
    talk.receive(old, *plan(recv("x")))
    new = Prepare(run="s", epoch=1, lease="job", term=2)
    talk.now_s += 5.0
    asks(talk, replace(PROMISE, term=2), OTHER_SENDER)
    assert talk.core.state()["runs"] == []
    (refused,) = talk.receive(replace(old, epoch=2), *plan(recv("x")))
    assert isinstance(refused.message, Refused)
    assert refused.message.code == RefusalCode.OLD_TERM
    taken = talk.receive(new, *plan(recv("x")), sender=OTHER_SENDER)[1]
    assert taken == ToPeer(key=OTHER_KEY, message=Prepared(run="s", epoch=1))


def test_a_device_that_was_not_asked_learns_of_a_newer_term_from_its_run():
    talk = two()
    old = Prepare(run="r", epoch=1, lease="job", term=1)
    talk.receive(old, *plan(recv("x")))
    new = Prepare(run="s", epoch=1, lease="job", term=2)
    taken = talk.receive(new, *plan(recv("x")), sender=OTHER_SENDER)
    assert ToPeer(key=OTHER_KEY, message=Prepared(run="s", epoch=1)) in taken
    (refused,) = talk.receive(replace(old, epoch=2), *plan(recv("x")))
    assert refused.message.code == RefusalCode.OLD_TERM


def test_the_holders_own_runs_go_along_into_the_newer_term():
    talk = two()
    talk.receive(Prepare(run="r", epoch=1, lease="job"), *plan(recv("x")))
    asks(talk, WRITE)
    assert [run["name"] for run in talk.core.state()["runs"]] == ["r"]
    talk.now_s += 5.0
    asks(talk, replace(PROMISE, term=2), OTHER_SENDER)
    assert talk.core.state()["runs"] == []


def test_a_run_without_a_lease_is_nobodys_business():
    talk = two()
    talk.receive(Prepare(run="r", epoch=1), *plan(recv("x")))
    assert asks(talk, PROMISE, OTHER_SENDER)[0].granted
    assert [run["name"] for run in talk.core.state()["runs"]] == ["r"]


def crowd(talk, sender, n=MAX_LEASES + 5, lasts_s=0.0):
    """Which of so many leases this notebook is granted."""
    lease = [replace(WRITE, name=f"own-{number}", lasts_s=lasts_s) for number in range(n)]
    return [asks(talk, each, sender)[0].granted for each in lease]


def test_of_one_notebook_the_latest_leases_are_known():
    table = LeaseTable()
    for number in range(MAX_LEASES + 5):
        table.ask(OWNER_KEY, replace(WRITE, name=f"job-{number}", lasts_s=0.0), 0.0)
    assert len(table.rows()) == MAX_LEASES
    assert table.term("job-4") == 0
    assert table.term("job-5") == 1


@pytest.mark.parametrize(
    "n_trusted", [1, 5, pytest.param(MAX_KEPT // MAX_LEASES + 1, marks=pytest.mark.long)]
)
def test_what_notebooks_have_written_is_read_again_however_many_were_trusted(n_trusted, tmp_path):
    """After five of them the file was longer than what is read, and the agent began no more."""
    table, record = LeaseTable(), "\x01" * MAX_STR_BYTES  # six bytes in JSON for each
    asked = Lease(task="t", term=MAX_INT, serial=MAX_INT, lasts_s=1 / 3, record=record)
    for notebook in range(n_trusted):
        for number in range(MAX_LEASES):
            name = f"{notebook}-{number}-".ljust(64, "x")
            lease = replace(asked, name=name)
            answer, _ = table.ask(f"{notebook:040}", lease, notebook)
            assert answer.granted
    rows = table.rows()
    assert len(rows) == min(n_trusted * MAX_LEASES, MAX_KEPT)
    assert {row["key"] for row in rows[-MAX_LEASES:]} == {f"{n_trusted - 1:040}"}
    keep(tmp_path, rows)
    assert LeaseTable(kept(tmp_path)).rows() == rows


def test_a_lease_that_is_held_is_not_forgotten_for_one_of_a_notebook_with_room():
    table = LeaseTable(max_kept=2)
    for number, lasts_s in enumerate((5.0, 1.0)):
        table.ask(OWNER_KEY, replace(WRITE, name=f"job-{number}", lasts_s=lasts_s), 0.0)
    more = replace(WRITE, name="more")
    assert not table.ask(OTHER_KEY, more, 0.5)[0].granted
    assert table.ask(OTHER_KEY, more, 2.0)[0].granted
    assert (table.term("job-0"), table.term("job-1")) == (1, 0)


@pytest.mark.parametrize("waited_s", [0.1, 4.9, 100.0])
def test_leases_of_another_notebook_make_nobody_forget_a_promise_or_a_record(waited_s):
    talk = two()
    asks(talk, replace(WRITE, term=7))
    talk.now_s += waited_s
    crowd(talk, OTHER_SENDER)
    for number in range(MAX_LEASES + 5):  # nor do runs under leases that are made up
        under = Prepare(run="r", epoch=number, lease=f"made-up-{number}", term=1)
        talk.receive(under, *plan(recv("x")), sender=OTHER_SENDER)
    answer, _ = asks(talk, replace(PROMISE, term=1), OTHER_SENDER)
    assert (answer.granted, answer.term, answer.record) == (False, 7, "A")
    assert asks(talk, replace(WRITE, term=7))[0].granted is True


def test_whoever_holds_as_many_as_there_may_be_gets_no_more_until_one_is_over():
    talk = two()
    assert crowd(talk, OWNER_SENDER, lasts_s=5.0) == [True] * MAX_LEASES + [False] * 5
    under = Prepare(run="r", epoch=1, lease="made-up", term=1)
    (refused,) = talk.receive(under, *plan(recv("x")))
    assert refused.message.code == RefusalCode.BUSY
    assert asks(talk, replace(WRITE, name="own-3", serial=2))[0].granted  # those it has go on
    assert asks(talk, PROMISE, OTHER_SENDER)[0].granted  # others have room of their own
    talk.now_s += 5.0
    assert asks(talk, replace(PROMISE, name="more"))[0].granted


def test_after_a_restart_what_may_be_held_still_is_not_forgotten():
    table = LeaseTable()
    for number in range(MAX_LEASES):
        table.ask(OWNER_KEY, replace(WRITE, name=f"job-{number}"), 0.0)
    again = LeaseTable(json.dumps(table.rows()))
    assert not again.ask(OWNER_KEY, replace(PROMISE, name="more"), 100.0)[0].granted
    assert again.ask(OWNER_KEY, replace(PROMISE, name="more"), 105.0)[0].granted
    assert again.term("job-0") == 0
    assert again.term("job-1") == 1


@pytest.mark.parametrize("name", ["a/b", "\x00", "x" * 200, "ä", "../keys"])
def test_a_run_under_what_is_no_name_is_refused_and_never_on_disk(name):
    talk = two()
    (refused,) = talk.receive(Prepare(run="r", epoch=1, lease=name, term=1), *plan(recv("x")))
    assert refused.message.code == RefusalCode.DOCUMENT
    (action,) = talk.receive(PROMISE)
    assert is_sound(action.rows)


@pytest.mark.parametrize(
    "rows",
    [[{}], [{"name": "a/b", "term": 1, "key": OWNER_KEY}], [{"name": "a", "term": "1"}], [1]],
)
def test_a_document_of_something_else_is_none(rows):
    assert not is_sound(rows)


def test_what_is_kept_is_read_again_and_what_is_cut_is_refused(tmp_path):
    assert kept(tmp_path) == ""
    (action,) = two().receive(WRITE)
    keep(tmp_path, action.rows)
    assert LeaseTable(kept(tmp_path)).rows() == action.rows
    (tmp_path / FILE).write_text('[{"name": "job"}]')
    with pytest.raises(AgentError, match="corrupt"):
        kept(tmp_path)
