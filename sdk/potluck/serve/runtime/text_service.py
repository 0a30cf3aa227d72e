"""A service that writes texts: a language model on the plan that writes a token soonest, with a
queue that has an end.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.errors import NotServed
from potluck.run.text.writer import Generation, prompt_tokens
from potluck.serve.stats import TextStats

if TYPE_CHECKING:
    from potluck.planning.plans import Plans
    from potluck.records import Plan
    from potluck.run.run import Run


def best_to_write(plans: "Plans") -> "Plan":
    """The best plan whose stages have one device each: as few texts are written by it as there are.
    Devices that share rows have theirs of as many as the model has.

    Parameters
    ----------
    plans
        Of a language model.
    """
    alone = (each for each in plans if all(len(stage.devices) == 1 for stage in each.stages))
    return next(alone, plans.best)


class TextService:
    """Texts of one language model, for many who ask.

    Parameters
    ----------
    name
        Of the service.
    run
        Of the model.
    model
        What writes.
    max_queue
        So many texts may wait beside those that are written; more are refused at once.
    """

    def __init__(self, name: str, run: "Run", model: Any, max_queue: int) -> None:
        self.name, self.run = name, run
        self.model = model
        self._max_queue = max_queue
        self._open: list[Generation] = []
        self._over = TextStats()
        self._lock = threading.Lock()

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that write."""
        return self.run.plan.devices

    @property
    def stats(self) -> TextStats:
        """What it has done so far."""
        with self._lock:
            self._settle()
            under_way = [generation.token_s for generation in self._open]
            return replace(
                self._over,
                n_under_way=len(under_way),
                n_tokens=self._over.n_tokens + sum(map(len, under_way)),
                total_s=self._over.total_s + sum(map(sum, under_way)),
            )

    def generate(self, prompt: "str | Sequence[int]", **how: Any) -> Generation:
        """A text that begins with a prompt.

        Parameters
        ----------
        prompt
            Tokens, or words where the model has a tokenizer.
        **how
            As for `Run.generate`.

        Raises
        ------
        NotServed
            Too many wait already.
        UserError
            The prompt, or a number, is not what it should be.
        """
        tokens = prompt_tokens(self.model, prompt)  # a long one takes seconds, and others ask
        with self._lock:
            self._settle()
            if len(self._open) >= self.model.rows + self._max_queue:
                n_asked, n_refused = self._over.n_asked + 1, self._over.n_refused + 1
                self._over = replace(self._over, n_asked=n_asked, n_refused=n_refused)
                raise NotServed(
                    f"{self.name} has {len(self._open)} texts to write, as many as may wait.",
                    reason="queue-full",
                )
            generation = self.run.generate(tokens, **how)  # what cannot be asked is not counted
            self._over = replace(self._over, n_asked=self._over.n_asked + 1)
            self._open.append(generation)
            return generation

    def stop(self) -> None:
        """Write no more; texts that are not whole end here."""
        self.run.close()

    def __repr__(self) -> str:
        state = f"on {', '.join(self.devices)}" if self.run.is_open else "closed"
        return f"<TextService {self.name} {state}: {self.stats}>"

    def _settle(self) -> None:
        """Count what is over."""
        ended = [generation for generation in self._open if generation.is_over]
        seconds = [generation.token_s for generation in ended]
        self._over = replace(
            self._over,
            n_failed=self._over.n_failed + sum(each.reason == "failed" for each in ended),
            n_tokens=self._over.n_tokens + sum(map(len, seconds)),
            total_s=self._over.total_s + sum(map(sum, seconds)),
        )
        self._open = [generation for generation in self._open if generation not in ended]
