"""A real JupyterLab and a real Chromium for tests: a notebook opened, its cells run, its cockpit
looked at and clicked. Everything is on loopback; requests elsewhere are noted.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

TOKEN = "t0k"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY_S = 90
# a click waits for what it needs, on a machine that is at work
TIMEOUT_MS = 40_000


def chromium():
    """Where it is; empty where it is not."""
    return next(filter(None, map(shutil.which, CHROMIUM)), "")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Jupyter:
    """JupyterLab over a folder, with this very interpreter as its kernel."""

    def __init__(self, folder):
        self.folder, self.port = Path(folder), free_port()
        settings = self.folder / "settings"
        _set(settings, "apputils-extension/notification", fetchNews="false", checkForUpdates=False)
        # all cells stay in the document, also those that nobody sees
        _set(settings, "notebook-extension/tracker", windowingMode="none")
        kernels = self.folder / "share" / "jupyter" / "kernels" / "python3"
        kernels.mkdir(parents=True)
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": launch, "display_name": "Python 3 (ipykernel)", "language": "python"}
        (kernels / "kernel.json").write_text(json.dumps(spec))
        (self.folder / "notebooks").mkdir()
        environment = {
            **os.environ,
            "JUPYTER_PATH": str(self.folder / "share" / "jupyter"),
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.folder / "workspaces"),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += ["--ip=127.0.0.1", f"--port={self.port}", f"--ServerApp.token={TOKEN}"]
        command += [f"--ServerApp.root_dir={self.folder / 'notebooks'}"]
        command += ["--ServerApp.port_retries=0"]
        self.log = (self.folder / "jupyter.log").open("w")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        self._wait()

    def _wait(self):
        ends_s = time.monotonic() + READY_S
        while time.monotonic() < ends_s:
            with suppress(OSError):
                url = f"http://127.0.0.1:{self.port}/api/status?token={TOKEN}"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            assert self.process.poll() is None, (self.folder / "jupyter.log").read_text()[-2000:]
            time.sleep(0.2)
        raise AssertionError("JupyterLab did not begin")

    def write(self, name, *cells):
        """A notebook of these cells; those that begin with # are text."""
        import nbformat

        made = nbformat.v4.new_notebook()
        made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
        path = self.folder / "notebooks" / name
        nbformat.write(made, path)
        return path

    def url(self, name):
        return f"http://127.0.0.1:{self.port}/lab/tree/{name}?token={TOKEN}&reset"

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def _set(folder, plugin, **values):
    path = folder / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


class Tab:
    """A page of a notebook."""

    def __init__(self, context, jupyter, name):
        self.page, self.path = context.new_page(), jupyter.folder / "notebooks" / name
        self.page.set_default_timeout(TIMEOUT_MS)
        self.outside, self.errors = [], []
        own = re.compile(rf"(https?|ws)://(127\.0\.0\.1|localhost):{jupyter.port}/|data:|blob:")
        self.page.on("request", lambda r: own.match(r.url) or self.outside.append(r.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(jupyter.url(name))
        self.wait_idle()

    def wait_idle(self):
        self.page.get_by_text(re.compile(r"Python 3 \(ipykernel\) \| Idle")).first.wait_for()

    def menu(self, menu, entry):
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=entry).first.click()

    def run_all(self):
        self.menu("Run", re.compile("^Run All Cells$"))

    def add_cell(self, source):
        """One more at the end, run at once."""
        cells = self.page.locator(".jp-Notebook-cell")
        n_cells = cells.count()
        self.page.locator(".jp-Notebook-footer").first.click()
        cells.nth(n_cells).locator(".cm-content").click()
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Shift+Enter")

    def save(self):
        """The notebook's file, as it is now."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        ends_s = time.monotonic() + READY_S
        while time.monotonic() < ends_s:
            self.page.wait_for_timeout(100)
            # it is written anew: empty first
            if self.path.stat().st_mtime_ns != before and is_whole(self.path):
                break
        return self.path

    def wait_text(self, words, where=".potluck-cockpit"):
        found = re.compile(words) if isinstance(words, str) else words
        self.page.locator(where, has_text=found).first.wait_for()

    def wait_output(self, words, seconds=TIMEOUT_MS / 1e3):
        found = self.page.locator(".jp-OutputArea-output", has_text=re.compile(words)).first
        found.wait_for(timeout=seconds * 1e3)

    def shot(self, path, width=1280, height=1000):
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.screenshot(path=str(path))


def is_whole(path):
    """Whether a notebook was written to its end."""
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True
