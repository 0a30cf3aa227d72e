"""A language model divided by tensor: each device keeps the keys and values of its own heads."""

from collections.abc import Sequence

from potluck.graph.language_model import LanguageModel
from potluck.graph.tensor.allotment import TOLERANCE_FRAC
from potluck.graph.tensor.model import DividedModel


class DividedLanguageModel(DividedModel, LanguageModel):
    """A language model whose heads, columns and words are divided among `shares`; it writes as the
    whole one does. Made by `LanguageModel.divided`.

    Parameters
    ----------
    whole
        The model that is divided.
    shares
        The proportion, one number for each lane.
    tolerance_frac
        By which part a lane may get more than its share.
    """

    def __init__(
        self, whole: LanguageModel, shares: Sequence[int], *, tolerance_frac: float = TOLERANCE_FRAC
    ) -> None:
        super().__init__(whole, shares, tolerance_frac=tolerance_frac)
        self.rows, self.max_length = whole.rows, whole.max_length
        self.n_candidates, self.vocabulary = whole.n_candidates, whole.vocabulary
        self.stops, self.tokenizer = whole.stops, whole.tokenizer

    save = LanguageModel.save  # of its module
