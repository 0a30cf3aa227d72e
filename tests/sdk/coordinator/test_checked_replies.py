"""A coordinator that lies costs the notebook an error in words: no traceback, no loop without an
end, and nothing that a terminal obeys.
"""

from types import SimpleNamespace

import pytest

from potluck.coordinator import detached_run
from potluck.coordinator.checked_replies import MAX_LOSSES
from potluck.coordinator.detached_run import DetachedRun
from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.state_size import MAX_KNOWN, check_size, remember, remembered
from potluck.errors import HomeError, PotluckError, UserError
from potluck.sessions.connections import Keys

HONEST = {
    "first_step": 3,
    "n_batches": 9,
    "step": 5,
    "losses": [0.5, 0.25],
    "state": "training",
    "why": "",
    "notes": ["a device was lost"],
    "plan": "",
    "is_under_way": True,
    "names": [],
}
LIES = {
    "before its first step": {"step": 2},
    "beyond its end": {"step": 13},
    "past all steps": {"step": 2**62, "n_batches": 2**62},
    "batches without end": {"n_batches": 10**12},
    "no batch": {"n_batches": 0, "step": 3, "losses": []},
    "fewer losses": {"losses": [0.5]},
    "more losses": {"losses": [0.5] * (MAX_LOSSES + 1)},
    "no numbers": {"losses": ["a", None]},
    "no list": {"losses": None},
    "half a step": {"step": 5.0},
    "a true step": {"first_step": True},
    "flying": {"state": "flying"},
    "no text": {"why": None},
    "notes of numbers": {"notes": [1]},
    "names of one": {"names": [["a"]]},
    "copies nowhere": {"copies": [["key", "host", 0]]},
    "copies without end": {"copies": [["k" * 40, f"host{i}", 1] for i in range(9)]},
    **{
        f"{where} at what is no host, {host!r}": {where: [["k" * 40, host, 1]]}
        for where in ("seats", "copies")
        for host in ("\ud800", "pi\0.evil", "\x1b[2J", "\u202e", "a b", "a/b", "")
    },
    "perhaps under way": {"is_under_way": "yes"},
}


@pytest.fixture
def answers(monkeypatch):
    """What each word is answered with."""
    replies = {"status": (HONEST, b"")}

    def ask(self, what, *_, since=0, **about):
        answer, data = replies[what]
        if since:
            answer = {**answer, "losses": answer["losses"][since:]}
        return answer, data

    monkeypatch.setattr(Endpoint, "ask", ask)
    return replies


@pytest.fixture
def place():
    return Endpoint(host="127.0.0.1", port=1, key="k" * 40, keys=Keys(public="", secret=""))


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_no_coordinator_says_is_not_believed(answers, place, lie):
    answers["status"] = ({**HONEST, **lie}, b"")
    with pytest.raises(HomeError, match=r"answer to (how far it is|who coordinates) is none"):
        DetachedRun(place, "job")


@pytest.mark.parametrize("field", HONEST)
def test_nor_is_half_an_answer(answers, place, field):
    answers["status"] = ({name: v for name, v in HONEST.items() if name != field}, b"")
    with pytest.raises(HomeError, match="is none"):
        DetachedRun(place, "job")


def test_where_copies_are_is_shown_while_it_is_trained(answers, place):
    run = DetachedRun(place, "job")
    assert run.copies == ()
    assert repr(run).endswith("loss 0.25, no copy of its journal elsewhere>")
    answers["status"] = ({**HONEST, "copies": [["k" * 40, "::1", 7], ["l" * 40, "pi", 8]]}, b"")
    assert run.copies == ("[::1]:7", "pi:8")
    assert repr(run).endswith("its journal copied to [::1]:7, pi:8>")
    answers["status"] = ({**HONEST, "state": "stopped", "is_under_way": False}, b"")
    assert "cop" not in repr(run)


def test_one_that_goes_back_is_followed(answers, place, monkeypatch):
    honest = [0.5, 0.25, 0.125]
    now = {"step": 6}

    def ask(self, what, *_, since=0, **about):
        done = honest[: now["step"] - 3]
        return {**HONEST, "step": now["step"], "losses": done[since:]}, b""

    monkeypatch.setattr(Endpoint, "ask", ask)
    run = DetachedRun(place, "job")
    assert run.losses == (0.5, 0.25, 0.125)
    now["step"], honest[1] = 4, 9.0
    assert run.losses == (0.5,)
    now["step"] = 6
    assert run.losses == (0.5, 9.0, 0.125)


def test_what_a_terminal_would_obey_is_not_shown(answers, place):
    evil = "\x1b[2J\u202eboo\n"
    status = {"why": evil, "notes": [evil], "plan": evil}
    answers["status"] = ({**HONEST, **status}, b"")
    run = DetachedRun(place, "job")
    for shown in (repr(run), run.why, *run.notes, run.plan):
        assert "\x1b" not in shown
        assert "\u202e" not in shown


STATES = {
    "nothing": ({"file": "saved-0.safetensors", "nbytes": 10}, b""),
    "more than all": ({"file": "saved-0.safetensors", "nbytes": 10}, bytes(11)),
    "an empty file": ({"file": "saved-0.safetensors", "nbytes": 0}, b""),
    "a file of ours": ({"file": "../../x", "nbytes": 10}, bytes(10)),
    "no size": ({"file": "saved-0.safetensors"}, bytes(10)),
    "past all disks": ({"file": "saved-0.safetensors", "nbytes": 2**60}, bytes(10)),
    "no state": ({"file": "saved-0.safetensors", "nbytes": 10}, bytes(10)),
}


@pytest.mark.parametrize("answer", STATES.values(), ids=STATES)
def test_a_state_that_does_not_come_leaves_nothing(tmp_path, answers, place, answer):
    run = DetachedRun(place, "job")
    answers["read"] = answer
    with pytest.raises(Exception, match=r"is none|cannot read") as caught:
        run.save(tmp_path / "state")
    assert isinstance(caught.value, HomeError | detached_run.FileError)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("most", "nbytes"), [(1000, 1001), (1000, 2**50), (None, 2**50)])
def test_no_more_is_fetched_than_a_state_may_have(
    tmp_path, answers, place, monkeypatch, most, nbytes
):
    requests = []

    def ask(self, what, *_, **about):
        requests.append(what)
        return answers[what]

    monkeypatch.setattr(Endpoint, "ask", ask)
    answers["status"] = ({**HONEST, "step": 3, "losses": []}, b"")
    answers["read"] = ({"file": "saved-0.safetensors", "nbytes": nbytes}, bytes(100))
    run = DetachedRun(place, "job", most)
    for fetch in (lambda: run.save(tmp_path / "state"), run.state_dict):
        with pytest.raises(PotluckError, match=r"it may have|are free at"):
            fetch()
    assert requests.count("read") == 2
    assert [*tmp_path.iterdir()] == []


def test_of_a_state_that_nobody_knows_half_a_disk_is_taken_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    check_size("job", 500, None, tmp_path)
    check_size("job", 1000, 2000, tmp_path)
    for nbytes, most in ((501, None), (1001, 2000)):
        with pytest.raises(UserError, match="Make room there"):
            check_size("job", nbytes, most, tmp_path)


@pytest.mark.long
def test_what_a_state_may_have_is_known_to_the_next_notebook(tmp_path):
    assert remembered(tmp_path, "job") is None
    for number in range(MAX_KNOWN + 1):  # the oldest is forgotten
        remember(tmp_path, f"job-{number}", number + 1)
    assert remembered(tmp_path, "job-0") is None
    assert remembered(tmp_path, f"job-{MAX_KNOWN}") == MAX_KNOWN + 1
    for odd in ("[]", '{"job": -1}', '{"job": true}', "nothing"):
        (tmp_path / "handed-over.json").write_text(odd)
        assert remembered(tmp_path, "job") is None


def test_one_that_never_stops_is_not_waited_for_without_end(answers, place, monkeypatch):
    monkeypatch.setattr(detached_run, "STOP_S", 0.2)
    answers["stop"] = ({}, b"")
    with pytest.raises(HomeError, match="is still trained after"):
        DetachedRun(place, "job").stop()
