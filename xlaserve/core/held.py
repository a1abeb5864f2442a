"""Newcomers that are kept out of the queue until the weights are there that are to compute them."""

from collections.abc import Iterator

from xlaserve.core.request import Request


class Held:
    """In order of arrival. `is_open`: whoever comes is held."""

    def __init__(self):
        self.is_open = False
        self._requests: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    @property
    def num_tokens(self) -> int:
        """Of their prompts."""
        return sum(request.num_prompt_tokens for request in self._requests)

    def add(self, request: Request) -> None:
        self._requests[request] = None

    def remove(self, request: Request) -> None:
        """One that ends before its time; its forks go on without it."""
        del self._requests[request]
        self._requests |= dict.fromkeys(request.forks)
        request.forks = []

    def take_all(self) -> list[Request]:
        """Closes; nobody is left."""
        self.is_open = False
        requests, self._requests = self._requests, {}
        return list(requests)
