"""Which tokens go into which request: every token of every text once and in order, in a slot of its
own, whoever comes, goes or is forgotten meanwhile.
"""

from hypothesis import given
from hypothesis import strategies as st

from potluck.run.text.text_slots import MAX_NEW_TOKENS, GeneratedText, TextSlots

LENGTH, SIZES = 100, (1, 2, 3)
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 70), st.integers(1, 9)),
        st.tuples(st.just("ask"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


def ask(slots, held):
    """One request, answered by devices that hold `held` in their slots; False where there is
    none.
    """
    request = slots.next()
    if request is None:
        return False
    assert len(request.ids) in SIZES
    widths = {len(row) for row in request.ids}
    assert len(widths) == 1
    assert max(widths) <= MAX_NEW_TOKENS
    texts = dict(request.texts)
    assert len(set(map(id, texts.values()))) == len(texts)
    for row, (ids, start, count) in enumerate(
        zip(request.ids, request.start, request.count, strict=True)
    ):
        if row not in texts:
            assert start == LENGTH  # behind every text
            continue
        assert 1 <= count <= len(ids)
        held[row] = [*held.get(row, [])[:start], *ids[:count]]
        assert held[row] == texts[row].tokens[: start + count]
    slots.answered(request)
    for row, text in request.writes:
        assert held[row] == text.tokens  # the answer is behind all of them
        text.write(1000 + len(text.tokens))
    return True


@given(events)
def test_devices_hold_of_each_text_what_it_is(happening):
    slots, held = TextSlots(SIZES, LENGTH), {}
    texts = []
    for what, n, more in happening:
        if what == "add":
            first = 10_000 * len(texts)
            text = GeneratedText([first + i for i in range(n)], n + more, frozenset())
            texts.append(text)
            slots.add(text)
        elif what == "ask":
            ask(slots, held)
        elif what == "cancel" and n < len(texts):
            texts[n].reason = texts[n].reason or "cancelled"
        elif what == "forget":
            held.clear()
            slots.forget()
    n_asked = 0
    while ask(slots, held):
        n_asked += 1
        assert n_asked < 1000
    assert all(text.reason for text in texts)
    for text in texts:
        if text.reason == "length":
            n_new = len(text.tokens) - text.n_prompt
            assert text.tokens[text.n_prompt :] == [1000 + text.n_prompt + i for i in range(n_new)]
