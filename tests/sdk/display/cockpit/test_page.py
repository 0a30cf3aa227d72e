"""The page in a real browser, without Jupyter: what it shows of a made-up home, how it stands many
devices and events, hostile names, the keyboard, dark and narrow; and who may have it at all.
"""

import http.client
import json
import re
from dataclasses import replace

import pytest
from tests.sdk.display.cockpit import observations

from potluck.display.cockpit.home_events import News
from potluck.display.cockpit.machine import CockpitMachine, HomeObserved, Planned
from potluck.display.cockpit.page_messages import Preview
from potluck.display.cockpit.plan_sections import name_of
from potluck.display.cockpit.server import PageServer
from potluck.errors import UserError
from potluck.records import Event, Trace

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>window.hurt=1</script>",
    "\u202egnp.exe",
    "bell\x07\x1b[31m",
    "__proto__",
    "constructor",
    "\"quoted\" & 'so'",
    "x" * 300,
]
BOTH, ALONE = (
    observations.plan("a", "b"),
    observations.plan("a", planner="single", latency_s=0.9, energy_j=2.0),
)


class Played:
    """Stands for what looks at a home: shows the frames of a machine that a test drives."""

    def __init__(self):
        from potluck.display.cockpit.frames import Frames

        self.machine = CockpitMachine(["nano"])
        self.frames = Frames()
        self.views = []
        self.asked = []

    def show(self, view):
        self.views.append(view)
        full = self.frames.full(self.machine.state)
        for each in self.views:  # what follows changes this frame
            each(full)
        return lambda: self.views.remove(view)

    def clicked(self, content, *, may_act):
        self.asked.append((content, may_act))
        from potluck.display.cockpit.page_messages import click_of

        self.handle(click_of(content))

    def handle(self, *events):
        for event in events:
            self.machine.handle(event, 1.0)
        frame = self.frames.change(self.machine.state)
        for view in self.views if frame else ():
            view(frame)


def at_work(machine_of, *members, steps=30):
    """The home trains: seen, planned for, with a step in its task stream."""
    computing = [
        Event(
            device=name,
            lane="compute",
            start_s=0.1 * i + 0.05 * j,
            stop_s=0.1 * i + 0.05 * j + 0.04,
            label=f"{j}F{i}",
            op="run",
            instruction=i,
        )
        for i in range(4)
        for j, name in enumerate(("a", "b"))
    ]
    sent = Event(
        device="a",
        lane="send",
        start_s=0.05,
        stop_s=0.08,
        peer="b",
        nbytes=4096,
        label="send",
        op="send",
        instruction=9,
    )
    trace = Trace(source="measured", events=(*computing, sent), step_s=(0.5,))
    run = observations.running(BOTH, steps=steps, latest=trace, latest_step=steps, predicted=trace)
    history = replace(run.history, losses=tuple(2.0 / (1 + i) for i in range(steps)))
    run = replace(run, history=history)
    observation = observations.seen(
        *(members or (observations.member("a"), observations.member("b"))), run=run
    )
    return HomeObserved(observation=observation)


@pytest.fixture
def played():
    return Played()


@pytest.fixture
def served(played):
    server = PageServer(played, may_act=True)
    yield server
    server.close()


@pytest.fixture
def opened(browser, served):
    """A function that opens the page in a context of its own; nothing may be asked of others, and
    everything can be drawn.
    """
    contexts, faults = [], []
    outside = []

    def listen(message):  # connections break where a test ends the server
        if message.type == "error" and "Failed to load resource" not in message.text:
            faults.append(message.text)

    def open_it(width=1200, height=1000, dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script("ROOT = () => document.querySelector('#cockpit').shadowRoot")
        page.on("request", lambda r: r.url.startswith(served.url) or outside.append(r.url))
        page.on("dialog", lambda dialog: outside.append(dialog.message) or dialog.dismiss())
        page.on("console", listen)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(served.url)
        page.locator(".potluck-cockpit").wait_for()
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert outside == []
    assert faults == []


def started(played):
    played.handle(at_work(played.machine))
    played.handle(Planned(order=1, plans=(BOTH, ALONE)))


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "dark"), [(1200, False), (1200, True), (400, False)], ids=["light", "dark", "narrow"]
)
def test_the_page_shows_everything_readably(opened, played, shots, width, dark):
    started(played)
    page = opened(width=width, dark=dark)
    page.get_by_text("you are here").wait_for()
    text = page.locator(".potluck-cockpit").inner_text()
    for words in (
        "net",
        "training, step 30",
        "500 ms",
        "layers 0–1 of 4",
        "10 W est.",
        "a is there",
    ):
        assert words in text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ink = page.locator(".potluck-cockpit").evaluate("e => getComputedStyle(e).color")
    assert (ink == "rgb(230, 237, 243)") == dark
    drawn = page.locator("canvas").evaluate(
        "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    )
    assert drawn > 10
    page.screenshot(
        path=str(shots / f"cockpit-{width}-{'dark' if dark else 'light'}.png"), full_page=True
    )


@pytest.mark.long
@pytest.mark.slow
def test_names_of_others_are_text(opened, played):
    members = [observations.member(name) for name in HOSTILE]
    played.handle(HomeObserved(observation=observations.seen(*members)))
    page = opened()
    cards = page.locator(".card .name")
    page.wait_for_function("n => ROOT().querySelectorAll('.card').length === n", arg=len(HOSTILE))
    texts = cards.all_inner_texts()
    assert HOSTILE[0] in texts
    assert HOSTILE[1] in texts
    assert "__proto__" in texts
    assert not any("\u202e" in name or "\x07" in name for name in texts)
    assert page.evaluate("window.hurt === undefined && ({}).status === undefined")
    assert page.locator("#cockpit img, #cockpit script").count() == 0


@pytest.mark.long
@pytest.mark.slow
def test_two_hundred_devices_and_ten_thousand_events_stay_smooth(opened, played):
    """Long tasks are counted, not timed: what takes more than 200 ms is felt."""
    members = [observations.member(f"device-{i:03}", watts=float(i)) for i in range(200)]
    played.handle(HomeObserved(observation=observations.seen(*members)))
    page = opened()
    page.wait_for_function("() => ROOT().querySelectorAll('.card').length === 200")
    log = played.machine.state.events
    for number in range(10_000):
        news = News(kind="said", words=f"event {number}")
        log.add({"at": 1.0, "kind": news.kind, "words": news.words})
        if number % 200 == 199:
            members[number % 200] = observations.member(
                f"device-{number % 200:03}", watts=number, at_s=number
            )
            played.handle(HomeObserved(observation=observations.seen(*members)))
    page.get_by_text("event 9999", exact=True).wait_for()
    assert page.locator("ol li").count() <= 100
    page.get_by_role("button", name="older").click()
    page.wait_for_function("() => ROOT().querySelectorAll('li').length === 200")
    used = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize : 0")
    assert used <= 100e6


@pytest.mark.slow
def test_the_keyboard_is_enough(opened, played):
    started(played)
    page = opened()
    other = page.locator(f"[data-plan='{name_of(ALONE)}']")
    other.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Switch to this plan").wait_for()
    other.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => ROOT().querySelector('.pre').hidden")
    assert [content["ask"] for content, _ in played.asked] == ["preview", "go"]
    page.get_by_role("img", name=re.compile("task stream")).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile("Instruction 0 of its device's program")).wait_for()
    slider = page.get_by_role("slider", name="most time of a step")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => ROOT().querySelectorAll('.pt.dim').length > 0")


@pytest.mark.long
@pytest.mark.slow
def test_whoever_cannot_see_is_told(opened, played):
    started(played)
    page = opened()
    page.get_by_text("you are here").wait_for()
    seen = page.locator(".potluck-cockpit").aria_snapshot()
    for words in (
        "plans by time and energy",
        "you are here",
        "load of air",
        "task stream",
        "events",
    ):
        assert words in seen
    unnamed = page.evaluate(
        """() => [...ROOT().querySelectorAll('button,input,select')]
        .filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"""
    )
    assert unnamed == 0


@pytest.mark.long
@pytest.mark.slow
def test_imagining_follows_the_hand(opened, played):
    started(played)
    page = opened()
    page.get_by_role("button", name="what if").click()
    page.get_by_role("button", name="what if", pressed=True).wait_for()
    page.get_by_role("button", name="take away b", pressed=False).click()
    page.get_by_role("button", name="bring back b", pressed=True).wait_for()
    page.get_by_role("slider", name="what if air carried").fill("-150")
    page.wait_for_function("() => ROOT().querySelector('.if output').textContent.includes('k')")
    page.wait_for_timeout(400)
    content, _ = played.asked[-1]
    assert content["ask"] == "imagine"
    assert content["without"] == ["b"]
    assert content["media"]["air"] == pytest.approx(1e5)


def lines_that_stick_out(page):
    """Sections whose content is wider than they are."""
    return page.evaluate(
        """() => [...ROOT().querySelectorAll('section,header,.pre,.card')]
        .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 40))"""
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 400, 320])
def test_long_and_foreign_names_stay_inside(opened, played, width):
    names = ["x" * 300, HOSTILE[0], "\U0001f600 phone", "\u05dc\u05e4\u05d8\u05d5\u05e4"]
    plan = observations.plan(*names)
    other = observations.plan(names[0], planner="y" * 200, latency_s=0.9, energy_j=2.0)
    run = replace(observations.running(plan), problem=observations.problem(*names))
    members = [observations.member(name) for name in names]
    played.handle(HomeObserved(observation=observations.seen(*members, run=run)))
    played.handle(Planned(order=1, plans=(plan, other)), Preview(name=name_of(other)))
    page = opened(width=width)
    page.get_by_role("button", name="Switch to this plan").wait_for()
    assert lines_that_stick_out(page) == []
    # a sentence stays one, whoever is its subject
    shown_name = page.locator("li span", has_text=names[3]).last
    assert shown_name.evaluate("e => getComputedStyle(e).direction") == "ltr"


@pytest.mark.long
@pytest.mark.slow
def test_a_page_loaded_again_shows_the_limits_and_the_home_that_are_imagined(opened, played):
    started(played)
    page = opened()
    page.get_by_role("slider", name="most time of a step").fill("500")
    page.get_by_role("button", name="what if").click()
    page.get_by_role("button", name="take away b").click()
    page.wait_for_timeout(400)
    for other in (page, opened()):
        if other is page:
            page.reload()
        other.get_by_role("button", name="bring back b").wait_for()
        assert other.locator(".limits output").first.inner_text() != "any"
    page.get_by_role("button", name="bring back b").click()
    page.get_by_role("slider", name="most time of a step").fill("1000")
    page.wait_for_function("() => ROOT().querySelector('.limits output').textContent === 'any'")
    other.get_by_role("button", name="take away b").wait_for()
    other.wait_for_function("() => ROOT().querySelector('.limits output').textContent === 'any'")


@pytest.mark.long
@pytest.mark.slow
def test_what_goes_wrong_is_not_hidden(opened, played):
    """A loss that is no number, plans beyond the picture, a closed home."""
    seen = at_work(played.machine).observation
    history = replace(seen.run.history, losses=(2.0, 1.0, float("nan")))
    played.handle(HomeObserved(observation=replace(seen, run=replace(seen.run, history=history))))
    slow = observations.plan("b", planner="slow", latency_s=60.0, energy_j=900.0)
    played.handle(Planned(order=1, plans=(BOTH, ALONE, slow)))
    page = opened()
    page.get_by_text("step 3: NaN").wait_for()
    page.get_by_text("1 far slower: not drawn.").wait_for()
    closed = replace(seen, is_closed=True, run=replace(seen.run, ended="the home was closed"))
    played.handle(HomeObserved(observation=closed))
    page.get_by_text("The home is closed: this is what was seen last.").wait_for()


@pytest.mark.long
@pytest.mark.slow
def test_power_is_of_those_who_are_there_and_each_colour_is_one_device(opened, played):
    for second in range(30):
        n_here = 8 if second < 10 else 7
        members = [
            observations.member(f"device-{i}", watts=10.0, at_s=float(second))
            for i in range(n_here)
        ]
        played.machine.handle(HomeObserved(observation=observations.seen(*members)), float(second))
    page = opened()
    page.get_by_text("3 others").wait_for()
    colours = page.evaluate(
        """[...ROOT().querySelectorAll('section[aria-label=power] .keys i')]
        .map(e => e.style.background)"""
    )
    assert len(colours) == len(set(colours)) == 6
    tops = page.evaluate(
        """[...ROOT().querySelectorAll('section[aria-label=power] polyline')].pop()
        .getAttribute('points').split(' ').map(p => +p.split(',')[1])"""
    )
    assert tops[-1] > tops[0]  # lower in the picture: one has gone


@pytest.mark.long
@pytest.mark.slow
def test_what_was_picked_stays_picked_while_steps_come(opened, played):
    started(played)
    page = opened()
    stream = page.get_by_role("img", name=re.compile("task stream"))
    stream.focus()
    page.keyboard.press("End")
    page.get_by_text(re.compile("Instruction 3 of its device's program")).wait_for()
    picked = "document.querySelector('#cockpit').potluck.picked.join()"
    before = page.evaluate(picked)
    played.handle(at_work(played.machine, steps=31))
    page.get_by_text("training, step 31").wait_for()
    assert page.evaluate(picked) == before
    page.keyboard.press("ArrowLeft")
    page.get_by_text(re.compile("step 30, plan by")).last.wait_for()


# --- who may have it ------------------------------------------------------------------------------


def answer_of(server, path, *, method="GET", body=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"Host": host} if host else {}
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read() if "frames" not in path else b"", answer.headers
    connection.close()
    return found


def test_without_the_token_there_is_nothing(served):
    for path in ("/", "/page.js", "/x/", f"/{served.token[:-1]}/", f"/{served.token}x/"):
        assert answer_of(served, path)[0] == 403
    status, body, headers = answer_of(served, f"/{served.token}/")
    assert (status, b"<div id" in body) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_another_name_for_this_machine_gets_nothing(served):
    assert answer_of(served, f"/{served.token}/", host=f"evil.example:{served.port}")[0] == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"x" * 70_000])
def test_what_is_no_message_is_refused(served, played, body):
    assert answer_of(served, f"/{served.token}/ask", method="POST", body=body)[0] in (400, 413)
    assert played.asked == []


def test_a_click_that_is_not_understood_is_told(served):
    body = json.dumps({"ask": "format"}).encode()
    status, answer, _ = answer_of(served, f"/{served.token}/ask", method="POST", body=body)
    assert (status, "cannot ask" in json.loads(answer)["words"]) == (200, True)


def test_a_page_to_look_at_says_so_to_what_acts(played):
    server = PageServer(played)
    body = json.dumps({"ask": "hello"}).encode()
    answer_of(server, f"/{server.token}/ask", method="POST", body=body)
    server.close()
    assert played.asked == [({"ask": "hello"}, False)]


def test_a_page_for_other_devices_is_only_to_look_at_and_for_one_network(played):
    server = PageServer(played, may_act=True, host="127.0.0.2")
    body = json.dumps({"ask": "hello"}).encode()
    connection = http.client.HTTPConnection("127.0.0.2", server.port, timeout=30)
    connection.request("POST", f"/{server.token}/ask", body=body)
    assert connection.getresponse().status == 200
    connection.close()
    assert played.asked == [({"ask": "hello"}, False)]
    assert server.url.startswith("http://127.0.0.2:")
    connection = http.client.HTTPConnection("127.0.0.2", server.port, timeout=30)
    connection.request("GET", f"/{server.token}/", headers={"Host": f"localhost:{server.port}"})
    assert connection.getresponse().status == 403
    connection.close()
    server.close()
    for host in ("0.0.0.0", "203.0.113.1"):
        with pytest.raises(UserError):
            PageServer(played, host=host)
