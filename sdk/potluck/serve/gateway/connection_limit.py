"""Who is let in at the entrance, and who has to leave: whoever asks nothing makes room. Pure."""

from collections import Counter

MAX_CONNECTIONS = 1024
MAX_OF_ADDRESS = 512  # one computer does not take all of them
HEAD_S = 10.0  # for the whole head of a request, from coming in or from the answer before

Who = tuple[str, int]  # address and port of the other end


class ConnectionLimit:
    """Counts connections; each of them has asked something, or waits without a request. `n_mute`:
    those that have left and never asked anything.

    Parameters
    ----------
    max_open, max_of_address
        Connections at once, in all and of one address.
    head_s
        How long one may wait without a request.
    """

    def __init__(
        self,
        max_open: int = MAX_CONNECTIONS,
        max_of_address: int = MAX_OF_ADDRESS,
        head_s: float = HEAD_S,
    ) -> None:
        self.max_open = max_open
        self.max_of_address = max_of_address
        self.head_s = head_s
        self._open_requests: dict[Who, int] = {}  # requests that are not answered yet
        self._waiting_since_s: dict[Who, float] = {}  # the longest first
        self._n_of: Counter[str] = Counter()
        self._mute: set[Who] = set()
        self.n_mute = 0

    def __len__(self) -> int:
        return len(self._open_requests)

    def come(self, who: Who, now_s: float) -> Who | None:
        """Somebody is there; who has to leave for it: perhaps itself, or nobody. One that was
        there under this address and port has ended: they are given again once they are free.

        Parameters
        ----------
        who
            The other end.
        now_s
            By any clock that goes forward.
        """
        self.leave(who)
        found: Who | None = None
        if self._n_of[who[0]] >= self.max_of_address:
            found = next((each for each in self._waiting_since_s if each[0] == who[0]), who)
        elif len(self) >= self.max_open:
            found = next(iter(self._waiting_since_s), who)
        if found is not None:
            self.leave(found)
        if found != who:
            self._open_requests[who], self._waiting_since_s[who] = 0, now_s
            self._mute.add(who)
            self._n_of[who[0]] += 1
        return found

    def ask(self, who: Who) -> None:
        """The head of a request is there."""
        if who in self._open_requests:
            self._open_requests[who] += 1
            self._mute.discard(who)
            self._waiting_since_s.pop(who, None)

    def answer(self, who: Who, now_s: float) -> None:
        """A request is answered; or one of a connection that had this address and port before."""
        if not self._open_requests.get(who):
            return
        self._open_requests[who] -= 1
        if not self._open_requests[who]:
            self._waiting_since_s[who] = now_s

    def leave(self, who: Who) -> None:
        """Somebody is gone."""
        if self._open_requests.pop(who, None) is None:
            return
        if who in self._mute:
            self._mute.discard(who)
            self.n_mute += 1
        self._waiting_since_s.pop(who, None)
        self._n_of[who[0]] -= 1
        if not self._n_of[who[0]]:
            del self._n_of[who[0]]

    def overdue(self, now_s: float) -> tuple[Who, ...]:
        """Who has waited for too long."""
        before_s = now_s - self.head_s
        return tuple(who for who, since_s in self._waiting_since_s.items() if since_s < before_s)
