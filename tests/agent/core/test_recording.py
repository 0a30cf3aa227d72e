"""What a core was given is recorded, and a fresh core that is given the same does the same."""

import random

import pytest
from tests.agent.core.core_attack import CorePlay
from tests.agent.core.core_driver import (
    EIGHT,
    OWNER_KEY,
    OWNER_SENDER,
    RUN,
    Talk,
    add,
    recv,
    send,
    settings,
    value,
)

from potluck_agent.core.events import FromPeer, Report, Store, ToPeer, ToWorker, Undone
from potluck_agent.core.machine import Core
from potluck_agent.core.recorded_core import RecordedCore
from potluck_agent.core.recorded_entries import (
    Answered,
    Began,
    Handled,
    RecordingError,
    Survived,
    open_outline,
    outline,
    pack,
    unpack,
)
from potluck_agent.core.replay import replay
from potluck_wire.errors import WireCode, WireError
from potluck_wire.messages import Channel, Chunk, Compute, Drop, Hello, LoadSegment, Prepare

pytestmark = pytest.mark.usefixtures("small_chunks")

N_SEQUENCES, N_MOVES = 150, 14
SECRET = b"these bytes are a tensor or a model"


class Tape:
    """The bytes of a recording in memory."""

    def __init__(self):
        self.entries = []

    def core(self, chosen):
        return RecordedCore(chosen, lambda entry: self.entries.append(pack(entry)))

    def talk(self):
        talk = Talk()
        talk.core = self.core(settings())
        return talk

    def replayed(self):
        return list(replay(map(unpack, self.entries)))

    @property
    def outlines(self):
        return [
            each
            for entry in map(unpack, self.entries)
            if isinstance(entry, Answered)
            for each in entry.outlines
        ]


def differences(steps):
    return [step for step in steps if step.differs]


@pytest.mark.few(1)
@pytest.mark.parametrize("hostile", [False, True])
def test_whatever_happened_happens_again(hostile):
    n_actions = 0
    for seed in range(N_SEQUENCES):
        rng, tape = random.Random(seed), Tape()
        play = CorePlay(rng, hostile=hostile, make_core=tape.core)
        for _ in range(N_MOVES):
            play.move(rng)
        steps = tape.replayed()
        assert differences(steps) == [], seed
        assert [each for step in steps for each in step.replayed] == tape.outlines
        n_actions += len(tape.outlines)
    assert n_actions > 20 * N_SEQUENCES


def at_work(tape):
    talk = (
        tape.talk()
        .begin()
        .roster()
        .load(recv("x"), recv("y", "phone"), add("x", "y", "a"), send("a"))
    )
    talk.core.reach(OWNER_KEY)
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    return talk


def test_what_else_the_loop_tells_the_core_is_replayed_too():
    tape = Tape()
    talk = at_work(tape)
    talk.core.malformed(OWNER_KEY, Channel.CONTROL, WireError(WireCode.SIZE, "too long"))
    talk.core.fault("a visitor of the pairing port", TypeError("unhashable"))
    talk.tick()
    talk.core.survive(
        FromPeer(sender=OWNER_SENDER, message=Chunk(transfer=1), buffers=(b"",)),
        TypeError("unhashable"),
        talk.now_s,
    )
    steps = tape.replayed()
    assert differences(steps) == []
    assert {type(step.entry).__name__ for step in steps} >= {
        "Reached",
        "Malformed",
        "Faulted",
        "Survived",
    }


def test_an_error_that_was_survived_is_raised_and_survived_again(monkeypatch):
    tape = Tape()
    talk = at_work(tape)
    event = FromPeer(sender=OWNER_SENDER, message=Drop(run="r"))

    def drop(talk):
        with pytest.raises(ZeroDivisionError) as caught:
            talk.core.handle(event, talk.now_s)
        talk.core.survive(event, caught.value, talk.now_s)

    with monkeypatch.context() as broken:
        broken.setattr("potluck_agent.core.epochs.EpochTable.drop", lambda *_: 1 / 0)
        drop(talk)
        assert differences(tape.replayed()) == []
    (mended,) = differences(tape.replayed())  # with a version that does not raise any more
    assert mended.note == "the agent raised ZeroDivisionError, the replay did not"


def test_a_core_that_raises_only_in_the_replay_is_noticed(monkeypatch):
    tape = Tape()
    at_work(tape).receive(Drop(run="r"))
    monkeypatch.setattr("potluck_agent.core.epochs.EpochTable.drop", lambda *_: 1 / 0)
    (broken,) = differences(tape.replayed())
    assert broken.note == "the replay raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize("which", range(4))
def test_any_other_answer_is_noticed_where_it_is(which):
    tape = Tape()
    at_work(tape)
    answered = [
        i
        for i, entry in enumerate(map(unpack, tape.entries))
        if isinstance(entry, Answered) and entry.outlines
    ]
    place = answered[which]
    tape.entries[place] = pack(Answered((outline(Report("something else")),)))
    (step,) = differences(tape.replayed())
    assert [open_outline(each)[0] for each in step.recorded] == ["Report"]


def test_tensors_and_models_are_left_out():
    tape = Tape()
    talk = at_work(tape)
    rows = b'{"segments":[{"name":"s0","kind":"aten"}],"programs":[]}'
    talk.receive(Prepare(run="r", epoch=2), rows, SECRET)
    talk.receive(
        value("y", nbytes=len(SECRET) // 4 * 4), memoryview(SECRET)[: len(SECRET) // 4 * 4]
    )
    assert b"programs" in b"".join(tape.entries)
    assert SECRET[:16] not in b"".join(tape.entries)
    assert differences(tape.replayed()) == []


UNDONE = [
    ToPeer(key=OWNER_KEY, message=Hello(major=2**70)),  # not even the wire takes it
    ToPeer(key=OWNER_KEY, message=Chunk(transfer=3), buffers=(SECRET,)),
    ToWorker(Compute(tag=1)),
    ToWorker(LoadSegment(slot="r/1/s0"), (SECRET,)),
    Store(64, SECRET),
]


@pytest.mark.parametrize("action", UNDONE[1:])
def test_an_action_that_was_undone_is_known_by_its_kind_and_message(action):
    entry = unpack(pack(Handled(1.0, Undone(action, "why"))))
    assert type(entry.event.action) is type(action)
    assert getattr(entry.event.action, "message", None) == getattr(action, "message", None)
    assert entry.event.text == "why"


def test_a_number_that_cannot_be_kept_is_an_error_of_the_recorder():
    with pytest.raises((OverflowError, ValueError)):
        pack(Handled(1.0, Undone(UNDONE[0], "why")))


@pytest.mark.parametrize(
    "action", [UNDONE[0], ToWorker(Compute(tag=2**70)), Report("\ud800"), Store(2**70, b"")]
)
def test_what_cannot_be_kept_of_an_action_does_not_fail_the_core(action):
    assert open_outline(outline(action)) == (type(action).__name__, "", None, [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91\xa1x",
        b"\x93\xa7Handled\xa1x\x91\xa4Tick",
        b"\x93\xa7Handled\xcb" + bytes(8) + b"\x91\xa8FromPeer",
    ],
)
def test_other_bytes_are_no_entry(data):
    with pytest.raises(RecordingError, match="no entry that this version knows"):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x94\xa6ToPeer\xa1k\x92\x01\xa1x\x90",
        b"\x94\xa6ToPeer\xa1k\x92\xcc\xff\xa1x\x90",
    ],
)
def test_other_bytes_are_no_outline(data):
    with pytest.raises(RecordingError, match="an action that this version does not know"):
        open_outline(data)


def test_buffers_that_no_message_can_have_take_no_memory():
    packed = pack(
        Handled(
            1.0, FromPeer(sender=OWNER_SENDER, message=Chunk(transfer=1, index=1), buffers=(b"",))
        )
    )
    assert packed.endswith(b"\x91\x00")
    with pytest.raises(RecordingError, match="buffers of"):
        unpack(packed[:-1] + b"\xcf" + b"\x00" * 2 + b"\xff" * 6)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], "does not begin with the settings"),
        ([Answered(())], "does not begin with the settings"),
        ([Began("1.0", {"colour": "red"})], "settings are those of another version"),
        ([Began("1.0", None), Answered(())], "answers to nothing"),
        (
            [Began("1.0", None), Survived(at_s=1.0, event=None, error="TypeError", text="")],
            "an error over no event",
        ),
    ],
)
def test_a_recording_that_makes_no_sense_says_why(entries, text):
    tape = Tape()
    tape.core(settings())
    began = unpack(tape.entries[0])
    fitting = [
        began if isinstance(entry, Began) and entry.settings is None else entry for entry in entries
    ]
    with pytest.raises(RecordingError, match=text):
        list(replay(fitting))


def test_recording_changes_nothing():
    plain = Talk()
    assert type(plain.core) is Core
    assert at_work(Tape()).tick() == at_work_plainly().tick()


def at_work_plainly():
    class Untaped:
        def talk(self):
            return Talk()

    return at_work(Untaped())
