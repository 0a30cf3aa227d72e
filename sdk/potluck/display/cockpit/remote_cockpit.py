"""The cockpit of a home that another process has open, in a notebook: its frames pass through, and
clicks that change anything are refused.
"""

import threading
import uuid
from contextlib import closing, suppress
from typing import Any

import anywidget
import traitlets

from potluck.display import markup
from potluck.display.cockpit.terminal import frames
from potluck.display.cockpit.widget import PAGE
from potluck.errors import HomeError


class RemoteCockpit(anywidget.AnyWidget):
    """A home of another process, live; made by `Home.look()`.

    Parameters
    ----------
    url
        Of its page.
    process
        Which has it.
    """

    _esm = PAGE
    name = traitlets.Unicode().tag(sync=True)
    readonly = traitlets.Unicode().tag(sync=True)

    def __init__(self, url: str, process: int) -> None:
        reason = (
            f"To look at only: process {process} has this home. Home.take_over() asks it for it."
        )
        super().__init__(name=f"potluck-{uuid.uuid4().hex[:8]}", readonly=reason)
        self._reason = reason
        self._ended = threading.Event()
        self.on_msg(self._heard)
        threading.Thread(
            target=self._pass_on, args=(url,), name="potluck looking", daemon=True
        ).start()

    def _pass_on(self, url: str) -> None:
        with suppress(HomeError), closing(frames(url)) as coming:
            for frame in coming:
                if self._ended.is_set():
                    return
                self.send({"frame": True}, [frame])
        with suppress(Exception):  # the notebook is gone
            self.send({"heard": 0, "words": "the process that had this home answers no more"})

    def _heard(self, _widget: Any, content: Any, _buffers: Any) -> None:
        number = content.get("number") if isinstance(content, dict) else None
        is_there = isinstance(content, dict) and content.get("ask") == "hello"
        self.send({"heard": number, "words": "" if is_there else self._reason})

    def close(self) -> None:
        """End it: views keep what they showed last."""
        self._ended.set()
        super().close()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        live = super()._repr_mimebundle_()
        if live is not None:
            display(live[0], raw=True)  # type: ignore[no-untyped-call]
        words = {"text/plain": self._reason, "text/html": markup.words(self._reason)}
        display(words, raw=True)  # type: ignore[no-untyped-call]
