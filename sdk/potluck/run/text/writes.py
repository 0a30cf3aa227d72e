"""What a run with a language model can do."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from potluck.run.text.sampling import Sampling
from potluck.run.text.writer import Generation, Turn, Writer

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine


class Writes:
    """A run that writes texts, where its model does."""

    _engine: "RunEngine"

    def generate(
        self,
        prompt: "str | Sequence[int]",
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> "Generation":
        """A text that begins with a prompt, written by a language model.

        As many texts are written at once as the model has rows; more wait. Devices may come and go
        and plans change meanwhile: the text is read again where it goes on.

        Parameters
        ----------
        prompt
            Tokens, or words where the model has a tokenizer.
        max_new_tokens
            It ends after so many, with a token that ends texts, or at the model's `max_length`.
        temperature
            Of the choice of the next token; 0: always the likeliest.
        top_k
            Choose among so many of the likeliest; default: among the model's candidates.
        top_p
            Choose among the fewest whose probabilities add up to this.
        seed
            Of the choice.

        Returns
        -------
        Generation
            Iterate it for the tokens as they come; `wait()`, `tokens` and `text`.

        Raises
        ------
        UserError
            The run has no language model, or a number or the prompt is not what it should be.
        """
        self._engine.check()
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return self._writer.begin(prompt, max_new_tokens, sampling)

    def write_in_turns(self, turn: Turn) -> None:
        """Have each request for tokens wait until its turn has come.

        Parameters
        ----------
        turn
            Called with the devices that are to compute; what it gives is entered before, and left
            after.
        """
        self._writer.turn = turn

    @cached_property
    def _writer(self) -> "Writer":
        return Writer(self._engine)
