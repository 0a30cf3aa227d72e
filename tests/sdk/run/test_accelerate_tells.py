"""What an accelerated model keeps, asks and tells: its table, the bandwidth, its stats and explanation."""

import pytest
from tests.sdk.graph.families import family
from tests.sdk.run.accelerating import SOON_S, case, fast_of, wait_until

from potluck.run.sharing import fast as fast_module
from potluck.run.sharing.store import SplitStore
from potluck.run.sharing.table import SplitCase

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")


def test_zero_bandwidth_is_answered_alone_and_says_so(home):
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        fast.bytes_per_s = 0.0
        fast(x)
        assert fast.stats.entries == {"alone": 1}
        assert "sharing does not pay: local-1 answers alone" in repr(fast.explain(0.0))


def test_a_table_is_found_again_for_the_same_model_and_times_alone_and_made_anew_where_it_is_corrupt(
    home, tmp_path, monkeypatch
):
    searched = []
    search = SplitCase.search
    monkeypatch.setattr(SplitCase, "search", lambda self: searched.append(self) or search(self))
    store, (net, x), (other, y) = SplitStore(tmp_path), family("vgg"), family("mobilenet")
    first = case(home, net, x)
    made = store.table(first)
    again = store.table(case(home, net, x))
    assert [(e.bytes_per_s, e.split) for e in again.entries] == [(e.bytes_per_s, e.split) for e in made.entries]
    assert [p.name for p in again.programs] == [p.name for p in made.programs]
    assert len(searched) == 1
    store.table(case(home, net, x, fast_s=1e-4))
    store.table(case(home, other, y))
    assert len(searched) == 3
    whole = store.path(first).read_bytes()
    for spoilt in (
        b"",
        b"[]",
        b'{"entries": []}',
        b'{"entries": 3}',
        whole[:-9],
        whole.replace(b'"tiles": ', b'"tiles": -'),
    ):
        store.path(first).write_bytes(spoilt)
        assert store.table(first).entries[-1].split == made.entries[-1].split
        assert store.path(first).read_bytes() == whole
    assert len(searched) == 9


def test_stats_and_explanation_show_themselves(home, tmp_path, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", SOON_S)
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        for fast.bytes_per_s in (0.0, 3e6):
            fast(x)
        stats, account = fast.stats, fast.explain(3e6)
    assert (stats.requests, stats.fallbacks, len(stats.entries)) == (2, 0, 2)
    assert stats.prediction_error_frac > 0
    assert stats._repr_html_().count("<svg") == 1
    assert "2 requests" in repr(stats)
    shares = account.rows["local-1"], account.rows["local-2"]
    assert all(rows for rows in shares)
    assert account._repr_html_().count("<svg") == 1
    assert "local-1 alone" in repr(account)
    assert "conv2d" in repr(account)
    assert "aten." not in repr(account)
    assert account.save(tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    assert "<table" in account.save(tmp_path / "rows.html").read_text()


def test_the_bandwidth_is_asked_for_while_the_device_answers_alone_so_that_help_comes_back(home, monkeypatch):
    monkeypatch.undo()  # here somebody asks
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        fast._heard(10**7, 1e3)  # next to nothing
        assert fast.table.at(fast.bytes_per_s).program is None
        wait_until(lambda: fast.table.at(fast.bytes_per_s).program)
