"""The cockpit in a notebook: one anywidget, whose page is `page.js`, and a picture that lasts.

Frames go to all views of the widget at once. A click is handled at once where JupyterLab has a
thread of the kernel's for widgets (4.4 and newer); elsewhere when no cell runs, and until then the
page says that it is queued.
"""

import uuid
from contextlib import suppress
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from potluck.display import markup
from potluck.display.cockpit.observer import CockpitObserver
from potluck.display.cockpit.static_picture import still
from potluck.errors import PotluckError
from potluck.sanitized_text import harmless

PAGE = files("potluck.display.cockpit").joinpath("page.js").read_text(encoding="utf-8")


class Cockpit(anywidget.AnyWidget):
    """A home, its run and the choices, live; made by `home.cockpit()`, `run.cockpit()`,
    and `profile.cockpit()`."""

    _esm = PAGE
    name = traitlets.Unicode().tag(sync=True)

    def __init__(self, watching: CockpitObserver) -> None:
        super().__init__(name=f"potluck-{uuid.uuid4().hex[:8]}")
        self.watching = watching
        self._place: Any = None  # of the picture that lasts
        if self.comm is not None:
            # ipykernel 7.4 hands what a page asks to the subshell of whatever ran last, even when
            # that is gone with its tab; without this it goes to the page's own, as before 7.4
            self.comm._reply_subshell_for = None
        self.on_msg(self._on_message)
        watching.show(lambda frame: self.send({"frame": True}, [frame]))
        watching.keep_still(self._draw)

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        number = content.get("number") if isinstance(content, dict) else None
        try:
            self.watching.clicked(content)
            words = ""
        except PotluckError as error:
            words = harmless(str(error))
        self.send({"heard": number, "words": words})

    def close(self) -> None:
        """End it: views keep what they showed last."""
        self.watching.close()
        super().close()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        live = super()._repr_mimebundle_()
        if live is not None:
            display(live[0], raw=True)  # type: ignore[no-untyped-call]
        self._place = display(self._bundle(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def _draw(self) -> None:
        if self._place is not None:
            with suppress(Exception):  # the notebook is gone
                self._place.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """The picture for whoever reads the notebook later; the live page hides it."""
        scene = still(self.watching.machine)
        shown = markup.fragment("cockpit", scene.title, scene.svg())
        live = f'<div data-potluck-still="{self.name}">{shown}</div>'
        return {"text/plain": scene.title, "text/html": live, "image/svg+xml": scene.standalone()}
