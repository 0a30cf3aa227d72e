"""What an accelerated model keeps, asks and tells: its table, the bandwidth, its stats and
explanation.
"""

import json
from concurrent.futures import CancelledError
from contextlib import ExitStack

import psutil
import pytest
from tests.sdk.graph.families import family
from tests.sdk.offload.accelerating import case, check, fast_of, wait_until
from tests.timeouts import TIMEOUT_S

from potluck.handle import Task
from potluck.offload import accelerated as fast_module
from potluck.offload.accelerated import AcceleratedModel
from potluck.offload.background_search import BackgroundSearch
from potluck.offload.cache import LOCK, SplitCache, alone
from potluck.offload.plan.documents import found_document
from potluck.offload.plan.search_spec import SearchSpec
from potluck.offload.table_search import TableSearch
from potluck.run.device_group import DeviceGroup
from potluck.testing.internals import link_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nobody_asks")


def test_zero_bandwidth_is_answered_alone_and_says_so(home):
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        fast.bytes_per_s = 0.0
        fast(x)
        assert fast.stats.entries == {"alone": 1}
        assert "sharing does not pay: local-1 answers alone" in repr(fast.explain(0.0))


@pytest.mark.long
def test_splits_are_found_again_for_the_same_model_and_anew_where_the_file_is_corrupt(
    home, tmp_path, monkeypatch
):
    searched = []
    search = SearchSpec.search
    monkeypatch.setattr(
        SearchSpec,
        "search",
        lambda self, *a, **more: searched.append(self) or search(self, *a, **more),
    )
    (net, x), (other, y) = family("vgg"), family("mobilenet")

    def found(known, directory=tmp_path):
        return SplitCache(directory, known.model.signature).found(known.sharing, known.spec)

    first = case(home, net, x)
    made, path = (
        found(first),
        SplitCache(tmp_path, first.model.signature).path(first.sharing, first.spec),
    )
    assert found(case(home, net, x)) == made
    assert len(searched) == 1
    found(case(home, net, x, fast_s=1e-4))
    found(case(home, other, y))
    assert len(searched) == 3
    intact = path.read_bytes()
    for spoilt in (
        b"",
        b"[]",
        b'{"entries": []}',
        b'{"entries": 3}',
        intact[:-9],
        intact.replace(b'"tiles": ', b'"tiles": -'),
    ):
        path.write_bytes(spoilt)
        assert found(first) == made
        assert path.read_bytes() == intact
    assert len(searched) == 9
    assert found(first, path / "no folder") == made


@pytest.mark.long
def test_the_first_requests_have_some_splits_until_a_process_has_found_all(home, tmp_path):
    net, x = family("vgg")
    known = case(home, net, x, first=(0.0,), n_searches=8)
    store = SplitCache(tmp_path, known.model.signature)
    with torch.no_grad():
        expected = net(x)
    others = ExitStack()
    others.enter_context(alone(tmp_path))  # a search waits for those of others
    with (
        others,
        AcceleratedModel(link_of(home), home.devices, known, tuple, None, Task(), store) as fast,
    ):
        first = fast.table
        assert "8 bandwidths so far" in repr(fast)
        assert "8 bandwidths so far" in repr(fast.stats)
        assert "8 bandwidths so far" in repr(fast.explain())
        check(fast(x), expected)
        others.close()
        wait_until(lambda: fast.is_planned)
        wait_until(lambda: fast.table is not first)
        assert "so far" not in repr(fast.stats) + repr(fast.explain())
        check(fast(x), expected)
        assert fast.failure is None
        assert (
            tuple((entry.bytes_per_s, entry.split) for entry in fast.table.entries)
            == known.search()
        )
    tables = TableSearch(SplitCache(tmp_path, known.model.signature))
    assert [e.split for e in tables.first(known, 1e8).entries] == [
        e.split for e in fast.table.entries
    ]
    assert tables.searched is None


def test_planning_stops_where_it_is_cancelled_before_anything_is_loaded(home, monkeypatch):
    net, x = family("vgg")
    task = Task()
    task.cancel()
    monkeypatch.setattr(DeviceGroup, "prepare", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(CancelledError):
        AcceleratedModel(link_of(home), home.devices, case(home, net, x), tuple, None, task)


@pytest.mark.long
def test_a_search_that_is_ended_in_the_middle_leaves_nothing_and_a_second_waits_for_the_first(
    home, tmp_path
):
    net, x = family("vgg")
    known = case(home, net, x)
    path = SplitCache(tmp_path, known.model.signature).path(known.sharing, known.spec)
    with alone(tmp_path):
        before = set(psutil.Process().children())
        search = BackgroundSearch(known.sharing, known.spec, path)
        assert set(psutil.Process().children()) > before
        path.write_text(json.dumps(found_document(known.search())))  # what it waits for
    wait_until(lambda: search.over)
    assert (search.done, search.found) == (0, known.search())
    search.close()
    path.unlink()
    with alone(tmp_path):  # so that it is in the middle
        search = BackgroundSearch(known.sharing, known.spec, path)
        search.close()
        search.close()
    assert (search.over, search.found) == (True, None)
    assert [file.name for file in tmp_path.iterdir()] == [LOCK]


@pytest.mark.long
def test_stats_and_explanation_show_themselves(home, tmp_path, monkeypatch):
    monkeypatch.setattr(fast_module, "LATE_S", TIMEOUT_S)
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


def test_the_bandwidth_is_asked_for_while_the_device_answers_alone_so_that_help_comes_back(
    home, monkeypatch
):
    monkeypatch.undo()  # here somebody asks
    net, x = family("vgg")
    with fast_of(home, net, x) as fast:
        with monkeypatch.context() as patch:
            patch.setattr(fast_module, "transfers", lambda *_: [(10**7, 1e3)])  # next to nothing
            fast(x)
        assert fast.table.at(fast.bytes_per_s).program is None
        wait_until(lambda: fast.table.at(fast.bytes_per_s).program)
