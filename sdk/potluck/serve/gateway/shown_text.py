"""How much of a text may be shown while it is written: what comes next may change its end. Pure."""

from collections.abc import Sequence

from potluck.errors import RequestFailed

INCOMPLETE = "\ufffd"  # what a tokenizer shows of a character whose tokens have not all come
# what loses its space once it is whole, by tokenizers with `clean_up_tokenization_spaces`
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def certain(text: str, held_back: Sequence[str]) -> str:
    """The part that stays, whatever comes next.

    Parameters
    ----------
    text
        So far.
    held_back
        What is not shown, or as something else, once it is whole.

    Examples
    --------
    >>> certain("so it en", ["end"])
    'so it '
    """
    shown = text.rstrip(INCOMPLETE)
    n_held = max((_begun(shown, each) for each in held_back), default=0)
    return shown[: len(shown) - n_held]


def _begun(text: str, held_back: str) -> int:
    """How many characters at the end of a text may be the begin of what is held back.

    >>> _begun("so it en", "end"), _begun("so", "end")
    (2, 0)
    """
    lengths = range(len(held_back) - 1, 0, -1)
    return next((n for n in lengths if text.endswith(held_back[:n])), 0)


def behind(shown: str, text: str) -> str:
    """What of a text comes behind what was shown of it.

    Parameters
    ----------
    shown
        Before.
    text
        What may be shown now.

    Raises
    ------
    RequestFailed
        It is another text now.

    Examples
    --------
    >>> behind("so it", "so it is"), behind("so it", "so")
    (' is', '')
    """
    if shown.startswith(text):
        return ""
    if not text.startswith(shown):
        raise RequestFailed(
            "the tokenizer changed words that were shown already.",
            next_step="Ask for the whole text, without a stream.",
        )
    return text[len(shown) :]
