"""PROTOCOL.md says what the code does."""

import re

import pytest
from tests.wire import protocol_text

from potluck_wire import limits
from potluck_wire.errors import WireCode
from potluck_wire.frames import encode
from potluck_wire.messages import MESSAGES, Channel, Chunk, FailureCause, Hello, RefusalCode
from potluck_wire.stream import pack
from potluck_wire.version import VERSION, show

TEXT = protocol_text.PROTOCOL.read_text()


def test_the_generated_parts_are_those_of_the_code():
    assert protocol_text.render(TEXT) == TEXT, "python -m tests.wire.protocol_text writes them anew"


def test_every_message_and_limit_is_described():
    for number, entry in MESSAGES.items():
        assert f"#### {number} `{entry.type.__name__}`" in TEXT
    for name in vars(limits):
        if (
            name.isupper()
            and name not in ("KIB", "MIB")
            and not name.startswith("_")
            and not name.endswith("_OFFSET")
        ):
            assert f"| `{name}` |" in TEXT


@pytest.mark.parametrize("kind", [RefusalCode, FailureCause, WireCode])
def test_every_code_has_a_meaning(kind):
    _, _, *rows = protocol_text.codes(kind).splitlines()
    assert len(rows) == sum(name.isupper() for name in vars(kind))
    for row in rows:
        assert re.fullmatch(r"\| `[a-z-]+` \| \S.+ \|", row), row


def test_a_changed_table_changes_the_text(monkeypatch):
    monkeypatch.setattr(limits, "MAX_FRAME_BYTES", 1)
    assert protocol_text.render(TEXT) != TEXT


def test_a_lost_mark_is_noticed():
    with pytest.raises(ValueError, match="limits"):
        protocol_text.render(TEXT.replace("<!-- begin limits -->", ""))


def test_the_version_on_the_title_is_the_codes():
    assert f"version {show(VERSION)}" in TEXT.splitlines()[0]


def test_the_ports_are_the_codes():
    for channel, offset in (
        (Channel.CONTROL, limits.CONTROL_OFFSET),
        (Channel.PAIRING, limits.PAIRING_OFFSET),
        (Channel.DATA, limits.DATA_OFFSET),
        (Channel.PULSE, limits.PULSE_OFFSET),
    ):
        assert re.search(
            rf"^\| {channel.value} +\| \*b\*( \+ {offset})? +\| {limits.PORT + offset} ",
            TEXT,
            re.MULTILINE,
        )


def test_the_worked_examples_are_real_bytes():
    assert encode(Hello(major=1, name="ada"))[0].hex(" ") in TEXT
    assert bytes(encode(Chunk(transfer=7, index=2), (b"",))[0]).hex(" ") in TEXT
    assert pack(Hello(major=1, name="ada"))[:8].hex(" ") in TEXT


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (protocol_text.PROTOCOL.parent / target).exists(), target
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    for anchor in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert anchor in anchors, anchor
