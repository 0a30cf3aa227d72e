"""Who may ask for which service, and what is refused by name before anything is computed."""

import gc
import json
import random
from functools import partial

import pytest
from tests.agent.core.core_cluster import (
    DOUBLE,
    LIMIT_S,
    PAIRS,
    SERVICE,
    CoreCluster,
    X,
    floats,
    may,
)
from tests.agent.core.core_driver import OTHER_KEY, OTHER_SENDER, add, cut, plan, recv, send

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.events import FromPeer, Tick
from potluck_agent.core.grants import MAX_INSTRUCTIONS
from potluck_wire import messages as m
from potluck_wire.limits import ANSWER, MAX_ASKS, MAX_GRANTS
from potluck_wire.messages import RefusalCode

VALUE = floats(1.0, 2.0)


def ask(number=1, service=SERVICE, left_s=LIMIT_S, path=("a",), rows=1):
    return m.Ask(number=number, service=service, left_s=left_s, path=path, rows=rows)


def codes_heard(cluster, request, *, sender="a", to="b", **changes):
    """The codes that a member hears of its own request and its input."""
    n_heard = len(cluster.ended_for(sender))
    cluster.as_member(sender, to, request)
    cluster.as_member(sender, to, cluster.value(request.number, **changes), VALUE)
    return [each.code for each in cluster.ended_for(sender)[n_heard:]]


def granted(*peers, names="abc", **changes):
    cluster = CoreCluster(names)
    answer = cluster.grant("b", *(peers or (may("a"),)), **changes)
    assert isinstance(answer, m.ServiceGranted), answer
    return cluster


def test_who_is_granted_a_service_is_answered():
    cluster = granted()
    assert codes_heard(cluster, ask()) == [""]
    outputs = [v for s, to, v in cluster.said if to == "a" and isinstance(v, m.Value)]
    assert [(v.run, v.program, v.step, v.name) for v in outputs] == [("", ANSWER, 1, "y")]


def test_who_is_woken_at_the_moment_that_it_said_has_nothing_left_to_wait_for():
    """Whatever that moment is rounded to: else it would be woken again and again, as no time
    passes.
    """
    rng = random.Random(0)
    for before_s in (8.0, 128.0, 2.0**20):  # where a second later numbers are twice as coarse
        for _ in range(20):
            cluster = CoreCluster("ab")
            cluster.now_s = before_s - rng.random()
            cluster.grant("b", may("a"))
            core = cluster.cores["b"]
            cluster.now_s = core.wake_s()
            core.handle(Tick(), cluster.now_s)
            assert core.wake_s() > cluster.now_s


# what a member says -> with which word it is refused
REFUSED = {
    "a service that is not there": (ask(service="x"), "a", RefusalCode.NOT_GRANTED),
    "a member without a grant": (ask(path=("c",)), "c", RefusalCode.NOT_GRANTED),
    "the path of a notebook": (ask(path=()), "a", RefusalCode.PATH),
    "a path that ends elsewhere": (ask(path=("c",)), "a", RefusalCode.PATH),
    "a path that was here": (ask(path=("b", "a")), "a", RefusalCode.PATH),
    "a path with a circle": (ask(path=("a", "c", "a")), "a", RefusalCode.PATH),
    "a path of what is no device": (ask(path=("../x", "a")), "a", RefusalCode.PATH),
    "a sixth hop": (ask(path=(*"cdefg", "a")), "a", RefusalCode.HOPS),
    "a number that is none": (ask(number=0), "a", RefusalCode.PATH),
    "time that is over": (ask(left_s=-1.0), "a", RefusalCode.LATE),
    "rows that nothing is granted for": (ask(rows=3), "a", RefusalCode.DOCUMENT),
    "no rows": (ask(rows=0), "a", RefusalCode.DOCUMENT),
    "less than no rows": (ask(rows=-2), "a", RefusalCode.DOCUMENT),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_by_name_before_anything_is_computed(what):
    request, sender, code = REFUSED[what]
    cluster = granted()
    assert codes_heard(cluster, request, sender=sender) == [code]
    assert cluster.n_computed == 0
    assert cluster.cores["b"].held.n_asks == 0
    assert codes_heard(cluster, ask(number=2)) == [""]  # nobody else is harmed


def test_who_has_no_grant_does_not_learn_whether_there_is_such_a_service():
    cluster = granted()
    cluster.as_member("c", "b", ask(1, SERVICE, path=("c",)))
    cluster.as_member("c", "b", ask(2, "x", path=("c",)))
    first, second = cluster.ended_for("c")
    assert (first.code, first.text) == (second.code, second.text)


def test_a_granted_member_of_another_home_is_nobody_here():
    cluster = granted()
    rows = [row for row in cluster.roster() if row["name"] != "a"]
    cluster.tell("b", m.Roster(home="h"), json.dumps(rows).encode())
    assert codes_heard(cluster, ask()) == [RefusalCode.NOT_GRANTED]


def test_another_notebook_neither_asks_nor_grants_what_is_not_its_own():
    cluster = granted()
    core = cluster.cores["b"]
    heard = []

    def other(message, *buffers):
        event = FromPeer(sender=OTHER_SENDER, message=message, buffers=buffers)
        for action in core.handle(event, cluster.now_s):
            if getattr(action, "key", "") == OTHER_KEY:
                heard.append(action.message)

    other(m.Hello(major=1, minor=12, name="tablet"))
    other(ask(path=()))
    assert heard[-1].code == RefusalCode.NOT_GRANTED
    document = json.dumps({"inputs": [X], "peers": [may("c")]}).encode()
    fields = {"service": SERVICE, "program": "p", "run_s": 0.1, "limit_s": 1.0}
    other(m.GrantService(run="r-b", **fields), document)
    assert heard[-1].code == RefusalCode.BUSY
    other(m.GrantService(run="r-b", **{**fields, "service": "mine"}), document)
    assert heard[-1].code == RefusalCode.UNKNOWN_RUN
    other(m.GrantService(service=SERVICE), document)  # it withdraws nothing either
    assert codes_heard(cluster, ask()) == [""]


def test_a_revoked_member_may_not_ask_and_what_it_has_under_way_ends():
    cluster = granted()
    cluster.workers["b"].answers = False
    assert codes_heard(cluster, ask()) == []
    cluster.grant("b", may("c"))
    assert [each.code for each in cluster.ended_for("a")] == [RefusalCode.NOT_GRANTED]
    cluster.workers["b"].answers = True
    assert codes_heard(cluster, ask(2)) == [RefusalCode.NOT_GRANTED]
    assert codes_heard(cluster, ask(path=("c",)), sender="c") == [""]


def pairs(cluster, sender, number):
    """A request of two rows, and its input, as two messages."""
    is_home = sender is None
    request = ask(number, path=() if is_home else (sender,), rows=2)
    value = cluster.value(number, shape=(2, 2), nbytes=16, chunk_bytes=16)
    say = cluster.tell if is_home else lambda *what: cluster.as_member(sender, *what)
    return partial(say, "b", request), partial(say, "b", value, floats(1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize("sender", [None, "a"], ids=["its notebook", "a member"])
def test_what_is_under_way_goes_on_as_it_was_admitted_whatever_rows_are_granted_since(sender):
    cluster = granted()
    number = cluster.number()
    begin, give = pairs(cluster, sender, number)
    begin()
    assert isinstance(cluster.grant("b", may("a"), sizes=[]), m.ServiceGranted)
    give()
    ended = [cluster.answer(number)[0]] if sender is None else cluster.ended_for(sender)
    assert [each.code for each in ended] == [""]
    begin, _ = pairs(cluster, "a", number + 1)
    begin()
    assert cluster.ended_for("a")[-1].code == RefusalCode.DOCUMENT


def test_what_was_handed_on_goes_elsewhere_whatever_rows_are_granted_since():
    cluster = CoreCluster("abc").grant_all()
    cluster.workers["b"].answers = False
    for _ in range(20):  # more than are in time here
        begin, _ = pairs(cluster, None, cluster.number())
        begin()
    to, first = next((to, each) for _, to, each in cluster.said if isinstance(each, m.Ask))
    cluster.grant("b", may("a"), may("c"), sizes=[])
    n_said = len(cluster.said)
    busy = m.AskEnded(number=first.number, code=RefusalCode.BUSY, path=(to,), hops_s=(0.1,))
    cluster.as_member(to, "b", busy)
    again = [(who, each.rows) for _, who, each in cluster.said[n_said:] if isinstance(each, m.Ask)]
    assert again[0] == ("c" if to == "a" else "a", 2)


def test_a_service_that_is_withdrawn_is_unknown():
    cluster = granted()
    assert isinstance(cluster.grant("b", run=""), m.ServiceGranted)
    assert codes_heard(cluster, ask()) == [RefusalCode.NOT_GRANTED]


def test_a_grant_is_over_when_its_time_is():
    cluster = granted(lasts_s=5.0)
    cluster.tick(4.9)
    assert codes_heard(cluster, ask()) == [""]
    cluster.tick(0.1)
    assert codes_heard(cluster, ask(2)) == [RefusalCode.NOT_GRANTED]


def test_a_grant_that_was_renewed_goes_on():
    cluster = granted(lasts_s=5.0)
    cluster.tick(4.0)
    cluster.grant("b", may("a"), lasts_s=5.0)
    cluster.tick(4.0)
    assert codes_heard(cluster, ask()) == [""]


def test_a_grant_is_gone_with_its_run():
    cluster = granted()
    cluster.tell("b", m.Drop(run="r-b"))
    assert codes_heard(cluster, ask()) == [RefusalCode.UNKNOWN_RUN]
    cluster.tell("b", m.Goodbye())
    assert codes_heard(cluster, ask(2)) == [RefusalCode.NOT_GRANTED]


def test_what_was_granted_of_plans_that_are_over_is_not_kept():
    """Programs take some 25 times their document: what is loaded is bounded, and so is this."""
    cluster = granted()
    loaded = [{"name": name, "instructions": list(DOUBLE)} for name in ("p", "pairs")]
    document = json.dumps({"segments": [], "programs": loaded}).encode()
    n_before = None
    for epoch in range(1, MAX_GRANTS):
        cluster.tell("b", m.Prepare(run="r-b", epoch=epoch), document)
        cluster.tell("b", m.Commit(run="r-b", epoch=epoch))
        answer = cluster.grant("b", may("a"), service=f"s{epoch}", epoch=epoch)
        assert isinstance(answer, m.ServiceGranted)
        gc.collect()
        n_layouts = sum(isinstance(each, DependencyGraph) for each in gc.get_objects())
        n_before = n_before or n_layouts
    assert n_layouts <= n_before
    assert codes_heard(cluster, ask(1, "s1")) == [RefusalCode.UNKNOWN_RUN]
    assert codes_heard(cluster, ask(2, f"s{epoch}")) == [""]


def test_nobody_asks_more_often_than_was_granted():
    cluster = granted(may("a", 2.0), may("c", 2.0))
    cluster.tick(1.0)
    codes = [code for number in range(1, 6) for code in codes_heard(cluster, ask(number))]
    assert codes == ["", "", *[RefusalCode.TOO_OFTEN] * 3]
    assert codes_heard(cluster, ask(path=("c",)), sender="c") == [""]
    cluster.tick(0.5)
    assert codes_heard(cluster, ask(6)) == [""]
    assert cluster.n_computed == 4


def test_rows_are_paid_off_before_the_next_request():
    """Two rows take as long as one and a half requests, of which two a second are granted."""
    cluster = granted(may("a", 2.0))
    cluster.tick(1.0)
    pairs = {"shape": (2, 2), "nbytes": 16, "chunk_bytes": 16}
    for number in range(1, 8):
        cluster.as_member("a", "b", ask(number, rows=2))
        cluster.as_member("a", "b", cluster.value(number, **pairs), 2 * VALUE)
        cluster.tick(0.75)
    codes = [each.code for each in cluster.ended_for("a")]
    assert codes == ["", "", "", "", "", "", ""]
    cluster.as_member("a", "b", ask(8, rows=2))
    codes = [each.code for each in cluster.ended_for("a")]
    assert codes[-1] == ""
    cluster.as_member("a", "b", ask(9))
    assert cluster.ended_for("a")[-1].code == RefusalCode.TOO_OFTEN


def test_a_renewal_gives_nobody_more_at_once():
    cluster = granted(may("a", 0.5))
    assert codes_heard(cluster, ask(1)) == [""]
    cluster.grant("b", may("a", 0.5))
    assert codes_heard(cluster, ask(2)) == [RefusalCode.TOO_OFTEN]


def test_a_member_that_may_only_be_handed_requests_may_not_ask():
    cluster = granted(may("a", 0.0))
    assert codes_heard(cluster, ask()) == [RefusalCode.NOT_GRANTED]


def test_a_request_that_comes_again_is_not_done_again():
    cluster = granted()
    assert codes_heard(cluster, ask(5)) == [""]
    assert codes_heard(cluster, ask(5))[0] == RefusalCode.PATH
    assert codes_heard(cluster, ask(4))[0] == RefusalCode.PATH
    assert cluster.n_computed == 1


WRONG = {
    "another shape": {"shape": (1, 2)},
    "another type": {"dtype": "int32"},
    "another size": {"shape": (4,), "nbytes": 16},
    "bytes that do not fit": {"nbytes": 4, "chunk_bytes": 4},
    "another name": {"name": "y"},
    "a name that is none": {"name": "\x1b[2J"},
}


@pytest.mark.parametrize("what", WRONG)
def test_refuses_what_is_not_an_input_that_was_granted(what):
    cluster = granted()
    assert codes_heard(cluster, ask(), **WRONG[what]) == [RefusalCode.DOCUMENT]
    assert cluster.n_computed == 0
    assert codes_heard(cluster, ask(2)) == [""]


def test_nobody_adds_to_another_one_s_request():
    cluster = granted(may("a"), may("c"))
    cluster.as_member("a", "b", ask(1))
    cluster.as_member("c", "b", cluster.value(1), VALUE)
    cluster.as_member("c", "b", cluster.value(1, program=ANSWER, name="y"), VALUE)
    assert cluster.n_computed == 0
    cluster.as_member("a", "b", cluster.value(1), VALUE)
    assert [each.code for each in cluster.ended_for("a")] == [""]


def test_requests_without_inputs_are_bounded_and_end():
    cluster = granted(may("a", 1e6), may("c"))
    cluster.tick(1.0)
    cluster.workers["b"].answers = False
    for number in range(1, 2 * MAX_ASKS):
        cluster.as_member("a", "b", ask(number))
    assert cluster.cores["b"].held.n_asks <= MAX_ASKS
    cluster.tick(LIMIT_S)
    assert cluster.cores["b"].held.n_asks == 0
    cluster.workers["b"].answers = True
    assert codes_heard(cluster, ask(path=("c",)), sender="c") == [""]


# --- who was asked lies ---------------------------------------------------------------------------

LIES = {
    "it names somebody else": {"path": ("c",), "hops_s": (0.1,)},
    "nobody": {},
    "it comes back to the entrance": {"path": ("b", "a"), "hops_s": (0.1, 0.1)},
    "a circle": {"path": ("b", "c", "b"), "hops_s": (0.1, 0.1, 0.1)},
    "more than five hops": {"path": (*"bcdefg",), "hops_s": (0.1,) * 6},
    "names that are none": {"path": ("b", "\x1b[2J"), "hops_s": (0.1, 0.1)},
    "times before there was time": {"path": ("b",), "hops_s": (-1.0,)},
    "other times than devices": {"path": ("b",), "hops_s": (0.1, 0.1)},
}


@pytest.mark.parametrize("what", LIES)
def test_a_path_that_cannot_be_is_not_told_on(what):
    cluster = CoreCluster("abc").grant_all()
    cluster.grant("a", may("b"))
    cluster.workers["a"].answers = False
    for _ in range(10):
        cluster.ask("a")
    asked = []
    cluster.lost = lambda sender, to, message: to == "b" and not asked.append(message)
    number = cluster.ask("a")
    cluster.lost = lambda *_: False
    cluster.as_member("b", "a", m.AskEnded(number=asked[0].number, **LIES[what]))
    ended, output = cluster.answer(number)
    assert (ended.code, ended.path, output) == (RefusalCode.PATH, ("a",), None)


def test_who_was_not_asked_cannot_answer():
    cluster = CoreCluster("abc").grant_all()
    cluster.workers["a"].answers = False
    cluster.workers["b"].answers = False
    cluster.grant("a", may("b"), may("c", hands_on=False))
    for _ in range(10):
        cluster.ask("a")
    number = cluster.ask("a")
    (handed,) = [q for _, to, q in cluster.said if isinstance(q, m.Ask) and to == "b"]
    forged = m.AskEnded(number=handed.number, path=("c",), hops_s=(0.1,))
    cluster.as_member("c", "a", forged)
    output = cluster.value(handed.number, program=ANSWER, name="y")
    cluster.as_member("c", "a", output, VALUE)
    assert not [e for _, e, _ in cluster.home if isinstance(e, m.AskEnded) and e.number == number]


def test_only_those_who_may_be_handed_requests_are_believed_to_be_idle():
    cluster = CoreCluster("abc")
    cluster.grant("a", may("b"), may("c", hands_on=False))
    cluster.workers["a"].answers = False
    idle = m.Standing(service=SERVICE, capacity_per_s=1e9, idle_per_s=1e9, run_s=1e-3)
    cluster.as_member("c", "a", idle)
    for _ in range(11):
        cluster.ask("a")
    assert not [q for _, to, q in cluster.said if isinstance(q, m.Ask)]


def test_less_than_nothing_is_not_believed():
    cluster = CoreCluster("abc").grant_all()
    cluster.workers["a"].answers = False
    less = {"capacity_per_s": 1.0, "idle_per_s": -1e9, "run_s": 0.1}
    cluster.as_member("c", "a", m.Standing(service=SERVICE, **less))
    for _ in range(10):
        cluster.ask("a")
    cluster.as_member("b", "a", m.Standing(service=SERVICE, **{**less, "idle_per_s": 1e-9}))
    cluster.ask("a")
    assert "c" in [to for _, to, q in cluster.said if isinstance(q, m.Ask)]


# --- grants that are refused ----------------------------------------------------------------------

TRAINS = {"segment": "s0", "key": "k", "train": True, "rows": [0, 1, 1], "micro_batch": 0}
OUTPUT = [recv("x"), add("x", "x", "y")]
PROGRAMS = {
    "it sends to a member": [*DOUBLE, send("x", "a")],
    "it waits for a member": [*OUTPUT, recv("z", "a"), send("y")],
    "it sends to another program": [*OUTPUT, send("y", to="0/q")],
    "it trains": [recv("x"), ["run", ["x"], ["y"], [], 0, TRAINS], send("y")],
    "it reads weights": [
        recv("x"),
        ["state", [], ["w"], [], 0, {"segment": "s0", "names": ["w"]}],
        send("w"),
    ],
    "it writes weights": [*DOUBLE, ["assign", ["x"], [], [], 0, {"segment": "s0", "names": ["w"]}]],
    "it answers nothing": [recv("x"), cut("x", "y")],
    "its answer has the name of an input": [*OUTPUT, send("y", name="x")],
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_refuses_to_grant_what_does_more_than_answer(what):
    cluster = CoreCluster("ab")
    cluster.tell("a", m.Prepare(run="r", epoch=0), *plan(*PROGRAMS[what], segments=("s0",)))
    cluster.tell("a", m.Commit(run="r", epoch=0))
    answer = cluster.grant("a", may("b"), run="r", sizes=[])
    assert (answer.about, answer.code) == (28, RefusalCode.DOCUMENT)
    assert "is loaded" not in answer.text  # it is there, and refused for what it does


GRANTS = {
    "a program that is not there": {"sizes": [{**PAIRS, "program": "x"}]},
    "one row twice": {"sizes": [{**PAIRS, "rows": 1}]},
    "a number of rows twice": {"sizes": [PAIRS, PAIRS]},
    "more rows than there can be": {"sizes": [{**PAIRS, "rows": 2**53}]},
    "rows in no time": {"sizes": [{**PAIRS, "run_s": 0.0}]},
    "rows of more bytes than there are": {
        "sizes": [{**PAIRS, "inputs": [{**X, "shape": [2**50, 2**50]}]}]
    },
    "a service without a name": {"service": ""},
    "no time": {"run_s": 0.0},
    "less time than one takes": {"limit_s": 0.01},
    "time without end": {"limit_s": 1e9},
    "a time before now": {"lasts_s": -1.0},
    "other inputs": {"inputs": [{**X, "name": "z"}]},
    "an input twice": {"inputs": [X, X]},
    "a type that is none": {"inputs": [{**X, "dtype": "object"}]},
    "a shape that is none": {"inputs": [{**X, "shape": [-1]}]},
}


@pytest.mark.parametrize("what", GRANTS)
def test_refuses_grants_that_do_not_hold(what):
    cluster = CoreCluster("ab")
    answer = cluster.grant("a", may("b"), **GRANTS[what])
    assert (answer.about, answer.code) == (28, RefusalCode.DOCUMENT)


MEMBERS = [[may("b"), may("b")], [may("b", -1.0)], [may("home")], [may("b", rows=0)], [{}]]


@pytest.mark.parametrize("rows", MEMBERS)
def test_refuses_members_that_do_not_hold(rows):
    assert CoreCluster("ab").grant("a", *rows).code == RefusalCode.DOCUMENT


def test_services_are_counted():
    cluster = CoreCluster("a")
    answers = [cluster.grant("a", service=f"s{n}") for n in range(MAX_GRANTS + 1)]
    assert isinstance(answers[-2], m.ServiceGranted)
    assert answers[-1].code == RefusalCode.DOCUMENT


def test_what_is_kept_of_programs_to_be_asked_for_is_bounded():
    """Each grant keeps how a request is handed on, for each number of rows: all of a notebook's
    together have an end, whatever programs it names how often.
    """
    n_outputs = MAX_INSTRUCTIONS // 16
    names = [f"y{number}" for number in range(n_outputs)]
    rows = [recv("x"), *(row for name in names for row in (add("x", "x", name), send(name)))]
    document = {"segments": [], "programs": [{"name": "wide", "instructions": rows}]}
    cluster = CoreCluster("ab")
    cluster.tell("b", m.Prepare(run="r", epoch=0), json.dumps(document).encode())
    cluster.tell("b", m.Commit(run="r", epoch=0))
    fields = {"run": "r", "program": "wide", "sizes": []}
    answers = [cluster.grant("b", service=f"s{number}", **fields) for number in range(10)]
    assert [type(answer) for answer in answers] == [m.ServiceGranted] * 7 + [m.Refused] * 3
    assert "instructions in all" in answers[-1].text
    more = [{**PAIRS, "program": "wide"}] * 2
    assert isinstance(cluster.grant("b", service="s0", run=""), m.ServiceGranted)
    assert isinstance(cluster.grant("b", **{**fields, "sizes": more}), m.Refused)
    assert isinstance(cluster.grant("b", **fields), m.ServiceGranted)
