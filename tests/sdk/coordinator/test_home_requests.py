"""Questions and answers between processes as files: what is no question, and what is said where
nobody answers.
"""

import json
import os
import threading
from contextlib import contextmanager

import pytest

from potluck.coordinator import home_requests
from potluck.coordinator.home_requests import (
    ANSWER,
    ASKED,
    DONE,
    REFUSED,
    SHOW,
    UNDER_WAY,
    HolderAnswer,
)
from potluck.errors import HomeError

NOBODY = 2**22 + 1  # more than Linux has processes


def put(folder, name, document):
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "[" * 100_000,
        [],
        {"what": "format", "number": "a", "process": os.getpid()},
        {"what": SHOW, "number": "a", "process": NOBODY},
        {"what": SHOW, "number": "a", "process": -1},
        {"what": SHOW, "number": "a", "process": 10**40},
        {"what": SHOW, "number": 5, "process": os.getpid()},
        {"what": SHOW, "number": "x" * 100_000, "process": os.getpid()},
    ],
    ids=range(10),
)
def test_what_is_no_question_is_none(tmp_path, document):
    put(tmp_path, ASKED, document)
    assert home_requests.question(tmp_path) is None


@pytest.mark.parametrize(
    "document",
    [
        "{",
        {"number": "b", "state": DONE, "words": "", "saved": []},
        {"number": "a", "state": "?", "words": "", "saved": []},
        {"number": "a", "state": DONE, "words": 5, "saved": []},
    ],
    ids=range(4),
)
def test_what_is_no_answer_is_none(tmp_path, document):
    put(tmp_path, ANSWER, document)
    assert home_requests.answered(tmp_path, "a") is None


def test_an_answer_is_what_was_said_and_harmless(tmp_path):
    reply = HolderAnswer(number="a", state=UNDER_WAY, words="stops\x1b[2J", saved=("f",))
    home_requests.answer(tmp_path, reply)
    found = home_requests.answered(tmp_path, "a")
    assert (found.state, found.saved) == (UNDER_WAY, ("f",))
    assert "\x1b" not in found.words


def test_whoever_does_not_answer_is_named_and_the_question_is_taken_back(tmp_path, monkeypatch):
    monkeypatch.setattr(home_requests, "SIGN_S", 0.2)
    with pytest.raises(HomeError, match=r"\(77\) does not answer"):
        home_requests.ask(tmp_path, SHOW, within_s=30.0, holder=77)
    assert not (tmp_path / ASKED).exists()


def test_whoever_takes_too_long_is_told_with_what_they_said_last(tmp_path):
    heard = []
    pattern = r"not given it up .* It says: it ends step 4"
    with answers(tmp_path, UNDER_WAY, "it ends step 4"), pytest.raises(HomeError, match=pattern):
        home_requests.ask(tmp_path, SHOW, within_s=2.0, say=heard.append)
    assert heard == ["it ends step 4"]


def test_a_refusal_is_an_error_with_its_words(tmp_path):
    with answers(tmp_path, REFUSED, "it is mine."), pytest.raises(HomeError, match="it is mine"):
        home_requests.ask(tmp_path, SHOW, within_s=30.0)


def test_one_asks_at_a_time(tmp_path):
    put(tmp_path, ASKED, {"what": SHOW, "number": "a", "process": os.getppid()})
    with pytest.raises(HomeError, match=f"process {os.getppid()} asks"):
        home_requests.ask(tmp_path, SHOW, within_s=30.0)
    assert (tmp_path / ASKED).exists()


@contextmanager
def answers(folder, state, words):
    """Somebody who has the home answers the next question so."""
    ended = threading.Event()

    def go_on():
        while not ended.wait(0.01):
            if (request := home_requests.question(folder)) is not None:
                home_requests.answer(
                    folder, HolderAnswer(number=request.number, state=state, words=words)
                )
                return

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()
