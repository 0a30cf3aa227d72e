"""Requests that no device has a place for, until models are placed anew."""

from potluck.serve.scheduling.records import Request, ServiceSpec


class HomelessRequests:
    """By service; none waits longer than its limit allows, or beyond the queue of its service."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Request]] = {}

    def keep(self, request: Request, service: ServiceSpec | None, now_s: float) -> bool:
        """Whether it waits from now on.

        Parameters
        ----------
        request
            That nobody has a place for.
        service
            That it asks for; None: it is served no longer.
        now_s
            The time.
        """
        waiting = self._waiting.setdefault(request.service, [])
        if service is None or now_s >= request.deadline_s or len(waiting) >= service.max_queue:
            return False
        waiting.append(request)
        return True

    def take_all(self) -> list[Request]:
        """All that wait: they are decided anew."""
        taken = [request for waiting in self._waiting.values() for request in waiting]
        self._waiting = {}
        return taken
