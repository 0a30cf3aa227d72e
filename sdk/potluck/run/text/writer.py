"""Writes texts with a deployed language model, as many at once as it has rows; one thread asks for
all of them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from operator import index
from typing import TYPE_CHECKING, Any

from potluck.errors import PotluckError, RequestFailed, UserError
from potluck.graph.language_model import LanguageModel
from potluck.run.in_flight import CachesGone
from potluck.run.requests import answer_once, empty_caches
from potluck.run.text.sampling import Sampling, choose, is_ranked
from potluck.run.text.text_slots import GeneratedText, TextSlots, TokenRequest

if TYPE_CHECKING:
    import torch

    from potluck.run.compiled_plan import CompiledPlan
    from potluck.run.engine import RunEngine

Turn = Callable[[Sequence[str]], AbstractContextManager[None]]  # of these devices
LOG = logging.getLogger(__name__)


class Generation:
    """A text that is being written. Iterating gives its new tokens as they come.

    Parameters
    ----------
    text
        The text.
    sampling
        How its tokens are chosen.
    tokenizer
        Of the model, where it has one.
    """

    def __init__(self, text: GeneratedText, sampling: Sampling, tokenizer: Any) -> None:
        import torch

        self._text, self._tokenizer = text, tokenizer
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)
        self._changed = threading.Condition()
        self._error: PotluckError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._asked_s = time.monotonic()
        self._token_s: list[float] = []

    @property
    def tokens(self) -> list[int]:
        """The new tokens so far."""
        return self._text.tokens[self._text.n_prompt :]

    @property
    def reason(self) -> str:
        """Why it is over: "stop" (a token that ends texts), "length", "cancelled" or "failed";
        empty while it is written.
        """
        return self._text.reason

    @property
    def text(self) -> str:
        """What is written so far, by the model's tokenizer.

        Raises
        ------
        UserError
            The model has none.
        """
        if self._tokenizer is None:
            raise UserError(
                "the model has no tokenizer, so that texts are tokens.",
                next_step="Give one: LanguageModel.from_transformers(lm, tokenizer=...).",
            )
        shown = [token for token in self.tokens if token not in self._text.stops]
        return str(self._tokenizer.decode(shown))

    @property
    def is_over(self) -> bool:
        """Whether nothing more is written of it."""
        return bool(self._text.reason) or self._error is not None

    @property
    def n_prompt(self) -> int:
        """Tokens of its prompt."""
        return self._text.n_prompt

    @property
    def token_s(self) -> tuple[float, ...]:
        """Seconds that each new token took: the first since it was asked for, the others since the
        one before.
        """
        return tuple(self._token_s)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever it has changed, from any thread; once at once.

        Parameters
        ----------
        listener
            Called; must not wait.
        """
        with self._changed:
            self._listeners.append(listener)
        listener()

    def _tell(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            with suppress(Exception):  # who looks on must not end the text
                listener()

    def check(self) -> None:
        """Raise what ended it before its end.

        Raises
        ------
        PotluckError
            It could not be written to its end.
        """
        if self._error is not None:
            raise self._error

    def wait(self) -> "Generation":
        """Itself, once it is whole.

        Raises
        ------
        PotluckError
            It could not be written to its end.
        """
        for _ in self:
            pass
        return self

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else self.reason or "being written"
        shown = self.tokens if self._tokenizer is None else self.text
        return f"<Generation of {len(self.tokens)} tokens, {state}: {shown!r}>"

    def cancel(self) -> None:
        """Write no more of it."""
        with self._changed:
            self._text.reason = self._text.reason or "cancelled"
            self._tell()

    def __iter__(self) -> Iterator[int]:
        """Its new tokens, from the first on.

        Raises
        ------
        PotluckError
            It could not be written to its end.
        """
        n_given = 0
        while True:
            with self._changed:
                while len(self.tokens) == n_given and not self.is_over:
                    self._changed.wait()
                new, is_over = self.tokens[n_given:], self.is_over
            yield from new
            n_given += len(new)
            if is_over:
                self.check()
                return

    def write(self, logits: "torch.Tensor", numbers: "torch.Tensor") -> None:
        """The next token.

        Parameters
        ----------
        logits, numbers
            Of the likeliest, [candidates].
        """
        with self._changed:
            if not self.is_over:
                now_s = time.monotonic()
                self._token_s.append(now_s - self._asked_s)
                self._asked_s = now_s
                self._text.write(choose(logits, numbers, self._sampling, self._generator))
                self._tell()

    def fail(self, error: PotluckError) -> None:
        """It cannot be written."""
        with self._changed:
            self._error = self._error or error
            self._text.reason = self._text.reason or "failed"
            self._tell()


class Writer:
    """The texts of one run.

    Parameters
    ----------
    engine
        Of a run with a language model.

    Attributes
    ----------
    turn
        Entered around each request, with the devices that compute it.

    Raises
    ------
    UserError
        It has another one.
    """

    def __init__(self, engine: "RunEngine") -> None:
        if not isinstance(engine.model, LanguageModel):
            raise UserError(
                f"{engine.model!r} writes no texts.", next_step="Deploy a potluck.LanguageModel."
            )
        self._engine = engine
        self._model = engine.model
        self._slots = TextSlots(self._model.request_rows, self._model.max_length)
        self._generations: dict[int, Generation] = {}
        self._new: deque[tuple[GeneratedText, Generation]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # answered what came before, and has the keys and values of it
        self._compiled_plan: CompiledPlan | None = None
        self.turn: Turn = lambda devices: nullcontext()
        self._n_lost = 0  # requests, since the last answer

    def begin(
        self, prompt: "str | Sequence[int]", max_new_tokens: int, sampling: Sampling
    ) -> Generation:
        """A text that begins with this prompt.

        Parameters
        ----------
        prompt
            Its tokens, or with a tokenizer its words.
        max_new_tokens
            It ends after so many.
        sampling
            How tokens are chosen.

        Raises
        ------
        UserError
            The prompt is empty, too long, or no prompt of this model.
        """
        model = self._model
        tokens = prompt_tokens(model, prompt)
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise UserError(
                f"max_new_tokens is a whole number from 1 on; got {max_new_tokens!r}.",
                argument="max_new_tokens",
            )
        if len(tokens) >= model.max_length:
            raise UserError(
                f"the prompt has {len(tokens)} tokens; with at least one new one a text has "
                f"{model.max_length} at most.",
                next_step="Cut it, or make the model with a larger max_length.",
            )
        most = min(model.max_length, len(tokens) + max_new_tokens)
        text = GeneratedText(tokens, most, frozenset(model.stops))
        generation = Generation(text, sampling, model.tokenizer)
        with self._lock:
            self._new.append((text, generation))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="potluck-text", daemon=True)
                self._thread.start()
        return generation

    def _work(self) -> None:
        """Ask until every text is whole."""
        while True:
            with self._lock:
                for text, generation in self._new:
                    self._slots.add(text)
                    self._generations[id(text)] = generation
                self._new.clear()
                alive = {id(text) for text in self._slots.texts}
                self._generations = {k: g for k, g in self._generations.items() if k in alive}
                request = self._slots.next()
                if request is None:
                    self._generations.clear()
                    self._thread = None
                    return
            try:
                self._ask(request)
                self._n_lost = 0
            except CachesGone:
                self._compiled_plan, self._n_lost = None, self._n_lost + 1
            except PotluckError as error:
                self._end_all(error)
            except Exception as error:  # nobody else would end the texts that wait
                LOG.exception("texts could not be written")
                self._end_all(RequestFailed(f"{type(error).__name__}: {error}"[:300]))

    def _end_all(self, error: PotluckError) -> None:
        self._compiled_plan = None
        for text in self._slots.texts:
            self._generations[id(text)].fail(error)

    def _ask(self, request: TokenRequest) -> None:
        import torch

        if self._compiled_plan is None:
            self._slots.forget()
            self._engine.check()
            self._compiled_plan = self._engine.compiled_plan
            return  # what to ask is another thing now
        given = [torch.tensor(rows) for rows in (request.ids, request.start, request.count)]
        with self.turn(self._compiled_plan.plan.devices):
            outputs = answer_once(self._engine, given, self._compiled_plan, self._n_lost)
        logits, numbers = outputs.values()
        self._slots.answered(request)
        for row, text in request.writes:
            generation = self._generations[id(text)]
            least, most = (int(number) for number in numbers[row].aminmax())
            if not is_ranked(logits[row]):
                generation.fail(_no_number(text))
                empty_caches(self._engine)  # a masked entry that is no number would still count
            elif not 0 <= least <= most < self._model.vocabulary:
                devices = ", ".join(self._compiled_plan.plan.stages[-1].devices)
                generation.fail(_no_token(text, devices))
            else:
                generation.write(logits[row], numbers[row])


def _no_number(text: GeneratedText) -> RequestFailed:
    return RequestFailed(
        f"the model computed no number for the token behind {len(text.tokens)} others.",
        next_step="Its weights, or its data type, do not hold this text.",
    )


def _no_token(text: GeneratedText, devices: str) -> RequestFailed:
    return RequestFailed(
        f"what {devices} told for the token behind {len(text.tokens)} others is no token of this "
        "model.",
        next_step="Ask again without that device, if it goes on so.",
    )


def prompt_tokens(model: LanguageModel, prompt: "str | Sequence[int]") -> list[int]:
    """The tokens of a prompt.

    Parameters
    ----------
    model
        Whose they are.
    prompt
        Its tokens, or with a tokenizer its words.

    Raises
    ------
    UserError
        It is empty, or no prompt of this model.
    """
    if isinstance(prompt, str) and model.tokenizer is None:
        raise UserError(
            "a prompt of words needs the model's tokenizer.",
            next_step="Give tokens, or LanguageModel.from_transformers(lm, tokenizer=...).",
        )
    try:
        given = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        tokens = [index(token) for token in given]
    except Exception as error:  # a tokenizer is code of others
        raise UserError(
            f"the prompt is no text of this model: {type(error).__name__}: {error}"[:300],
            next_step="Give words, or the tokens of one text as whole numbers.",
            argument="prompt",
        ) from error
    if not tokens:
        raise UserError("the prompt has no token.")
    wrong = [token for token in tokens if not 0 <= token < model.vocabulary]
    if wrong:
        raise UserError(
            f"{wrong[0]} is no token of this model; they are 0 to {model.vocabulary - 1}."
        )
    return tokens
