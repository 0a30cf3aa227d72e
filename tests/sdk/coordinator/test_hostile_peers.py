"""What coordinators, and notebooks that are known, may say to one another: refused in words, with
bounded memory, and nothing outside the folder is read or written.
"""

import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from tests.sdk.coordinator.in_memory import JOB, again, new_keys, until
from tests.sdk.coordinator.test_kill_moments import Watched, case, home

from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.coordinator_group import MAX_SEATS, CoordinatorGroup, Seat
from potluck.coordinator.fetched_states import CHUNK_BYTES
from potluck.coordinator.job import JOURNAL, MODEL, files_of
from potluck.coordinator.journal import Journal
from potluck.coordinator.server import VERSION, CoordinatorServer
from potluck.coordinator.shared_job import MAX_JOURNAL_BYTES, fetch
from potluck.errors import HomeError, PotluckError, UserError

torch = pytest.importorskip("torch")
__all__ = ["case", "home"]  # fixtures
PULL = {"at": 0, "digest": "", "counts": True, "has": 0}


@contextmanager
def standing(home):
    """A shares a job with B; time stands still, so that it does so all the while."""
    home.shared()
    goes_on, stands = threading.Event(), threading.Event()
    still = threading.Thread(
        target=home.lab.driver.do, args=(lambda: stands.set() or goes_on.wait(),)
    )
    still.start()
    stands.wait()
    yield home
    goes_on.set()
    still.join()


@pytest.fixture
def server(home):
    """A's in a home that stands still."""
    with standing(home):
        yield home.alive["A"].server


@pytest.fixture(scope="module")
def calm(tmp_path_factory, case):
    """A home that stands still, for all that is refused and leaves it as it is."""
    found = Watched(tmp_path_factory.mktemp("calm"), case)
    with standing(found):
        yield found
    found.close()
    assert found.wrong == []


def say(server, who, **about):
    about = {"version": VERSION, **about}
    return server.answer([b"", json.dumps(about).encode(), b""], who)


@pytest.mark.long
@pytest.mark.parametrize("what", ["files", "file", "pull"])
def test_a_notebook_that_has_not_joined_copies_nothing(calm, what):
    for keys, why in (
        (calm.keys["notebook"], "is shared with others"),
        (new_keys(), "is not for a key that is not trusted here"),
    ):
        answer, data = say(
            calm.alive["A"].server, keys.public, ask=what, job=JOB, file=MODEL, **PULL
        )
        assert why in answer["error"]
        assert data == b""


FILES = [
    "../../notebook/identity.json",
    "batches/../job.json",
    "/etc/passwd",
    JOURNAL,
    "model.safetensors\0",
    "batches/rows-00000.safetensors/../../job.json",
    "",
    "x" * 10_000,
]


@pytest.mark.parametrize("name", FILES, ids=range(len(FILES)))
def test_no_file_but_a_jobs_own_is_given_to_who_has_joined(calm, name):
    answer, data = say(
        calm.alive["A"].server, calm.keys["B"].public, ask="file", job=JOB, file=name
    )
    assert "a job has no file" in answer["error"]
    assert len(answer["error"]) < 400
    assert data == b""


@pytest.mark.long
def test_a_file_is_given_in_parts_of_bounded_size(home, server):
    with (home.disk("A") / JOB / MODEL).open("ab") as file:
        file.truncate(3 * CHUNK_BYTES)
    for at, nbytes in ((0, CHUNK_BYTES), (3 * CHUNK_BYTES - 1, 1), (1 << 50, 0)):
        answer, data = say(server, home.keys["B"].public, ask="file", job=JOB, file=MODEL, at=at)
        assert answer["nbytes"] == 3 * CHUNK_BYTES
        assert len(data) == nbytes


ODD = [
    {"at": -1},
    {"at": True},
    {"at": 2**70},
    {"at": "0"},
    {"at": 1.5},
    {"digest": ["x"] * 1000},
    {"has": 10**400},
    {"counts": "yes"},
    {"version": VERSION + 1},
    {"key": "k" * 40},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_an_odd_pull_counts_for_nothing(calm, odd):
    before = calm.counts("B")
    server = calm.alive["A"].server
    its_key = calm.keys["B"].public
    answer, data = say(server, its_key, **{"ask": "pull", "job": JOB, **PULL, **odd})
    assert answer.get("error") or answer["acts"] is False or len(data) <= CHUNK_BYTES
    assert calm.counts("B") == before
    answer, data = say(server, its_key, ask="pull", job=JOB, **PULL)
    assert (answer["acts"], answer["at"]) == (True, 0)


@pytest.mark.long
def test_no_more_join_than_have_room(home):
    trusted = [new_keys().public for _ in range(MAX_SEATS)]
    with standing(home):
        server = CoordinatorServer(home.alive["A"].coordinator, home.keys["A"], frozenset(trusted))
        seen = [
            say(server, key, ask="join", host="a", port=1 + i)[0] for i, key in enumerate(trusted)
        ]
        server.close()
    assert [("error" in answer) for answer in seen] == [False] * (MAX_SEATS - 2) + [True] * 2
    assert "no more coordinators fit in" in seen[-1]["error"]


OWN = "own"
EVERYTHING = [
    *({"ask": what, "job": OWN} for what in ("status", "start", "stop", "read", "forget")),
    *({"ask": what, "job": OWN, **PULL} for what in ("files", "file", "pull")),
    *({"ask": what, "job": "new", "files": {}, "at": 0} for what in ("begin", "put", "admit")),
    {"ask": "begin", "job": JOB, "files": {}},
    {"ask": "join", "host": "h", "port": 1, "job": OWN},
]


@pytest.fixture(scope="module")
def entrance(calm):
    """Of B, which trusts itself alone, has joined A, and has another job of its own."""
    coordinator, keys = calm.alive["B"].coordinator, calm.keys["B"]
    shutil.copytree(calm.case.packed, coordinator.folder / OWN)
    coordinator.admit(OWN)
    server = CoordinatorServer(coordinator, keys, frozenset({keys.public}))
    yield server
    server.close()


@pytest.mark.parametrize("who", ["A", "notebook", "nobody"])
def test_with_whom_a_job_is_shared_asks_about_that_one_alone(calm, entrance, who):
    keys = calm.keys.get(who) or new_keys()
    is_guest = who != "nobody"
    for about in EVERYTHING[: None if not is_guest else -1]:
        assert "is not for a key" in say(entrance, keys.public, **about)[0]["error"], about
    assert calm.alive["B"].coordinator.jobs() == (JOB, OWN)
    assert say(entrance, keys.public, ask="jobs")[0] == {"jobs": [JOB] if is_guest else []}
    assert say(entrance, calm.keys["B"].public, ask="status", job=OWN)[0]["state"] == "waiting"
    assert ("acts" in say(entrance, keys.public, ask="status", job=JOB)[0]) is is_guest


def test_no_guest_has_another_job_shared_with_it(tmp_path, case):
    """Of what is trained here for others, nobody founds a group by asking."""
    mine, guest = new_keys(), new_keys()
    coordinator = Coordinator(tmp_path, list)
    shutil.copytree(case.packed, tmp_path / JOB)
    coordinator.admit(JOB)
    group = CoordinatorGroup(
        seats=(Seat(key=guest.public, host="h", port=1),), voters=(mine.public,), notebooks=()
    )
    Journal(tmp_path / JOB / JOURNAL).add(group=group.row())
    server = CoordinatorServer(coordinator, mine, frozenset({mine.public}))
    try:
        assert say(server, guest.public, ask="status", job=JOB)[0]["seats"]
        answer, _ = say(server, guest.public, ask="join", host="h", port=1)
        assert "error" in answer
    finally:
        server.close()


LIES = [
    None,
    [],
    {"../x": [1, ""]},
    {MODEL: [2**70, ""]},
    {MODEL: [-1, ""]},
    {MODEL: "x"},
    {f"batches/rows-{i:05}.safetensors": [1, ""] for i in range(20_000)},
]


@pytest.mark.parametrize("files", LIES, ids=range(len(LIES)))
def test_files_that_no_job_has_are_not_asked_for(tmp_path, files):
    requests = []

    def ask(what, data=b"", **about):
        requests.append(what)
        return {"files": files}, b""

    with pytest.raises(UserError, match=r"not the files of a job|a job has no file"):
        fetch(tmp_path, JOB, ask)
    assert requests == ["files"]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("n_bytes", [0, CHUNK_BYTES])
def test_a_file_that_does_not_end_or_does_not_come_is_given_up(tmp_path, case, n_bytes):
    files = {name: [*known] for name, known in files_of(case.packed).items()}

    def ask(what, data=b"", **about):
        return ({"files": files}, b"") if what == "files" else ({}, bytes(n_bytes))

    with pytest.raises(PotluckError, match=r"does not come whole|bytes have come, in order"):
        fetch(tmp_path, JOB, ask)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert written <= sum(nbytes for nbytes, _ in files.values())
    assert not (tmp_path / JOB).exists()


def test_a_seat_that_is_anywhere_is_refused():
    for host in ("", "a b\n", "a/b", "x" * 300):
        with pytest.raises(ValueError, match="no coordinator's key and address"):
            Seat(key=new_keys().public, host=host, port=1)


MADE_UP = Journal.line({"acts": new_keys().public, "term": 2**50})


@pytest.mark.long
def test_who_copies_is_told_lies_and_keeps_what_it_has(home, monkeypatch):
    """A's answers turn into rubbish; B keeps its copy, says nothing of it, and copies on later."""
    training = home.shared()
    server, lies = home.alive["A"].server, iter(range(40))
    honest = server.answer

    def answer(parts, key=""):
        found = honest(parts, key)
        n = next(lies, None)
        if json.loads(parts[1])["ask"] != "pull" or n is None:
            return found
        rubbish = [
            ({"acts": True}, b"x"),
            ({**found[0], "nbytes": -1}, b""),
            ({**found[0], "state": ["../x", 1, "", 1]}, b""),
            (found[0], b"no line\n"),
            (found[0], b"cut"),
            (found[0], MADE_UP),
            ({**found[0], "term": 2**50}, MADE_UP),
        ]
        return rubbish[n % len(rubbish)]

    monkeypatch.setattr(server, "answer", answer)
    before = home.progress("B")
    until(lambda: next(lies, None) is None or home.is_over())
    assert home.progress("B").losses[: len(before.losses)] == before.losses
    assert not (home.disk("B") / "x").exists()
    assert home.progress("B").term < 2**40  # else B could never act, nor copy from who does
    home.ends(training)


FOLLOWS = {
    "another place, each time": (lambda at: at + 7, 10**9),
    "a journal without an end": (lambda at: at, 2**52),
    "lines without an end": (lambda at: at, MAX_JOURNAL_BYTES),
}


@pytest.mark.long
@pytest.mark.parametrize(("place", "nbytes"), FOLLOWS.values(), ids=FOLLOWS)
def test_who_copies_from_one_that_lies_without_end_can_be_ended(home, monkeypatch, place, nbytes):
    home.shared()
    server, n_pulls = home.alive["A"].server, 0
    honest, lines = server.answer, b'{"note": "more"}\n' * 10

    def answer(parts, key=""):
        nonlocal n_pulls
        request = json.loads(parts[1])
        if request["ask"] != "pull":
            return honest(parts, key)
        n_pulls += 1
        state = ["start.safetensors", 0, "", 1]
        status = {"acts": True, "term": 2**40, "nbytes": nbytes, "told": 0, "state": state}
        return {**status, "at": place(request["at"])}, lines

    monkeypatch.setattr(server, "answer", answer)
    until(lambda: n_pulls > 100)
    home.alive["B"].coordinator.close()
    size = sum(path.stat().st_size for path in home.disk("B").rglob("journal*"))
    assert size <= n_pulls * len(lines) + 100_000


@pytest.mark.long
def test_whoever_is_refused_is_told_why_and_others_are_answered(home):
    home.shared()
    with pytest.raises(HomeError, match="a job has a name"):
        home.place(home.keys["A"].public).ask("files", job="../x")
    assert again(lambda: home.attached("A")).job == JOB
