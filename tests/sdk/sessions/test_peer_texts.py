"""Whatever peers write, nothing that it shows obeys, hides or turns around: errors, news, what a
device says of itself.

Every text field of every message is tried with every kind of character that a reader cannot see.
"""

import json
import sys
from dataclasses import fields

import pytest
from tests.sdk.sessions.controller_driver import FEED, STATEMENT, Play, place

from potluck import cli
from potluck.discover import pairing
from potluck.display import html
from potluck.errors import PotluckError
from potluck.sanitized_text import harmless
from potluck.sessions.events import Address, Notification, OpenSession, Received, Reject, RequestAll
from potluck.sessions.members import Member
from potluck_wire import messages as m
from potluck_wire.pairing import PairingFailed

# An escape, a line break, the ways to turn writing around, what has no width, fillers, a tag, half
# of a character.
HOSTILE = (
    "\x1b",
    "\x00",
    "\x7f",
    "\x9b",
    "\n",
    "\r",
    "\b",
    "\u061c",
    "\u200b",
    "\u200d",
    "\u200e",
    "\u200f",
    "\u2028",
    "\u202a",
    "\u202e",
    "\u2060",
    "\u2066",
    "\u2069",
    "\ufeff",
    "\u00ad",
    "\u034f",
    "\u180e",
    "\u3164",
    "\ufe0f",
    "\U000e0041",
    "\ud800",
    "\ue000",
)
ALL = "".join(HOSTILE)
WORDS = f"gnp.{ALL}exe"


def hidden_in(text):
    """What of these characters is still there, or anything else that cannot be seen."""
    return [char for char in text if char in ALL or not char.isprintable()]


@pytest.mark.long
def test_no_character_is_left_that_cannot_be_seen():
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    shown = harmless("".join(every))
    assert len(shown) == len(every)
    assert hidden_in(shown) == []
    kept = sum(before == after for before, after in zip(every, shown, strict=True))
    assert kept > 100_000


@pytest.mark.parametrize(
    "text", ["", "Küche", "日本語 の 台所", "naïve café", "a b", "x̄ = ½ · 10⁻³", "🍲"]
)
def test_what_people_write_stays(text):
    assert harmless(text) is text


def texts_of(record):
    """All texts of a message, an error, a document: shown or kept as facts."""
    if isinstance(record, str):
        return [record]
    if isinstance(record, PotluckError):
        return texts_of([*record.args, record.device, record.next_step, *record.facts.values()])
    if isinstance(record, m.Message):
        return texts_of([getattr(record, field.name) for field in fields(record)])
    if isinstance(record, dict):
        return texts_of([*record, *record.values()])
    return (
        [text for entry in record for text in texts_of(entry)]
        if isinstance(record, list | tuple)
        else []
    )


def shown(actions):
    """What users may see of these actions."""
    errors = [action.error for action in actions if isinstance(action, Reject)]
    return texts_of(
        [*errors, *(action.message for action in actions if isinstance(action, Notification))]
    )


def playing():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), feeds={"a": {"x": FEED}})
    play.do(RequestAll(ticket=2, requests={"a": (m.Prepare(run="r"), (b"{}",))}))
    return play


SAID = [entry.type for entry in m.MESSAGES.values() if entry.sender in ("agent", "either")]
SAID = [
    kind
    for kind in SAID
    if m.MESSAGES[m.NUMBER_OF[kind]].channel in (m.Channel.CONTROL, m.Channel.DATA)
]
FITS = {
    m.Failed: place(),
    m.Refused: {"about": m.NUMBER_OF[m.Prepare], "run": "r", "epoch": 0},
    m.Rejected: {"transfer": 1},
    m.Value: place(),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, field.name) for kind in SAID for field in fields(kind) if field.type is str],
)
def test_no_text_of_a_message_is_shown_as_it_came(kind, name):
    play = playing()
    message = kind(**FITS.get(kind, {}) | {name: WORDS})
    buffers = (b"[]",) * m.MESSAGES[m.NUMBER_OF[kind]].buffers[0]
    actions = play.receive("a", message, *buffers)
    assert "".join(map("".join, map(hidden_in, shown(actions)))) == ""
    assert getattr(message, name) == WORDS  # the message itself is left alone


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (m.Failed, "text"),
        (m.Failed, "cause"),
        (m.Refused, "text"),
        (m.Refused, "code"),
        (m.Rejected, "text"),
        (m.Rejected, "code"),
        (m.Goodbye, "reason"),
        (m.Reading, "meter"),
    ],
)
def test_what_it_says_is_told_all_the_same(kind, name):
    actions = playing().receive("a", kind(**FITS.get(kind, {}) | {name: WORDS}))
    assert any("gnp." in text and "exe" in text for text in shown(actions))


def joined(statement):
    play = Play()
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.do(
        Received(
            device="a",
            message=m.Welcome(major=1, name=WORDS),
            buffers=(json.dumps(statement).encode(),),
        )
    )
    return play.controller.session("a")


def test_what_a_device_says_of_itself_is_harmless_everywhere():
    words = WORDS.replace("\ud800", "")
    meters = [{"name": words, "source": "measured", words: words}]
    statement = json.loads(STATEMENT) | {
        "platform": words,
        "backends": {words: words},
        "meters": meters,
        words: [[words]],
    }
    session = joined(statement)
    assert hidden_in("".join(texts_of([session.name, dict(session.capability)]))) == []
    member = Member(name="a", key="k", session=session)
    assert hidden_in(html.members([member], "Devices").replace("\n", "")) == []


def test_the_command_line_and_tracebacks_show_it_harmless():
    (reject,) = [
        x for x in playing().receive("a", m.Failed(**place(), text=WORDS)) if isinstance(x, Reject)
    ]
    assert hidden_in(str(reject.error)) == hidden_in(cli.one_line(reject.error)) == []


def test_who_refuses_to_pair_is_quoted_harmless():
    error = pairing.refusal_of(PairingFailed(WORDS, WORDS), "a")
    assert hidden_in("".join(texts_of(error))) == []
