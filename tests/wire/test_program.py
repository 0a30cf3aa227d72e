"""Programs are read strictly: what does not hold is refused with the instruction named."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_wire.errors import WireCode, WireError
from potluck_wire.program import (
    ARITY,
    COLUMNS,
    MAX_INSTRUCTIONS,
    OPERATIONS,
    Instruction,
    Program,
    from_json,
    loads,
)

RUN = {"segment": "s0", "key": "0.0", "train": True, "rows": [0, 4, 8], "micro_batch": 0}

# op -> (inputs, outputs, attrs), one good instruction each; inputs are made by the `recv`s before
# it
GOOD = {
    "send": (["a"], [], {"peer": "jetson", "name": "f1.0"}),
    "recv": ([], ["z"], {"peer": "home"}),
    "run": (["a", "b"], ["y"], RUN),
    "backward": ([], ["dx"], {"segment": "s0", "key": "0.0", "scale": 0.25}),
    "backward_input": (["a"], ["dx"], {"segment": "s0", "key": "0.0", "scale": 1.0}),
    "backward_weight": ([], [], {"segment": "s0", "key": "0.0"}),
    "gradients": ([], ["g"], {"segment": "s0", "share_frac": 0.5}),
    "step": (
        ["a"],
        [],
        {"segment": "s0", "optimizer": {"name": "adamw", "lr": 1e-3, "nesterov": False, "step": 1}},
    ),
    "norms": (["a"], ["n"], {"segment": "s0", "order": 2.0}),
    "limit": (
        ["a", "b"],
        ["s", "n"],
        {"segment": "s0", "order": "inf", "most": 1.0, "places": [1, 0, 2]},
    ),
    "state": ([], ["w", "m"], {"segment": "3/s0", "names": ["conv.weight", "exp_avg:conv.weight"]}),
    "assign": (["a", "b"], [], {"segment": "s0", "names": ["conv.weight", "conv.bias"]}),
    "slice": (["a"], ["c"], {"dim": 0, "start": 0, "stop": 4}),
    "pad": (["a"], ["c"], {"dim": 1, "before": 0, "after": 3}),
    "concat": (["a", "b"], ["c"], {"dim": 0}),
    "add": (["a", "b"], ["c"], {}),
}
RECEIVED = [["recv", [], [name], [], 0, {"peer": "home"}] for name in "ab"]


def document(*rows, name="train"):
    return {"name": name, "instructions": [*RECEIVED, *rows]}


def row(op, **attrs):
    inputs, outputs, good = GOOD[op]
    return [op, inputs, outputs, [], 0, {**good, **attrs}]


def test_every_operation_has_an_arity_and_a_good_example():
    assert set(OPERATIONS) == set(ARITY) == set(GOOD)


@pytest.mark.parametrize("op", GOOD)
def test_reads_what_it_writes(op):
    program = from_json(document(row(op)))
    assert program.instructions[2].op == op
    assert loads(program.dumps()) == program


def test_a_run_may_take_a_part_of_an_input():
    (*_, run) = from_json(document(row("run", takes=[[0, 4], None]))).instructions
    assert run.attrs["takes"] == [[0, 4], None]


def test_a_run_may_say_that_its_backward_computes_it_again():
    (*_, run) = from_json(document(row("run", recompute=True))).instructions
    assert run.attrs["recompute"] is True


def test_a_run_may_say_that_its_backward_comes_in_two_parts():
    (*_, run) = from_json(document(row("run", split=True))).instructions
    assert run.attrs["split"] is True


def test_gradients_may_be_taken_and_a_step_that_has_them_may_be_late():
    (*_, taken) = from_json(document(row("gradients", taken=True))).instructions
    assert taken.attrs["taken"] is True
    for more in ({}, {"given": ["gradients"]}):
        late = row("step", late=True, **more)
        late[1] = ["a"]
        assert from_json(document(late)).instructions[2].attrs["late"] is True


GROUPS = [[["w"], {"lr": 0.1}], [[], {}]]


def test_a_step_may_say_more_of_its_inputs_and_settings():
    more = {
        "given": ["scale", "rates"],
        "groups": GROUPS,
        "rated": ["lr", "weight_decay"],
        "clip_value": 0.5,
        "average": 0.99,
    }
    bad = row("step", **more)
    bad[1] = ["a", "b"]
    (*_, step) = from_json(document(bad)).instructions
    assert step.attrs["groups"] == GROUPS
    assert step.attrs["given"] == ["scale", "rates"]


def without(op, name):
    bad = row(op)
    del bad[5][name]
    return bad


def changed(good, /, **places):
    names = ["op", "inputs", "outputs", "after", "priority", "attrs"]
    bad = row(good)
    for name, value in places.items():
        bad[names.index(name)] = value
    return bad


WRONG = {
    "not a list": "send",
    "inputs of a step that nobody names": changed("step", inputs=["a", "b"]),
    "inputs of a step in another order": changed(
        "step", inputs=["a", "b"], attrs={**GOOD["step"][2], "given": ["scale", "gradients"]}
    ),
    "a late step without gradients": changed(
        "step", inputs=[], attrs={**GOOD["step"][2], "late": True}
    ),
    "a late step with a scale alone": changed(
        "step", inputs=["a"], attrs={**GOOD["step"][2], "late": True, "given": ["scale"]}
    ),
    "a step that is late by a number": row("step", late=1),
    "rates of nobody": row("step", rated=["lr"], groups=GROUPS),
    "rates without groups": row("step", given=["rates"], rated=["lr"]),
    "no group": row("step", groups=[]),
    "a group without settings": row("step", groups=[[["w"]]]),
    "a group of a number": row("step", groups=[[7, {}]]),
    "a bound below zero": row("step", clip_value=-1.0),
    "an average of two": row("step", average=2.0),
    "norms of order zero": row("norms", order=0),
    "norms of order minus inf": row("norms", order="-inf"),
    "limit below zero": row("limit", most=-1.0),
    "places twice": row("limit", places=[0, 0]),
    "places before the first": row("limit", places=[-1, 0]),
    "no places": row("limit", places=[]),
    "five fields": ["add", ["a"], ["c"], [], 0],
    "unknown operation": changed("add", op="eval"),
    "operation is a number": changed("add", op=7),
    "operation is a list": changed("add", op=["add"]),
    "inputs are a name": changed("add", inputs="ab"),
    "an input is a number": changed("add", inputs=["a", 1]),
    "a name with a space": changed("add", outputs=["c d"]),
    "an empty name": changed("add", outputs=[""]),
    "a name of 201 characters": changed("add", outputs=["c" * 201]),
    "too few inputs": changed("send", inputs=[]),
    "too many inputs": changed("slice", inputs=["a", "b"]),
    "output of a send": changed("send", outputs=["c"]),
    "no output": changed("concat", outputs=[]),
    "value nobody makes": changed("add", inputs=["a", "nobody"]),
    "its own output": changed("add", inputs=["a", "c"]),
    "value made twice": changed("add", outputs=["a"]),
    "two equal outputs": changed("state", outputs=["w", "w"]),
    "after itself": changed("add", after=[2]),
    "after a later one": changed("add", after=[3]),
    "after a negative one": changed("add", after=[-1]),
    "after true": changed("add", after=[True]),
    "priority is a float": changed("add", priority=1.5),
    "priority past 2**53": changed("add", priority=2**53 + 1),
    "attributes are a list": changed("add", attrs=[]),
    "an attribute too many": row("add", alpha=2),
    "an attribute missing": without("run", "rows"),
    "peer with a slash": row("send", peer="a/b"),
    "name is null": row("send", name=None),
    "to another program of no epoch": row("send", to="follow"),
    "to a path": row("send", to="1/../x"),
    "receiving from another program": row("recv", to="1/follow"),
    "segment is a path": row("run", segment="../../etc"),
    "segment of no epoch": row("run", segment="x/s0"),
    "train is one": row("run", train=1),
    "rows are two": row("run", rows=[0, 4]),
    "no rows": row("run", rows=[4, 4, 8]),
    "rows past the total": row("run", rows=[0, 9, 8]),
    "rows are negative": row("run", rows=[-1, 4, 8]),
    "rows are floats": row("run", rows=[0.0, 4.0, 8.0]),
    "takes of one input of two": row("run", takes=[[0, 4]]),
    "recompute is no answer": row("run", recompute=1),
    "takes are no list": row("run", takes={"a": [0, 4]}),
    "takes three numbers": row("run", takes=[[0, 4, 8], None]),
    "takes backwards": row("run", takes=[None, [4, 0]]),
    "takes before the first": row("run", takes=[None, [-1, 4]]),
    "takes half an entry": row("run", takes=[None, [0, 0.5]]),
    "takes of another operation": row("backward", takes=[None]),
    "scale is a string": row("backward", scale="1"),
    "scale is NaN": row("backward", scale=float("nan")),
    "share above one": row("gradients", share_frac=1.5),
    "optimizer is a name": row("step", optimizer="adamw"),
    "optimizer is nested": row("step", optimizer={"lr": [1]}),
    "optimizer is empty": row("step", optimizer={}),
    "names are empty": row("state", names=[]),
    "more names than values": row("state", names=["u", "v", "w"]),
    "fewer names than values": row("assign", names=["u"]),
    "dimension 99": row("concat", dim=99),
    "negative dimension": row("concat", dim=-1),
    "slice backwards": row("slice", start=5, stop=4),
    "huge slice": row("slice", stop=2**60),
    "negative padding": row("pad", before=-1),
}


@pytest.mark.parametrize("case", WRONG)
def test_refuses_and_names_the_instruction(case):
    with pytest.raises(WireError, match="program train, instruction 2") as raised:
        from_json(document(WRONG[case]))
    assert raised.value.code == WireCode.DOCUMENT


@pytest.mark.parametrize("first", [{}, {"to": "2/follow"}])
def test_a_value_for_another_program_is_sent_once(first):
    program = from_json(document(row("send", to="2/follow")))
    assert program.instructions[2].attrs["to"] == "2/follow"
    with pytest.raises(WireError, match=r"instruction 3.*sent once"):
        from_json(document(row("send", **first), row("send", name="other", to="2/follow")))


def test_refuses_two_sends_of_one_name_to_one_peer_but_not_to_two():
    other = row("send", peer="phone")
    assert len(from_json(document(row("send"), other)).instructions) == 4
    with pytest.raises(WireError, match=r"instruction 4.*twice"):
        from_json(document(row("send"), other, other))


BROKEN = {
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "a list": b"[]",
    "no name": b'{"instructions":[]}',
    "name with a slash": b'{"name":"a/b","instructions":[]}',
    "an extra key": b'{"name":"a","instructions":[],"python":"print()"}',
    "a key twice": b'{"name":"a","name":"b","instructions":[]}',
    "instructions are an object": b'{"name":"a","instructions":{}}',
    "NaN": b'{"name":"a","instructions":[["backward",[],[],[],0,{"segment":"s","key":"k","scale":NaN}]]}',
    "infinity": b'{"name":"a","instructions":[["step",[],[],[],0,{"segment":"s","optimizer":{"lr":1e999}}]]}',
    "an integer of a million digits": b'{"name":"a","instructions":[' + b"9" * 1_000_000 + b"]}",
    "nested a million deep": b"[" * 1_000_000,
    "too many instructions": b'{"name":"a","instructions":[' + b"0," * MAX_INSTRUCTIONS + b"0]}",
    "too long": b" " * (4 * 1024 * 1024 + 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refuses_a_text_that_is_no_program(case):
    with pytest.raises(WireError):
        loads(BROKEN[case])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10) | st.floats() | st.text("ab/0 ", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.sampled_from(["name", "peer", "dim"]), inner)
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_mutated_programs_hold_or_raise_wire_errors(op, data):
    bad = json.loads(json.dumps(row(op)))
    place = data.draw(st.integers(0, 5))
    if place == 5 and bad[5] and data.draw(st.booleans()):
        bad[5][data.draw(st.sampled_from(sorted(bad[5])))] = data.draw(JSON)
    else:
        bad[place] = data.draw(JSON)
    with contextlib.suppress(WireError):
        program = from_json(document(bad))
        assert loads(program.dumps()) == program


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_wire_errors(data):
    with pytest.raises(WireError):
        loads(data)


def test_ids_are_positions():
    program = Program(
        name="p",
        instructions=(
            Instruction(id=0, op="recv", outputs=("x",), attrs={"peer": "home"}),
            Instruction(
                id=1,
                op="send",
                inputs=("x",),
                after=(0,),
                priority=-3,
                attrs={"peer": "b", "name": "x"},
            ),
        ),
    )
    assert loads(program.dumps()) == program


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_has_one_number_for_every_instruction_or_is_not_there(column):
    program = Program(
        name="p", instructions=(Instruction(id=0, op="recv", outputs=("x",), attrs={"peer": "a"}),)
    )
    assert column not in program.to_json()
    full = replace(program, **{column: (0.5,)})
    assert loads(full.dumps()) == full
    assert from_json(program.to_json() | {column: []}) == program
    for wrong in ([1, 2], [-1], ["1"], [True], [COLUMNS[column] * 2], 3):
        with pytest.raises(WireError, match=column):
            from_json(program.to_json() | {column: wrong})
