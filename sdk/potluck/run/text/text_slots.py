"""Which tokens of which texts go into the next request (continuous batching). Pure.

A text has a row of every request as its slot from when it is begun until it is whole. Rows have
places of their own, so that one text may still read its prompt while others are written.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.graph.caches import MAX_NEW_TOKENS

# where others wait for their next token meanwhile
MAX_NEW_TOKENS_BESIDE = 16


@dataclass(eq=False)
class GeneratedText:
    """One text: its prompt, what was written so far, and how many of its tokens devices hold the
    keys and values of.
    """

    tokens: list[int]
    max_length: int
    stops: frozenset[int]
    n_prompt: int = field(init=False)
    n_held: int = 0
    reason: str = ""  # why it is whole: "stop", "length" or "cancelled"

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)

    @property
    def n_missing(self) -> int:
        """Tokens whose keys and values nobody holds yet."""
        return len(self.tokens) - self.n_held

    def write(self, token: int) -> None:
        """This token comes next."""
        self.tokens.append(token)
        if token in self.stops:
            self.reason = "stop"
        elif len(self.tokens) >= self.max_length:
            self.reason = "length"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request: `ids` [rows, tokens], and for each row where the first of them goes and how many
    count. `writes` are the rows, with their texts, whose next token the answer tells.
    """

    ids: list[list[int]]
    start: list[int]
    count: list[int]
    texts: list[tuple[int, GeneratedText]]
    writes: list[tuple[int, GeneratedText]]


class TextSlots:
    """The texts of a run.

    Parameters
    ----------
    sizes
        Rows that a request may have, ascending; the last is how many slots there are.
    length
        Tokens of a text at most; what nobody waits for is written behind them.
    """

    def __init__(self, sizes: Sequence[int], length: int) -> None:
        self._sizes, self._length = tuple(sizes), length
        self._slots: list[GeneratedText | None] = [None] * self._sizes[-1]
        self._waiting: deque[GeneratedText] = deque()

    @property
    def texts(self) -> list[GeneratedText]:
        """Those that are not whole yet."""
        return [*filter(None, self._slots), *self._waiting]

    def add(self, text: GeneratedText) -> None:
        """It begins when a slot is free."""
        self._waiting.append(text)

    def next(self) -> TokenRequest | None:
        """What to ask now; None where every text is whole."""
        self._fill()
        begun = [(row, text) for row, text in enumerate(self._slots) if text is not None]
        if not begun:
            return None
        missing = [text.n_missing for _, text in begun]
        width = _width(max(missing), MAX_NEW_TOKENS_BESIDE if min(missing) == 1 else MAX_NEW_TOKENS)
        n_rows = next(size for size in self._sizes if size > begun[-1][0])
        ids = []
        start, count = [], []
        for text in self._slots[:n_rows]:
            new = text.tokens[text.n_held : text.n_held + width] if text else [0]
            ids.append([*new, *[0] * (width - len(new))])
            start.append(text.n_held if text else self._length)
            count.append(len(new))
        writes = [(row, text) for row, text in begun if text.n_missing <= width]
        return TokenRequest(ids, start, count, begun, writes)

    def answered(self, request: TokenRequest) -> None:
        """Devices hold what was asked."""
        for row, text in request.texts:
            text.n_held += request.count[row]

    def forget(self) -> None:
        """Nobody holds anything any more: every text is read again from its first token on."""
        for text in self.texts:
            text.n_held = 0

    def _fill(self) -> None:
        self._waiting = deque(text for text in self._waiting if not text.reason)
        for row, text in enumerate(self._slots):
            if text is not None and text.reason:
                text = None
            if text is None and self._waiting:
                text = self._waiting.popleft()
            self._slots[row] = text


def _width(n_missing: int, most: int) -> int:
    """Tokens of a row in the next request: a power of two, so that devices see few shapes.

    >>> [_width(n, 32) for n in (1, 3, 8, 500)]
    [1, 4, 8, 32]
    """
    return min(most, 1 << (n_missing - 1).bit_length())
