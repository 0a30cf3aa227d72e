"""One Chromium for all tests of a file; where none is, they are left out and say so.

No longer: while playwright is there, nothing else can run an event loop in this thread.
"""

import os
from pathlib import Path

import pytest
from tests.sdk.display.cockpit.browser import FLAGS, Jupyter, chromium

NO_CHROMIUM = "no Chromium is installed: apt-get install chromium"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not chromium():
        pytest.skip(NO_CHROMIUM)
    with sync_api.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory, browser):
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    served = Jupyter(tmp_path_factory.mktemp("jupyter"))
    yield served
    served.close()


@pytest.fixture
def shots(tmp_path):
    """Where screenshots go: $POTLUCK_SHOTS, else what pytest keeps of this test."""
    folder = Path(os.environ.get("POTLUCK_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
