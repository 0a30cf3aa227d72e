"""A plan that an agent accepts is one of which it can make every message: to its worker, to peers,
and home.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.core.core_driver import Talk, plan, recv

from potluck_agent.core.dependencies import lay_out
from potluck_agent.core.execution import Execution, Name, check_tellable, compute_of, transfer_of
from potluck_wire.documents import dump
from potluck_wire.errors import WireError
from potluck_wire.frames import encode
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_DIMENSIONS, MAX_INT, MAX_ITEMS
from potluck_wire.messages import Done, Prepare, Prepared, RefusalCode
from potluck_wire.program import MAX_INSTRUCTIONS, from_json

LONGEST = "n" * 64
RUN = {
    "segment": LONGEST,
    "key": "k" * 200,
    "train": True,
    "rows": [0, 1, MAX_INT],
    "micro_batch": MAX_INT,
}
LARGE = {
    "an add of 1,300 long names": [
        *[recv(f"{i:0200}") for i in range(1300)],
        ["add", [f"{i:0200}" for i in range(1300)], ["y"], [], 0, {}],
    ],
    "a run of 4,096 in and out": [
        *[recv(f"i{i}") for i in range(4096)],
        ["run", [f"i{i}" for i in range(4096)], [f"o{i}" for i in range(4096)], [], 0, RUN],
    ],
    "the states of a whole segment": [
        [
            "state",
            [],
            [f"{i:0200}" for i in range(1000)],
            [],
            0,
            {"segment": "s", "names": ["w"] * 1000},
        ]
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("case", LARGE)
def test_a_plan_that_its_worker_could_not_be_told_is_refused_when_it_is_prepared(case):
    (answer,) = Talk().begin().receive(Prepare(run="r", epoch=1), *plan(*LARGE[case]))
    assert answer.message.code == RefusalCode.DOCUMENT
    assert "more than a worker can be told at once" in answer.message.text


@pytest.mark.long
def test_a_plan_of_many_short_names_is_accepted():
    names = [f"w{i}" for i in range(1000)]
    (answer,) = (
        Talk()
        .begin()
        .receive(
            Prepare(run="r", epoch=1), *plan(*map(recv, names), ["add", names, ["y"], [], 0, {}])
        )
    )
    assert answer.message == Prepared(run="r", epoch=1)


def names_of(count, length, what):
    return [f"{what}{i:0{max(1, length - 1)}}" for i in range(count)]


@pytest.mark.long
@settings(max_examples=40)
@given(
    n_in=st.sampled_from([0, 1, 150, 199, 200, 201, 350, 700, 2000, 4096]),
    n_out=st.sampled_from([1, 100, 199, 200, 201, 240, 500, 2048, 4096]),
    length=st.integers(5, 200),
    run=st.sampled_from(["r", LONGEST]),
    epoch=st.sampled_from([0, MAX_INT]),
    step=st.sampled_from([0, MAX_INT]),
)
def test_every_message_of_an_accepted_program_can_be_made(n_in, n_out, length, run, epoch, step):
    """All values are used once more and sent, at the worst.

    Times and shapes are the longest that a worker may tell.
    """
    values, made = names_of(n_in, length, "i"), names_of(n_out, length, "o")
    rows = [recv(value) for value in values]
    rows.append(["run", values, made, [], 0, RUN])
    rows += [["send", [value], [], [], 0, {"peer": LONGEST, "name": value}] for value in made]
    layout = lay_out(from_json({"name": LONGEST, "instructions": rows}))
    try:
        check_tellable(run, epoch, layout)
    except WireError:
        assert n_in + n_out > 200  # what surely fits is never refused
        return
    execution = Execution(Name(run, epoch, LONGEST, step), layout, "", 0)
    _, frees = execution.queued(n_in)
    order = compute_of(execution, n_in, MAX_INT, frees, is_told_times=True)
    encode(order, (layout.attrs[n_in],))
    exports = [
        [key, 0, 2**50, "bfloat16", [1] * (MAX_DIMENSIONS - 1) + [2**49]] for key in order.exports
    ]
    located = execution.exported(n_in, json.dumps(exports).encode(), MAX_INT)
    for index in range(n_in + 1, len(rows)):
        value = rows[index][1][0]
        span = replace(located[value].span, offset=0, nbytes=8)
        small = replace(located[value], span=span, dtype="float32", shape=(1,) * MAX_DIMENSIONS)
        transfer = transfer_of(execution, index, small, "key", 0.0)
        transfer.value.received = (MAX_INT,) * MAX_ITEMS
        encode(transfer.value, (b"",))


def test_the_longest_timeline_can_be_told():
    row = [MAX_INSTRUCTIONS - 1, -0.12345678901234567, 9007199254740991.9]
    document = dump([row] * MAX_INSTRUCTIONS)
    assert len(document) <= MAX_BUFFER_BYTES
    encode(Done(run=LONGEST, epoch=MAX_INT, program=LONGEST, step=MAX_INT), (document,))
