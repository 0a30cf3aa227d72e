"""What a notebook asks devices as entrances of services, and what it believes of their answers."""

import pytest
from tests.sdk.sessions.controller_driver import FEED, STATEMENT

from potluck.errors import DeviceGone, NotServed, ProtocolError, RequestFailed
from potluck.sessions.controller import Controller
from potluck.sessions.events import (
    Address,
    AskService,
    CancelExecution,
    ConnectionLost,
    OpenSession,
    Received,
    Reject,
    Resolve,
    Send,
    Tick,
)
from potluck_wire import messages as m

HEAD = {"program": "answer", "step": 1, "shape": (2,), "nbytes": 8, "chunk_bytes": 8}


class Asking:
    """A controller with a device `a` that it has asked for a service under ticket 9."""

    def __init__(self):
        self.controller, self.now_s = Controller(), 100.0
        address = Address(host="h", port=1)
        self.do(OpenSession(ticket=1, device="a", address=address, key="k"))
        self.hear(m.Welcome(major=1, minor=11), STATEMENT)
        request = AskService(
            ticket=9, device="a", service="v", left_s=1.0, feeds={"x": FEED}, expects={"y": 8}
        )
        self.asked = [each.message for each in self.do(request) if isinstance(each, Send)]

    def do(self, event):
        return self.controller.handle(event, self.now_s)

    def hear(self, message, *buffers):
        return self.do(Received(device="a", message=message, buffers=buffers))

    def output(self, **changes):
        return self.hear(m.Value(**{**HEAD, "transfer": 1, "name": "y", **changes}), bytes(8))


def result(actions):
    (found,) = [x for x in actions if isinstance(x, Resolve | Reject) and x.ticket == 9]
    return found.result if isinstance(found, Resolve) else found.error


def ended(path=("a",), hops_s=(0.1,), code=""):
    return m.AskEnded(number=1, code=code, text="why", path=path, hops_s=hops_s)


def test_asks_and_feeds_the_device_and_tells_where_the_answer_was():
    asking = Asking()
    assert asking.asked[0] == m.Ask(number=1, service="v", left_s=1.0)
    assert (asking.asked[1].run, asking.asked[1].program, asking.asked[1].step) == ("", "ask", 1)
    asking.output()
    answer = result(asking.hear(ended(("a", "b"), (0.3, 0.1))))
    assert (answer.path, answer.hops_s) == (("a", "b"), (0.3, 0.1))
    assert bytes(answer.outputs["y"].data) == bytes(8)


@pytest.mark.parametrize(
    ("code", "error"), [("too-often", NotServed), ("arithmetic", RequestFailed)]
)
def test_a_refusal_is_told_by_its_name(code, error):
    refused = result(Asking().hear(ended(code=code)))
    assert type(refused) is error
    assert "why" in str(refused)


LIES = {
    "another device": ended(("b",)),
    "nobody": ended((), ()),
    "a circle": ended(("a", "b", "a"), (0.1,) * 3),
    "too many": ended((*"abcdefg",), (0.1,) * 7),
    "what hides": ended(("a", "\x1b[2J"), (0.1, 0.1)),
    "a time that cannot be": ended(hops_s=(-1.0,)),
    "no outputs": ended(),
}


@pytest.mark.parametrize("what", LIES)
def test_a_device_that_tells_what_cannot_be_loses_its_session(what):
    asking = Asking()
    if what != "no outputs":
        asking.output()
    assert isinstance(result(asking.hear(LIES[what])), ProtocolError)
    assert asking.controller.session("a") is None


@pytest.mark.parametrize("changes", [{"name": "z"}, {"nbytes": 16, "shape": (4,)}])
def test_outputs_that_nobody_expects_end_the_session(changes):
    assert isinstance(result(Asking().output(**changes)), ProtocolError)


def test_a_device_that_is_lost_takes_its_requests_with_it():
    lost = ConnectionLost(device="a", error=DeviceGone("why", device="a"))
    assert isinstance(result(Asking().do(lost)), DeviceGone)


def test_a_device_that_says_nothing_about_it_is_not_waited_for():
    asking = Asking()
    asking.hear(m.Pong(seq=1))
    asking.now_s += 12.0
    assert isinstance(result(asking.do(Tick())), DeviceGone)


def test_a_request_ends_where_one_of_its_inputs_is_not_taken():
    asking = Asking()
    refused = result(asking.hear(m.Rejected(transfer=1, code="memory", text="no room")))
    assert (type(refused), refused.facts["reason"]) == (NotServed, "memory")
    asking.hear(ended(code="memory"))  # its end may be told as well
    assert asking.controller.held()["a"] == (0, 0)


def test_a_reason_that_is_none_is_not_told_on():
    refused = result(Asking().hear(ended(code="x" * 50)))
    assert refused.facts["reason"] == "state"


def test_what_nobody_waits_for_any_more_is_not_kept():
    asking = Asking()
    asking.do(CancelExecution(ticket=9))
    asking.output()
    asking.hear(ended())
    assert asking.controller.held()["a"] == (0, 0)
