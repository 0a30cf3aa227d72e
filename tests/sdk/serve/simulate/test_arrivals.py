"""Drawn arrivals have the statistics that they claim; a trace's file is read or refused by line."""

from itertools import pairwise
from random import Random
from statistics import mean, median, pstdev

import pytest
from tests.sdk.serve.serving import service, stream_service

from potluck.errors import FileError, UserError
from potluck.serve.scheduling.records import Latency
from potluck.serve.simulate.arrivals import ANSWER, PROMPT, ArrivalLoad, demand, draw, functions
from potluck.serve.simulate.traces import function_arrivals, llm_arrivals

CHAT = service("small chat", Latency(2.0))
SERVICES = {each.name: each for each in (service("birds"), stream_service(), CHAT)}
SERVERS = ("a", "b", "c")


def drawn(seed=0, **changes):
    per_s = {"birds": 50.0, "cameras": 600.0, "small chat": 5.0}
    load = ArrivalLoad(**{"per_s": per_s, "duration_s": 100.0, **changes})
    rng = Random(seed)
    called = functions([*SERVICES.values()], SERVERS, load, rng)
    return draw(called, SERVICES, load, rng)


def test_the_rate_is_the_one_asked_for():
    found = drawn(cv=1.0)
    birds = [each for each in found if each.request.service == "birds"]
    assert len(birds) == pytest.approx(5000, rel=0.1)
    frames = sum(each.request.n_frames for each in found if each.request.fps)
    assert frames == pytest.approx(60_000, rel=0.2)


def test_arrivals_come_in_order_and_number():
    found = drawn()
    times = [each.request.arrived_s for each in found]
    assert times == sorted(times)
    assert [each.request.id for each in found] == [*range(len(found))]


def test_the_same_seed_draws_the_same():
    once, again, other = (drawn(seed, duration_s=20.0) for seed in (3, 3, 4))
    assert once == again
    assert once != other


@pytest.mark.few(1)
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_of_one_function_vary_as_asked(cv):
    per_s = {"birds": 50.0}
    found = drawn(cv=cv, n_functions=1, per_s=per_s, duration_s=400.0)
    gaps = [b.request.arrived_s - a.request.arrived_s for a, b in pairwise(found)]
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.15)


def test_a_few_functions_and_servers_have_most_of_the_calls():
    rng = Random(1)
    load = ArrivalLoad(per_s={"birds": 100.0}, duration_s=1.0, n_functions=1000)
    rates = sorted(each.per_s for each in functions([SERVICES["birds"]], SERVERS, load, rng))
    assert sum(rates) == pytest.approx(100.0)
    assert sum(rates[-100:]) > 0.4 * sum(rates)


@pytest.mark.parametrize(
    ("tokens", "middle", "average"), [(PROMPT, 1020, 1155), (ANSWER, 129, 211)]
)
def test_lengths_have_the_median_and_mean_of_the_conversation_trace(tokens, middle, average):
    rng = Random(0)
    lengths = [tokens.draw(rng) for _ in range(40_000)]
    assert median(lengths) == pytest.approx(middle, rel=0.03)
    assert mean(lengths) == pytest.approx(average, rel=0.03)


def test_a_longer_answer_has_a_later_deadline():
    chats = [each.request for each in drawn() if each.request.service == "small chat"]
    assert {each.work == 1.0 for each in chats} == {False}
    for each in chats:
        assert each.deadline_s - each.arrived_s == pytest.approx(2.0 * max(1.0, each.work))


def test_demand_counts_the_requests_of_the_period():
    found = drawn()
    counted = demand(found, 100.0)
    n_requests = sum(each.request.n_frames if each.request.fps else 1 for each in found)
    assert sum(counted.values()) == pytest.approx(n_requests / 100)


@pytest.mark.parametrize(
    "wrong", [{"duration_s": 0.0}, {"cv": -1.0}, {"n_functions": 0}, {"sigma": float("nan")}]
)
def test_refuses_a_load_that_cannot_be_drawn(wrong):
    with pytest.raises(UserError):
        ArrivalLoad(**{"per_s": {}, "duration_s": 1.0, **wrong})


FUNCTIONS = [
    "app,func,end_timestamp,duration",
    "x,f,5160.142570018768,0.134",
    "y,g,5161.28,0.28",
    "x,f,5160.0,10.0",
]


def test_reads_a_trace_of_functions():
    found = function_arrivals(FUNCTIONS, [SERVICES["birds"], CHAT], SERVERS, Random(0))
    seen = [(each.server, each.request.service, round(each.request.arrived_s, 3)) for each in found]
    assert seen == [("a", "birds", 0.0), ("a", "birds", 10.009), ("b", "small chat", 11.0)]
    twice = function_arrivals(FUNCTIONS, [SERVICES["birds"]], SERVERS, Random(0), speed=2.0)
    assert twice[-1].request.arrived_s == pytest.approx(5.5)


LLM = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,422",
    "2023-11-16 18:15:50.9951690,396,109",
]


def test_reads_a_trace_of_conversations():
    found = llm_arrivals(LLM, CHAT, SERVERS)
    assert [each.server for each in found] == ["a", "b"]
    assert found[0].request.work == pytest.approx(2.0)
    assert found[1].request.arrived_s == pytest.approx(4.314579)
    with pytest.raises(FileError, match="stream"):
        llm_arrivals(LLM, stream_service(), SERVERS)


@pytest.mark.parametrize(
    ("lines", "pattern"),
    [
        (["a,b"], "line 1: expected app,func"),
        ([], "line 1"),
        ([FUNCTIONS[0], "x,f,1.0"], "line 2: expected 4 fields, got 3"),
        ([FUNCTIONS[0], "x,f,soon,1"], "line 2: expected a number"),
        ([FUNCTIONS[0], "x,f,nan,1"], "line 2: expected a number"),
        ([FUNCTIONS[0], "x,f,5,1", "x,f,inf,1"], "line 3: expected a number"),
    ],
)
def test_refuses_another_file_and_names_the_line(lines, pattern):
    with pytest.raises(FileError, match=pattern):
        function_arrivals(lines, [CHAT], SERVERS, Random(0))


@pytest.mark.parametrize(
    "time",
    [
        "yesterday",
        "2023-13-01 00:00:00",
        "2023-02-29 00:00:00",
        "24:00:00",
        "10:60:00",
        "10:00:00x",
    ],
)
def test_refuses_a_time_that_is_none(time):
    with pytest.raises(FileError, match="line 2: expected a date"):
        llm_arrivals([LLM[0], f"{time},1,2"], CHAT, SERVERS)


@pytest.mark.parametrize(
    ("first", "second", "apart_s"),
    [
        ("2024-02-29 12:00:00", "2024-03-01 12:00:00", 86_400),
        ("2023-12-31 23:59:59", "2024-01-01 00:00:00", 1),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00", 1),
        ("10:00:00", "10:00:01.5", 1.5),
    ],
)
def test_times_of_a_trace_are_those_of_the_calendar(first, second, apart_s):
    found = llm_arrivals([LLM[0], f"{first},1,2", f"{second},1,3"], CHAT, SERVERS)
    assert found[1].request.arrived_s == pytest.approx(apart_s, abs=1e-4)
    assert found[1].request.work >= found[0].request.work


def test_an_empty_trace_has_no_arrivals():
    assert function_arrivals(FUNCTIONS[:1], [CHAT], SERVERS, Random(0)) == []
    assert llm_arrivals(LLM[:1], CHAT, SERVERS) == []


CELLS = [
    "nan", "inf", "-1", "1e308", "1e400", "", "x", "\x00", '"', "5\r", "5\r6", "\n", "-0", "0x5",
    "a" * 140_000, "2023-99-99 99:99:99", "00:00:00",
]  # fmt: skip


@pytest.mark.parametrize("form", [FUNCTIONS, LLM], ids=["functions", "conversations"])
def test_whatever_is_in_a_trace_it_has_finite_arrivals_in_order_or_is_refused(form):
    n_read = 0
    for seed in range(2000):
        rng = Random(seed)
        rows = [line.split(",") for line in form]
        for _ in range(rng.choice((1, 2, 4))):
            row = rng.choice(rows)
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        lines = [",".join(row) for row in rows]
        try:
            if form is LLM:
                found = llm_arrivals(lines, CHAT, SERVERS)
            else:
                found = function_arrivals(lines, [SERVICES["birds"], CHAT], SERVERS, rng)
        except FileError:
            continue
        n_read += 1
        times_s = [each.request.arrived_s for each in found]
        assert times_s == sorted(times_s)
        for each in (each.request for each in found):
            assert 0 <= each.arrived_s <= each.deadline_s < float("inf")
    assert n_read > 50
