"""Whom a relay serves, as files: places that stay, and files that do not hold."""

import json
import os
import stat

import pytest
from tests.agent.agents import command

from potluck_agent.errors import AgentError
from potluck_agent.relay import invitations
from potluck_wire.limits import RELAY_DEVICES, RELAY_PORT


@pytest.fixture
def state(tmp_path):
    return tmp_path


def test_a_device_keeps_its_ports_whoever_comes_and_goes(state):
    for name in ("ada", "bob", "eve"):
        invitations.invite(state, name, "relay.example:47700")
    invitations.remove(state, "bob")
    invitations.invite(state, "ada", "relay.example:47700")  # anew: another key
    invitations.invite(state, "kim", "relay.example:47700")  # where bob was
    ports = {each.name: each.port(RELAY_PORT) for each in invitations.devices(state)}
    assert ports == {"ada": 47704, "kim": 47708, "eve": 47712}


def test_an_invitation_that_was_replaced_counts_no_more(state):
    first = invitations.invite(state, "ada", "relay.example:47700")
    second = invitations.invite(state, "ada", "relay.example:47700")
    assert first.secret != second.secret
    assert len({each.key for each in invitations.devices(state)}) == 1


def test_an_invitation_that_cannot_be_written_leaves_the_one_before(state):
    invitations.invite(state, "ada", "relay.example:47700")
    before = invitations.devices(state)
    done = command(
        *("relay", "invite", "ada", "relay.example", "--to", str(state / "none" / "ada.json")),
        *("--state", str(state)),
    )
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert invitations.devices(state) == before


def test_no_more_are_invited_than_there_are_ports_for(state):
    for number in range(RELAY_DEVICES):
        invitations.invite(state, f"device-{number}", "relay.example:47700")
    with pytest.raises(AgentError, match="relay remove"):
        invitations.invite(state, "one-more", "relay.example:47700")


@pytest.mark.parametrize(
    ("name", "relay"),
    [
        ("Ada!", "relay.example:47700"),
        ("ada", "relay.example"),
        ("ada", "relay.example:0"),
        ("ada", "a b:47700"),
        ("ada", ":47700"),
    ],
)
def test_who_cannot_be_is_not_invited(state, name, relay):
    with pytest.raises(AgentError):
        invitations.invite(state, name, relay)
    assert invitations.devices(state) == ()


def test_an_invitation_is_its_owners_to_read_and_hides_its_secret(state):
    path, invitation = state / "ada.json", invitations.invite(state, "ada", "[2001:db8::1]:47700")
    invitations.write_invitation(path, invitation)
    assert invitations.read_invitation(path) == invitation
    assert invitation.address == ("2001:db8::1", 47700)
    assert invitation.secret not in repr(invitation)
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


KEY = "a" * 40
SPOILED = {
    "nothing": "",
    "a list": "[]",
    "half of it": json.dumps({"relay": "relay.example:47700", "key": KEY}),
    "no key": json.dumps({"relay": "relay.example:47700", "key": "a", "secret": KEY}),
    "no address": json.dumps({"relay": "relay.example", "key": KEY, "secret": KEY}),
    "a number": json.dumps({"relay": 47700, "key": KEY, "secret": KEY}),
    "more": json.dumps({"relay": "r:1", "key": KEY, "secret": KEY, "run": "x"}),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("text", SPOILED.values(), ids=SPOILED)
def test_a_file_that_is_no_invitation_is_named(state, text):
    path = state / "ada.json"
    path.write_text(text)
    with pytest.raises(AgentError):
        invitations.read_invitation(path)
    done = command("start", "--relay", str(path), "--state", str(state / "agent"), "--port", "0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_named(state):
    with pytest.raises(AgentError, match="relay invite"):
        invitations.read_invitation(state / "none.json")


ROW = {"name": "ada", "key": KEY, "place": 0}
LISTS = {
    "no list": {"a": 1},
    "another field": [{**ROW, "address": "203.0.113.5"}],
    "no key": [{**ROW, "key": "a"}],
    "no place": [{**ROW, "place": RELAY_DEVICES}],
    "a place in words": [{**ROW, "place": "0"}],
    "a truth for a place": [{**ROW, "place": True}],
    "two in one place": [ROW, {**ROW, "name": "bob", "key": "b" * 40}],
    "two of one name": [ROW, {**ROW, "place": 1, "key": "b" * 40}],
    "two of one key": [ROW, {**ROW, "place": 1, "name": "bob"}],
}


@pytest.mark.parametrize("document", LISTS.values(), ids=LISTS)
def test_a_list_of_devices_that_does_not_hold_is_refused(state, document):
    (state / invitations.DEVICES).write_text(json.dumps(document))
    with pytest.raises(AgentError, match=invitations.DEVICES):
        invitations.devices(state)


@pytest.mark.long
def test_the_command_says_what_there_is(state):
    def relay(*arguments):
        return command("relay", *arguments, "--state", str(state / "relay"))

    assert "nobody is invited" in relay("devices").stdout
    done = relay("invite", "ada", "relay.example", "--to", str(state / "ada.json"))
    assert done.returncode == 0
    assert json.loads((state / "ada.json").read_text())["relay"] == "relay.example:47700"
    assert "ada  ports 47704 to 47707" in relay("devices").stdout
    assert relay("remove", "bob").returncode == 1
    assert relay("remove", "ada").returncode == 0
    assert "nobody is invited" in relay("devices").stdout
