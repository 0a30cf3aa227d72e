"""A service whose model several devices share: the first one computes its part, and asks the next
one for what follows.
"""

import json

import pytest
from tests.agent.core.core_cluster import LIMIT_S, RUN_S, SERVICE, CoreCluster, X, floats, may
from tests.agent.core.core_driver import add, recv, send

from potluck_agent.core.events import MemberLost
from potluck_wire import messages as m
from potluck_wire.limits import ANSWER, ASK
from potluck_wire.messages import HOME, FailureCause, RefusalCode

H, Y = {**X, "name": "h"}, {**X, "name": "y"}
# a: h = x + x; b: g = h + h and y = g + x; c: z = g + y; a: w = z + x
PROGRAMS = {
    "a": (
        *(recv("x"), add("x", "x", "h"), send("h", "b")),
        *(recv("z", "c"), add("z", "x", "w"), send("w")),
    ),
    "b": (
        *(recv("h", "a"), recv("x"), add("h", "h", "g"), add("g", "x", "y")),
        *(send("g", "c"), send("y", "c"), send("y")),
    ),
    "c": (recv("g", "b"), recv("y", "b"), add("g", "y", "z"), send("z", "a")),
    "d": (recv("x"), add("x", "x", "w"), send("w"), add("w", "x", "y"), send("y")),
}
PARTS = {"a": SERVICE, "b": "part-b", "c": "part-c", "d": SERVICE}
THEN = {
    "peer": "b",
    "service": "part-b",
    "devices": ["b", "c"],
    "inputs": ["h", "x"],
    "outputs": ["z", "y"],
}
LAST = {"peer": "c", "service": "part-c", "devices": ["c"], "inputs": ["g", "y"], "outputs": ["z"]}
GRANTS = {
    "a": {"inputs": [X], "then": THEN},
    "b": {"inputs": [H, X], "before": ["a"], "then": LAST},
    "c": {"inputs": [{**X, "name": "g"}, Y], "before": ["a", "b"]},
    "d": {"inputs": [X]},
}
PEERS = {"a": [may("d")], "b": [may("a")], "c": [may("b")], "d": [may("a")]}


class Chain(CoreCluster):
    """Three devices that share a model, and one that serves another one under the same name."""

    def __init__(self) -> None:
        super().__init__("abcde", "e")
        for name, rows in PROGRAMS.items():
            programs = [{"name": "p", "instructions": list(rows)}]
            document = json.dumps({"segments": [], "programs": programs}).encode()
            self.tell(name, m.Prepare(run=f"r-{name}", epoch=0), document)
            self.tell(name, m.Commit(run=f"r-{name}", epoch=0))
            answer = self.let(name)
            assert isinstance(answer, m.ServiceGranted), answer

    def let(self, name, **changes):
        """Grant a part, and say what the device answers."""
        fields = {"peers": PEERS[name], **GRANTS[name], **changes}
        document = {key: value for key, value in fields.items() if value is not None}
        grant = m.GrantService(
            service=PARTS[name], run=f"r-{name}", program="p", run_s=RUN_S, limit_s=LIMIT_S
        )
        n_heard = len(self.home)
        self.tell(name, grant, json.dumps(document).encode())
        return next(message for _, message, _ in self.home[n_heard:])

    def outputs(self, number):
        """What came of that request, by name."""
        return {
            message.name: buffers[0]
            for _, message, buffers in self.home
            if isinstance(message, m.Value) and (message.program, message.step) == (ANSWER, number)
        }


def test_each_computes_its_part_and_the_first_one_answers():
    chain = Chain()
    for x in (1.0, 3.0):
        number = chain.ask("a", x, 2 * x)
        ended, _ = chain.answer(number)
        assert (ended.code, ended.path) == ("", ("a", "b", "c"))
        assert chain.outputs(number) == {"w": floats(10 * x, 20 * x), "y": floats(5 * x, 10 * x)}
        assert len(ended.hops_s) == 3
    n_computed = {name: worker.n_computed for name, worker in chain.workers.items()}
    assert n_computed == {"a": 4, "b": 4, "c": 2, "d": 0, "e": 0}
    assert not any(core.held.n_asks for core in chain.cores.values())


def test_many_at_once_are_not_mixed_up():
    chain = Chain()
    numbers = {chain.number(): float(x) for x in range(5)}
    for number in numbers:
        chain.tell("a", m.Ask(number=number, service=SERVICE, left_s=LIMIT_S))
    for number, x in reversed(numbers.items()):
        chain.tell("a", chain.value(number), floats(x, 1.0))
    for number, x in numbers.items():
        assert chain.answer(number)[0].code == ""
        assert chain.outputs(number) == {"w": floats(10 * x, 10.0), "y": floats(5 * x, 5.0)}


def test_another_device_hands_a_request_to_the_first_of_them():
    chain = Chain()
    chain.tick(1.0)
    chain.workers["d"].answers = False
    for _ in range(10):
        chain.ask("d")
    number = chain.ask("d", 1.0, 2.0)
    ended, _ = chain.answer(number)
    assert (ended.code, ended.path) == ("", ("d", "a", "b", "c"))
    assert chain.outputs(number) == {"w": floats(10.0, 20.0), "y": floats(5.0, 10.0)}


@pytest.mark.parametrize("lost", "bc")
def test_where_one_of_them_is_lost_the_request_ends_once(lost):
    chain = Chain()
    chain.workers[lost].answers = False
    number = chain.ask("a")
    for name in PROGRAMS:
        if name != lost:
            chain.happen(name, MemberLost(key=chain.keys[lost]))
    ended, _ = chain.answer(number)
    assert ended.code == FailureCause.PEER_LOST
    assert "w" not in chain.outputs(number)
    assert chain.cores["a"].held.n_asks == 0


def test_where_what_follows_is_withdrawn_the_request_is_refused_in_words():
    chain = Chain()
    chain.tell("b", m.GrantService(service="part-b"), b"{}")
    ended, _ = chain.answer(chain.ask("a"))
    assert ended.code == RefusalCode.NOT_GRANTED
    assert ended.text.startswith("b: ")


def test_what_is_under_way_ends_where_its_part_is_granted_otherwise():
    chain = Chain()
    chain.workers["c"].answers = False
    number = chain.ask("a")
    chain.let("a", then={**THEN, "service": "another"})
    ended, _ = chain.answer(number)
    assert ended.code == RefusalCode.NOT_GRANTED


def test_nobody_but_the_device_before_asks_for_a_part():
    chain = Chain()
    for sender in "cde":
        chain.as_member(sender, "b", m.Ask(number=1, service="part-b", left_s=1.0, path=(sender,)))
        assert chain.ended_for(sender)[-1].code == RefusalCode.NOT_GRANTED


def test_values_of_a_part_are_those_that_were_granted():
    chain = Chain()
    request = m.Ask(number=1, service="part-b", left_s=LIMIT_S, path=("a",))
    chain.as_member("a", "b", request)
    wrong = {"name": "g", "program": ASK}
    chain.as_member("a", "b", chain.value(1, **wrong), floats(1.0, 1.0))
    assert chain.ended_for("a")[-1].code == RefusalCode.DOCUMENT


# on which device, as what -> why it is not granted
UNSOUND = {
    "what is sent to another one": ("a", {"then": {**THEN, "devices": ["c"]}}),
    "a value of another one": ("a", {"then": {**THEN, "devices": ["b"]}}),
    "no word of who follows": ("a", {"then": None}),
    "home as who follows": ("a", {"then": {**THEN, "peer": HOME}}),
    "another one before": ("b", {"before": ["d"]}),
    "home before": ("b", {"before": [HOME]}),
    "outputs that are inputs": ("a", {"then": {**THEN, "outputs": ["x"]}}),
    "outputs that are made here": ("a", {"then": {**THEN, "outputs": ["z", "h"]}}),
    "outputs that are sent here": ("a", {"then": {**THEN, "outputs": ["z", "w"]}}),
    "no list of devices": ("a", {"then": {**THEN, "devices": "bc"}}),
    "an input of nobody": ("a", {"inputs": [X, Y]}),
    "names twice": ("a", {"then": {**THEN, "outputs": ["y", "y"]}}),
    "names that are none": ("a", {"then": {**THEN, "outputs": ["\x1b"]}}),
    "a field that nobody knows": ("a", {"then": {**THEN, "rows": 1}}),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_what_does_not_hold_is_not_granted(what):
    name, changes = UNSOUND[what]
    chain = Chain()
    answer = chain.let(name, **changes)
    assert isinstance(answer, m.Refused), answer
    assert answer.code == RefusalCode.DOCUMENT
    assert chain.answer(chain.ask("a"))[0].code == ""
