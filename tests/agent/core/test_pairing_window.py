"""Pairing: who knows the code gets in, and nobody else, whatever they send and in which order."""

from dataclasses import replace

import pytest
import zmq

from potluck_agent.core.pairing_window import PairingWindow
from potluck_wire.limits import PAIRING_STEP_S, PAIRING_WINDOW_S
from potluck_wire.messages import Channel, PairConfirm, PairHello, PairRefused, PairShare
from potluck_wire.pairing import (
    AgentSide,
    ControllerSide,
    Paired,
    PairingFailed,
    new_code,
    new_token,
    read_secret,
    show_secret,
)
from potluck_wire.stream import StreamReader, pack
from potluck_wire.version import VERSION, show

NOTEBOOK, DEVICE, MALLORY = (zmq.curve_keypair()[0].decode() for _ in range(3))
CODE = "48291305"


def sides(*, controller_secret=CODE, agent_secret=CODE):
    return (
        ControllerSide(secret=controller_secret, name="ada", key=NOTEBOOK),
        AgentSide(secret=agent_secret, name="jetson", key=DEVICE),
    )


def converse(controller, agent, *, to_agent=lambda m: m, to_controller=lambda m: m):
    """Both sides with somebody in between; returns who is paired with whom."""
    message = controller.first()
    while message is not None:
        message = controller.receive(to_controller(agent.receive(to_agent(message))))
    return controller.paired, agent.paired


def test_the_right_code_pairs_both():
    assert converse(*sides()) == (
        Paired(name="jetson", key=DEVICE),
        Paired(name="ada", key=NOTEBOOK),
    )


def test_a_token_pairs_too():
    token = new_token()
    assert converse(*sides(controller_secret=token, agent_secret=token))[1] == Paired(
        name="ada", key=NOTEBOOK
    )


def swap(kind, **changes):
    return lambda message: replace(message, **changes) if isinstance(message, kind) else message


TAMPERED = [
    ("wrong code", {"controller_secret": "48291306"}, {}),
    ("notebook's key exchanged", {}, {"to_agent": swap(PairHello, key=MALLORY)}),
    ("device's key exchanged", {}, {"to_controller": swap(PairHello, key=MALLORY)}),
    ("notebook's name exchanged", {}, {"to_agent": swap(PairHello, name="eve")}),
    ("device's name exchanged", {}, {"to_controller": swap(PairHello, name="eve")}),
    ("minor version exchanged", {}, {"to_agent": swap(PairHello, minor=VERSION[1] + 1)}),
    ("notebook's proof exchanged", {}, {"to_agent": swap(PairConfirm, mac=bytes(32))}),
    ("device's proof exchanged", {}, {"to_controller": swap(PairConfirm, mac=bytes(32))}),
    ("empty proof", {}, {"to_agent": swap(PairConfirm, mac=b"")}),
]


@pytest.mark.parametrize(
    ("what", "secrets", "between"), TAMPERED, ids=[what for what, *_ in TAMPERED]
)
def test_whatever_is_exchanged_on_the_way_ends_the_attempt(what, secrets, between):
    controller, agent = sides(**secrets)
    with pytest.raises(PairingFailed) as failure:
        converse(controller, agent, **between)
    assert failure.value.code == "wrong-code"
    assert controller.paired is None
    if what != "device's proof exchanged":  # it came too late to undo the device's side
        assert agent.paired is None


def test_the_device_shows_no_proof_before_it_has_seen_one():
    controller, agent = sides(controller_secret="00000000")
    share = controller.receive(agent.receive(controller.first()))
    confirm = controller.receive(agent.receive(share))
    with pytest.raises(PairingFailed):
        agent.receive(confirm)


def test_a_reflected_message_is_refused():
    """The first share is the notebook's: its own words come back to it."""
    controller, agent = sides()
    own = controller.receive(agent.receive(controller.first()))
    with pytest.raises(PairingFailed) as failure:
        controller.receive(own)
    assert failure.value.code == "malformed"


HELLO = PairHello(major=1, name="ada", key=NOTEBOOK)
MALFORMED = [
    ("share first", [PairShare(share=b"x")]),
    ("proof first", [PairConfirm(mac=b"x")]),
    ("hello twice", [HELLO, HELLO]),
    ("proof without share", [HELLO, PairConfirm(mac=bytes(32))]),
    ("no name", [replace(HELLO, name="")]),
    ("name with control characters", [replace(HELLO, name="a\x1b[2J")]),
    ("no key", [replace(HELLO, key="")]),
    ("key of 39 characters", [replace(HELLO, key=NOTEBOOK[:39])]),
    ("the device's own key", [replace(HELLO, key=DEVICE)]),
    ("empty element", [HELLO, PairShare(share=b"")]),
    ("element of the wrong side", [HELLO, PairShare(share=b"B" + bytes(32))]),
    ("no point of the curve", [HELLO, PairShare(share=b"A" + b"\xff" * 32)]),
    ("short element", [HELLO, PairShare(share=b"A" + bytes(5))]),
    ("a refusal", [PairRefused(code="closed")]),
]


@pytest.mark.parametrize(("what", "messages"), MALFORMED, ids=[what for what, _ in MALFORMED])
def test_refuses_messages_that_do_not_hold_and_never_pairs(what, messages):
    _, agent = sides()
    for message in messages[:-1]:
        agent.receive(message)
    with pytest.raises(PairingFailed) as failure:
        agent.receive(messages[-1])
    assert failure.value.code == "malformed"
    assert agent.paired is None


def test_another_major_version_is_named():
    _, agent = sides()
    with pytest.raises(PairingFailed, match=rf"it speaks 2\.0, we speak {show()}") as failure:
        agent.receive(replace(HELLO, major=2))
    assert failure.value.code == "version"


@pytest.mark.parametrize("text", ["4829 1305", "4829-1305", " 48291305 "])
def test_codes_may_be_typed_as_people_type(text):
    assert read_secret(text) == CODE
    assert show_secret(CODE) == "4829 1305"


@pytest.mark.parametrize("text", ["", "4829130", "482913055", "4829130x", "٤٨٢٩١٣٠٥", "a" * 31])
def test_refuses_what_can_be_no_code(text):
    with pytest.raises(ValueError, match="8 digits"):
        read_secret(text)


def test_codes_differ():
    assert len({new_code() for _ in range(50)}) > 45
    assert all(read_secret(secret) == secret for secret in (new_code(), new_token()))


# --- the window -----------------------------------------------------------------------------------


def window(*, window_s=PAIRING_WINDOW_S):
    made = PairingWindow(name="jetson", key=DEVICE)
    made.open(CODE, 0.0, window_s=window_s)
    return made


def visit(made, now_s, code=CODE):
    """One visitor, from arrival to the end: the last refusal, or whom the device trusts now."""
    reply = made.arrive(now_s)
    controller = ControllerSide(secret=code, name="ada", key=NOTEBOOK)
    message = controller.first()
    while not reply.close:
        reply = made.receive(pack(message), now_s)
        for answer, _ in StreamReader(Channel.PAIRING).feed(reply.data):
            if isinstance(answer, PairRefused):
                break
            message = controller.receive(answer)
    made.leave()
    return reply.paired or refusal(reply)


def refusal(reply):
    ((message, _),) = StreamReader(Channel.PAIRING).feed(reply.data)
    return message.code, message.tries_left


def test_closed_unless_opened():
    assert visit(PairingWindow(name="jetson", key=DEVICE), 0.0) == ("closed", 0)


def test_one_success_and_it_is_closed_again():
    made = window()
    assert visit(made, 1.0) == Paired(name="ada", key=NOTEBOOK)
    assert visit(made, 2.0) == ("closed", 0)


def test_three_tries_in_all_then_even_the_right_code_is_refused():
    made = window()
    assert [visit(made, float(i), "00000000") for i in range(3)] == [
        (("wrong-code"), tries_left) for tries_left in (2, 1, 0)
    ]
    assert visit(made, 4.0) == ("closed", 0)


def test_two_wrong_codes_leave_one_try():
    made = window()
    visit(made, 1.0, "00000000"), visit(made, 2.0, "00000000")
    assert visit(made, 3.0) == Paired(name="ada", key=NOTEBOOK)


def test_expired_after_its_time_even_for_whoever_is_at_the_desk():
    assert visit(window(), PAIRING_WINDOW_S - 0.1) == Paired(name="ada", key=NOTEBOOK)
    assert visit(window(), PAIRING_WINDOW_S) == ("expired", 0)
    made = window()
    made.arrive(PAIRING_WINDOW_S - 1)
    assert refusal(made.receive(pack(HELLO), PAIRING_WINDOW_S)) == ("expired", 0)


def test_a_token_does_not_expire_but_is_used_once():
    made = window(window_s=None)
    assert visit(made, 1e6) == Paired(name="ada", key=NOTEBOOK)
    assert visit(made, 1e6) == ("closed", 0)


def test_one_visitor_at_a_time():
    made = window()
    assert not made.arrive(0.0).close
    assert refusal(made.arrive(1.0)) == ("busy", 3)
    made.leave()
    assert not made.arrive(2.0).close


def test_a_slow_visitor_is_overdue_after_each_step():
    made = window()
    made.arrive(0.0)
    assert not made.overdue(PAIRING_STEP_S - 0.1)
    made.receive(pack(HELLO), 4.0)
    assert not made.overdue(PAIRING_STEP_S + 1)
    made.receive(pack(HELLO)[:3], 8.0)  # half a message is no step
    assert made.overdue(4.0 + PAIRING_STEP_S)


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", bytes(2000), b"\xff" * 64, b"\0\0\0\1\0\0\xff\xff"]
)
def test_bytes_that_are_no_message_cost_a_try(junk):
    made = window()
    made.arrive(0.0)
    assert refusal(made.receive(junk, 1.0)) == ("malformed", 2)


def test_an_attempt_from_another_window_is_over():
    made = window()
    made.arrive(0.0)
    made.receive(pack(HELLO), 0.0)
    made.open("11111111", 1.0)
    assert made.receive(pack(PairShare(share=b"A" * 33)), 2.0).close
    made.leave()
    assert visit(made, 3.0, "11111111") == Paired(name="ada", key=NOTEBOOK)


def test_a_message_may_come_byte_by_byte():
    made = window()
    made.arrive(0.0)
    replies = [made.receive(bytes([byte]), 1.0) for byte in pack(HELLO)]
    ((answer, _),) = StreamReader(Channel.PAIRING).feed(b"".join(reply.data for reply in replies))
    assert answer == PairHello(major=VERSION[0], minor=VERSION[1], name="jetson", key=DEVICE)
