"""Frames that are cut short, in another order, twice, or of other bytes, in a real browser: the
page takes no harm, and the next whole frame sets it right.
"""

import base64
import json
import random
import struct

import pytest
from tests.sdk.display.cockpit import observations
from tests.sdk.display.cockpit.test_page import BOTH, HOSTILE, at_work

from potluck.display.cockpit.frames import HEAD, Frames
from potluck.display.cockpit.machine import CockpitMachine, HomeObserved
from potluck.display.cockpit.widget import PAGE

pytestmark = pytest.mark.slow

HARNESS = (
    PAGE
    + """
window.heard = null;
const model = { send() {}, get(name) { return name === "name" ? "p" : undefined; },
  on(_, heard) { window.heard = heard; }, off() {} };
render({ model, el: document.getElementById("cockpit") });
"""
)
FEED = """frames => { for (const text of frames) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  window.heard({ frame: true }, [new DataView(bytes.buffer)]); } }"""
NAMES = """() => [...document.querySelector('#cockpit').shadowRoot
  .querySelectorAll('.card .name')].map(e => e.textContent)"""
SEEDS = 12


@pytest.fixture
def page(browser):
    context = browser.new_context()
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("dialog", lambda dialog: page.faults.append(dialog.message) or dialog.dismiss())
    page.set_content('<div id="cockpit"></div>')
    page.add_script_tag(type="module", content=HARNESS)
    page.wait_for_function("() => window.heard !== null")
    yield page
    context.close()


def feed(page, *frames):
    page.evaluate(FEED, [base64.b64encode(frame).decode() for frame in frames])


def drawn(page):
    """After the page has drawn what it was given."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")


def history():
    """Frames of a home of hostile names that trains, joins and leaves; and the last, whole."""
    machine, frames = CockpitMachine(HOSTILE), Frames()
    made = [frames.full(machine.state)]
    for number in range(12):
        members = [
            observations.member(name, watts=float(number)) for name in HOSTILE[: 3 + number % 6]
        ]
        if number % 2:
            machine.handle(at_work(machine, *members, steps=number), float(number))
        else:
            machine.handle(HomeObserved(observation=observations.seen(*members)), float(number))
        made.append(frames.change(machine.state) or frames.full(machine.state))
    return made, Frames().full(machine.state), [m["shown"] for m in devices(machine)]


def devices(machine):
    found = machine.state.sections["devices"].values()
    return sorted(found, key=lambda device: device["at"])


def spoiled(frame, rng):
    """The frame, with one thing wrong."""
    head_length = HEAD.unpack_from(frame)[0]
    head = json.loads(frame[4 : 4 + head_length])
    match rng.randrange(7):
        case 0:
            return frame[: rng.randrange(len(frame))]
        case 1:
            at = rng.randrange(len(frame))
            return frame[:at] + bytes([rng.randrange(256)]) + frame[at + 1 :]
        case 2:
            return rng.randbytes(rng.randrange(200))
        case 3:
            head["rows"] = [["tasks", 9, 0, 10**9], ["constructor", 1, 0, 1]]
        case 4:
            wrong = rng.choice([5, "x", [], None, {"x": 5}, {"__proto__": {"status": "hurt"}}])
            head["set"] = dict.fromkeys((*head["set"], "devices", "plans", "run"), wrong)
        case 5:
            head["texts"] = {"__proto__": [0, ["x"]], "events": [0, [None, 5, {"words": {}}]]}
        case 6:
            head["n"], head["on"] = rng.choice([-1, "1", 10**18, None]), head["on"]
    document = json.dumps(head).encode()
    return struct.pack("<I", len(document)) + document + frame[4 + head_length :]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_whole_frame_sets_right_whatever_came_before(page, seed):
    rng = random.Random(seed)
    frames, full_frame, names = history()
    for _ in range(6):
        given = [frame if rng.random() < 0.5 else spoiled(frame, rng) for frame in frames]
        rng.shuffle(given) if rng.random() < 0.5 else None
        feed(page, *given, *given[:2])
        drawn(page)
    feed(page, full_frame)
    drawn(page)
    assert sorted(page.evaluate(NAMES)) == sorted(names)
    assert page.faults == []
    assert page.evaluate("window.hurt === undefined && ({}).status === undefined")
    assert page.locator("#cockpit img, #cockpit script, #cockpit iframe").count() == 0


@pytest.mark.long
def test_frames_after_a_gap_wait_for_a_whole_one(page):
    frames, full_frame, names = history()
    feed(page, frames[0], *frames[4:])
    drawn(page)
    assert page.evaluate(NAMES) == []
    feed(page, full_frame)
    drawn(page)
    assert len(page.evaluate(NAMES)) == len(names)
    assert BOTH.model in page.locator(".potluck-cockpit").inner_text()
