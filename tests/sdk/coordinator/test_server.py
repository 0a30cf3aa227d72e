"""Whatever is said to a coordinator is answered in words, and only those it knows are heard."""

import errno
import json
import os
import random
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import zmq
from tests.sdk.coordinator.test_coordinator import B, case, check, handed_over, home_without, until

import potluck
from potluck.coordinator import job_upload
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.detached_run import DetachedRun
from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.fetched_states import CHUNK_BYTES
from potluck.coordinator.hand_over import hand_over
from potluck.coordinator.job import JOB, MAX_JOB_BYTES, ORDER, OWN_FILES, PROFILE, START, files_of
from potluck.coordinator.server import COMING, VERSION, CoordinatorServer
from potluck.errors import HomeError
from potluck.handle import Handle, Task
from potluck.sessions.connections import Keys
from potluck.tensor_file import read_tensors, write_tensors
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
__all__ = ["case"]  # the fixture
N_REQUESTS = 3000


def new_keys():
    public, secret = zmq.curve_keypair()
    return Keys(public=public.decode(), secret=secret.decode())


@pytest.fixture
def mine():
    return new_keys()


@pytest.fixture
def serving(tmp_path, mine):
    """A coordinator with its server at work, and its place as seen by who has its keys."""
    coordinator = Coordinator(tmp_path / "jobs", lambda: memory_home(2))
    with at_work(coordinator, mine) as place:
        yield place, coordinator


@contextmanager
def at_work(coordinator, keys):
    """The place of a coordinator while its server is at work."""
    server = CoordinatorServer(coordinator, keys, frozenset({keys.public}))
    ending = threading.Event()
    thread = threading.Thread(target=server.serve, args=(lambda _: not ending.is_set(),))
    thread.start()
    yield Endpoint(host="127.0.0.1", port=server.port, key=keys.public, keys=keys)
    ending.set()
    thread.join()
    server.close()
    coordinator.close()


def test_a_job_is_handed_over_trained_and_fetched(tmp_path, case, serving):
    place, coordinator = serving
    handed_over(tmp_path / "packed", case)
    place.hand_over("job", tmp_path / "packed", Task())
    run = DetachedRun(place, "job")
    assert (run.state, run.step, run.n_steps) == ("waiting", 3, 12)
    with pytest.raises(HomeError, match="there is a job 'job' already"):
        place.hand_over("job", tmp_path / "packed", Task())
    run.start().wait(60.0)
    assert run.losses == case.losses[3:]
    assert "state='ended'" in repr(run) or "ended, step 12 of 12" in repr(run)
    until(lambda: not coordinator.under_way)
    check(tmp_path / "jobs", case)
    state = run.state_dict()
    assert set(state) == set(case.weights)
    assert all(torch.equal(state[name], tensor) for name, tensor in case.weights.items())
    assert run.save(tmp_path / "fetched") == 12
    run.forget()
    with pytest.raises(HomeError, match="there is no job 'job' here"):
        run.start()


def test_a_state_that_is_replaced_while_it_is_fetched_comes_whole(tmp_path, case, serving):
    """As over a slow link, while the training goes on and saves."""
    place, coordinator = serving
    handed_over(tmp_path / "jobs" / "job", case)
    coordinator.admit("job")
    path, states = tmp_path / "jobs" / "job" / START, []
    for seed in range(2):
        values = torch.randn(CHUNK_BYTES, generator=torch.Generator().manual_seed(seed))
        write_tensors(tmp_path / "state", {"w": values}, {})
        states.append((tmp_path / "state").read_bytes())
    path.write_bytes(states[0])

    def fetched(at=0):
        answer, data = place.ask("read", job="job", file=START, at=at)
        return data if at + len(data) == answer["nbytes"] else data + fetched(at + len(data))

    first = place.ask("read", job="job", file=START)[1]
    (tmp_path / "state").replace(path)
    assert first + fetched(len(first)) == states[0]
    assert fetched() == states[1]


REFUSING = {
    "nobody answers": lambda place: {"to": "127.0.0.1:9", "key": place.key},
    "it has another key": lambda place: {"to": str(place), "key": new_keys().public},
    "it does not know us": lambda place: {"to": str(place), "key": place.key, "keys": new_keys()},
    "it trains another job": lambda place: {"to": str(place), "key": place.key},
}


@pytest.mark.parametrize("how", REFUSING)
def test_a_hand_over_that_is_refused_ends_no_fit(tmp_path, case, mine, home, how):
    coordinator = Coordinator(tmp_path / "jobs", lambda: home_without(B))
    with at_work(coordinator, mine) as place:
        if how == "it trains another job":
            handed_over(tmp_path / "jobs" / "job", case, protect=False)
            coordinator.admit("job")
            coordinator.start("job")  # and waits for a device
        check_refused(tmp_path, case, home, {"keys": mine, **REFUSING[how](place)})


def check_refused(tmp_path, case, home, there):
    """A fit that somebody would hand over meanwhile goes on."""
    run = home.deploy(case.plan, case.model, optimizer=potluck.AdamW(1e-2)).wait()

    def hand_over_here(run, rest, **asked):
        work = partial(hand_over, home, run, rest, state=tmp_path, **{**asked, **there})
        return Handle(work, "handing over")

    run.hand_over, refused = hand_over_here, []

    def on_step(step, loss):
        if step == 3:
            with pytest.raises(HomeError) as caught:
                run.detach().wait()
            refused.append(caught.value)

    history = run.fit(case.batches, on_step=on_step).wait()
    assert refused
    assert history.losses == case.losses
    run.close()


def test_who_is_not_known_is_refused_by_name_and_the_wrong_key_too(serving):
    place, _ = serving
    stranger = Endpoint(host=place.host, port=place.port, key=place.key, keys=new_keys())
    with pytest.raises(HomeError, match="does not know this notebook") as caught:
        stranger.ask("jobs", within_s=20.0)
    assert stranger.keys.public in str(caught.value)
    assert stranger.keys.secret not in str(caught.value)
    other = Endpoint(host=place.host, port=place.port, key=new_keys().public, keys=place.keys)
    with pytest.raises(HomeError, match=r"another key|no coordinator answers"):
        other.ask("jobs", within_s=1.0)
    assert place.ask("jobs")[0] == {"jobs": []}


def test_where_nobody_checks_keys_nobody_comes_in(tmp_path, mine, monkeypatch):
    monkeypatch.setattr("zmq.auth.thread.ThreadAuthenticator.start", lambda self: None)
    monkeypatch.setattr(
        "zmq.auth.thread.ThreadAuthenticator.configure_curve_callback", lambda *_: None
    )
    server = CoordinatorServer(Coordinator(tmp_path, list), mine, frozenset({mine.public}))
    ending = threading.Event()
    thread = threading.Thread(target=server.serve, args=(lambda _: not ending.is_set(),))
    thread.start()
    try:
        with pytest.raises(HomeError, match=r"does not know this notebook|no coordinator answers"):
            Endpoint(host="127.0.0.1", port=server.port, key=mine.public, keys=mine).ask("jobs")
    finally:
        ending.set()
        thread.join()
        server.close()


def test_a_file_that_came_otherwise_than_it_was_sent_is_no_job(tmp_path, case, serving):
    place, coordinator = serving
    handed_over(tmp_path / "packed", case)
    files = files_of(tmp_path / "packed")
    place.ask("begin", job="job", files=files)
    for name in files:
        data = bytearray((tmp_path / "packed" / name).read_bytes())
        data[-1] ^= name == "start.safetensors"
        place.ask("put", bytes(data), job="job", file=name, at=0)
    with pytest.raises(HomeError, match=r"start\.safetensors is not as it was sent"):
        place.ask("admit", job="job")
    assert coordinator.jobs() == ()


def known_to(keys):
    return frozenset({keys.public})


ODD = [
    {"ask": "fly"},
    {"ask": None},
    {"ask": "status", "since": -1},
    {"ask": "status", "job": "../../etc"},
    {"ask": "begin", "job": "../x", "files": {}},
    {"ask": "begin", "job": f"x{COMING}", "files": {}},
    *({"ask": "begin", "job": name, "files": {}} for name in OWN_FILES),
    {"ask": "begin", "job": "coordinator.json.123.part", "files": {}},
    {"ask": "begin", "job": "x", "files": []},
    {"ask": "begin", "job": "x", "files": {"../../x": [1, ""]}},
    {"ask": "put", "job": "x", "file": "../x", "at": 0},
    {"ask": "put", "job": "x", "file": "model.safetensors", "at": True},
    {"ask": "admit", "job": "x"},
    {"ask": "read", "job": "x"},
    {"ask": "start", "job": "x"},
    {"ask": "stop"},
    {"ask": "forget", "job": ".."},
    {"ask": "forget", "job": "x"},
    {"ask": "join"},
    {"ask": "join", "host": "0.0.0.0", "port": 1},
    {"ask": "join", "host": "a/../b", "port": 1},
    {"ask": "join", "host": "a", "port": 70_000},
    {"ask": "join", "host": "a" * 300, "port": 1},
    {"ask": "join", "key": "k" * 40, "host": ["a"], "port": 1},
    {"ask": "files", "job": "x"},
    {"ask": "file", "job": "../x", "file": "model.safetensors"},
    {"ask": "file", "job": "x", "file": "../../etc/passwd"},
    {"ask": "pull", "job": "x", "at": 0, "digest": "", "counts": True, "has": 0},
]


@pytest.mark.parametrize("request_", ODD, ids=str)
def test_what_cannot_be_asked_is_refused_and_leaves_nothing(tmp_path, mine, request_):
    server = CoordinatorServer(Coordinator(tmp_path / "jobs", list), mine, known_to(mine))
    try:
        text = json.dumps({"version": VERSION, **request_}).encode()
        answer, data = server.answer([b"", text, b"abc"], mine.public)
        assert set(answer) == {"error"}
        assert answer["error"]
        assert not data
    finally:
        server.close()
    assert [*tmp_path.rglob("*")] in ([], [tmp_path / "jobs"])


def test_no_request_of_any_form_is_anything_but_answered(tmp_path, mine, record_property):
    record_property("inputs", N_REQUESTS)
    rng = random.Random(0)
    server = CoordinatorServer(Coordinator(tmp_path / "jobs", list), mine, known_to(mine))
    values = [
        None,
        True,
        -1,
        2**70,
        1.5,
        "",
        "x",
        "a" * 300,
        [],
        {},
        [[]],
        {"x": 1},
        "\0",
        "..",
        "ü",
    ]
    words = ["jobs", "status", "begin", "put", "admit", "start", "stop", "read", "forget"]
    words += ["join", "files", "file", "pull"]
    names = ["job", "files", "file", "at", "since", "names", "version", "ask", "key"]
    names += ["host", "port", "digest", "counts", "has"]
    try:
        for _ in range(N_REQUESTS):
            request = {"version": VERSION, "ask": rng.choice(words)}
            for name in rng.sample(names, rng.randint(0, 5)):
                request[name] = rng.choice(values)
            parts = [b"", json.dumps(request).encode(), b"x" * rng.choice([0, 7])]
            if rng.random() < 0.2:
                parts = [rng.randbytes(rng.randint(0, 40)) for _ in range(rng.randint(0, 4))]
            answer, _ = server.answer(parts, mine.public)
            assert "error" in answer or answer == {"jobs": []}, request
    finally:
        server.close()
    assert [*tmp_path.rglob("*")] in ([], [tmp_path / "jobs"])


@pytest.mark.faults
def test_a_fault_of_ours_is_told_and_the_next_is_answered(tmp_path, mine, monkeypatch):
    server = CoordinatorServer(Coordinator(tmp_path / "jobs", None), mine, known_to(mine))
    request = [b"", json.dumps({"version": VERSION, "ask": "jobs"}).encode(), b""]
    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "jobs", lambda self: 1 / 0)
        assert (
            "a fault of potluck's (ZeroDivisionError)"
            in server.answer(request, mine.public)[0]["error"]
        )
    assert server.answer(request, mine.public)[0] == {"jobs": []}
    server.close()


def test_more_than_the_disk_has_is_refused_before_it_is_sent(tmp_path, mine):
    server = CoordinatorServer(Coordinator(tmp_path / "jobs", list), mine, known_to(mine))
    try:
        files = {name: [2**58, ""] for name in ("model.safetensors", "start.safetensors")} | {
            "job.json": [9, ""],
            "batches/order.safetensors": [0, ""],
        }
        request = {"version": VERSION, "ask": "begin", "job": "x", "files": files}
        answer, _ = server.answer([b"", json.dumps(request).encode(), b""], mine.public)
        assert "are free where the coordinator keeps it" in answer["error"]
    finally:
        server.close()
    assert CHUNK_BYTES < 2**22


@pytest.mark.parametrize("room", [0, 1, 1000, 6000, 12_000, 20_000])
def test_a_disk_that_fills_up_while_a_job_comes_is_told_and_keeps_nothing_of_it(
    tmp_path, case, serving, monkeypatch, room
):
    place, coordinator = serving
    handed_over(tmp_path / "job", case)
    append, left = job_upload.append, room

    def fill(path, data):
        nonlocal left
        append(path, data[:left])
        if len(data) > left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= len(data)

    with monkeypatch.context() as patch:
        patch.setattr(job_upload, "append", fill)
        with pytest.raises(HomeError, match=r"cannot write .*: No space left on device\. "):
            place.hand_over("x", tmp_path / "job", Task())
    assert [*coordinator.folder.iterdir()] == []
    place.hand_over("x", tmp_path / "job", Task())
    assert place.ask("jobs")[0]["jobs"] == ["x"]


@pytest.mark.parametrize("moment", range(3))
@pytest.mark.parametrize(
    "other",
    [
        {"ask": "begin", "files": "own"},
        {"ask": "put", "file": JOB, "at": 0},
        {"ask": "put", "file": JOB, "at": "all"},
        {"ask": "admit"},
    ],
    ids=str,
)
def test_a_job_on_its_way_is_of_whoever_hands_it_over(tmp_path, case, mine, other, moment):
    """Two notebooks call theirs alike where they detach in one second; each had the other's mixed
    up, or begun anew.
    """
    first, second = new_keys().public, new_keys().public
    handed_over(tmp_path / "packed", case)
    files = files_of(tmp_path / "packed")
    server = CoordinatorServer(
        Coordinator(tmp_path / "jobs", list), mine, frozenset({first, second})
    )

    def ask(key, data=b"", **request):
        text = json.dumps({"version": VERSION, "job": "job", **request}).encode()
        answer = server.answer([b"", text, data], key)
        return answer if isinstance(answer, tuple) else answer.result()

    def say_otherwise():
        known = {"own": files, "all": files[JOB][0]}
        request = {key: known.get(value, value) for key, value in other.items()}
        assert "error" in ask(second, **request)[0]

    try:
        assert "error" not in ask(first, ask="begin", files=files)[0]
        for number, name in enumerate(files):
            if number == moment:
                say_otherwise()
            data = (tmp_path / "packed" / name).read_bytes()
            assert "error" not in ask(first, data, ask="put", file=name, at=0)[0]
        assert ask(first, ask="admit")[0] == {}
        assert ask(first, ask="jobs")[0] == {"jobs": ["job"]}
    finally:
        server.close()


FILES = ("model.safetensors", "start.safetensors", JOB, ORDER)


@pytest.mark.parametrize(
    ("name", "nbytes", "why"),
    [
        (JOB, MAX_JOB_BYTES + 1, "at most 4.00 MiB"),
        (PROFILE, 1 << 30, "at most 16.0 MiB"),
        (ORDER, 1 << 46, "of memory are free"),
    ],
)
def test_what_takes_more_memory_than_it_may_is_refused_before_it_is_sent(
    tmp_path, mine, monkeypatch, name, nbytes, why
):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 60))
    server = CoordinatorServer(Coordinator(tmp_path / "jobs", list), mine, known_to(mine))
    try:
        files = {each: [9, ""] for each in FILES} | {name: [nbytes, ""]}
        request = {"version": VERSION, "ask": "begin", "job": "x", "files": files}
        answer, _ = server.answer([b"", json.dumps(request).encode(), b""], mine.public)
        assert why in answer["error"]
        assert [*(tmp_path / "jobs").iterdir()] == []
    finally:
        server.close()


def lists_without_end(folder):
    (folder / JOB).write_bytes(b'{"state_names": [' + b"[]," * (MAX_JOB_BYTES // 3 - 20) + b"[]]}")


def ends_that_are_none(folder):
    tensors, _ = read_tensors(folder / ORDER, "")
    tensors["ends"][-1] += 1
    write_tensors(folder / ORDER, tensors, {"format": "potluck-batches-1"})


def rows_of_other_shards(folder):
    tensors, _ = read_tensors(folder / ORDER, "")
    tensors["places"][0, 0] = 2**62
    write_tensors(folder / ORDER, tensors, {"format": "potluck-batches-1"})


def state_of(**changes):
    def change(folder):
        tensors, metadata = read_tensors(folder / "start.safetensors", "")
        del metadata["sha256"]
        write_tensors(folder / "start.safetensors", tensors, {**metadata, **changes})

    return change


def as_profile(text):
    return lambda folder: (folder / PROFILE).write_text(text)


ODD_JOBS = {
    "lists without end": lists_without_end,
    "ends": ends_that_are_none,
    "rows": rows_of_other_shards,
    "position": state_of(position='{"epoch": 1e999, "n_batches": 0}'),
    "schedule": state_of(schedule='{"name": "a", "every": "step", "began": 1e999}'),
    "update": state_of(update="[]"),
    **{f"step {step[:9]}": state_of(step=step) for step in ("-5", str(2**53), "1" + "0" * 400)},
    "profile": as_profile("[]"),
    "a profile of many lists": as_profile("[" + "[]," * 2_000_000 + "[]]"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("change", ODD_JOBS.values(), ids=[*ODD_JOBS])
def test_an_odd_job_of_a_guest_is_refused_in_words_and_leaves_nothing(
    tmp_path, packed, serving, change
):
    place, coordinator = serving
    shutil.copytree(packed, tmp_path / "odd")
    change(tmp_path / "odd")
    with pytest.raises(HomeError) as caught:
        place.hand_over("job", tmp_path / "odd", Task())
    assert "fault of potluck's" not in str(caught.value)
    assert [*coordinator.folder.iterdir()] == []


def test_names_of_weights_that_have_changed_are_not_told(packed, serving):
    place, coordinator = serving
    place.hand_over("job", packed, Task())
    path = coordinator.folder / "job" / JOB
    path.write_text(path.read_text().replace("0.weight", "1.weight", 1))
    with pytest.raises(HomeError, match=r"job\.json is not as it was handed over"):
        place.ask("status", job="job", since=0, names=True)


def test_a_folder_that_is_a_link_is_not_forgotten_and_that_is_said(tmp_path, packed, serving):
    place, coordinator = serving
    place.hand_over("job", packed, Task())
    (coordinator.folder / "job").rename(tmp_path / "elsewhere")
    (coordinator.folder / "job").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeError, match="link"):
        place.ask("forget", job="job")
    assert (tmp_path / "elsewhere" / JOB).exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory, case):
    folder = tmp_path_factory.mktemp("packed") / "job"
    handed_over(folder, case, n_before=0)
    return folder
