"""What rules a request's next token: kept on the host, advanced by each token that comes back, applied as a mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class ConstraintFailed(Exception):
    """The request cannot go on; its message is for the client. It ends that request and nothing else."""


class Constraint(Protocol):
    """The state of one request: it has seen the tokens that have come back, and no others.

    It belongs to the engine's thread once the request is queued. Preemptions and failed steps leave it as it is, since
    neither takes back a token.
    """

    def advance(self, token_id: int) -> None:
        """The request's next token is this one. Never raises: a problem shows in the next `mask`."""
        ...

    def mask(self) -> np.ndarray | None:
        """Which tokens may come next: int32 [ceil(V / 32)], bit i % 32 of word i // 32 is token i. None: any.

        The array is the caller's to keep. Raises ConstraintFailed.
        """
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, one after the other, as far as that is known: what `mask` would allow each time.

        None where `mask` raises.
        """
        ...

    def copy(self) -> "Constraint":
        """The same state, to be advanced on its own: a further answer to the same prompt."""
        ...


def allows(mask: np.ndarray, token_id: int) -> bool:
    return bool(mask[token_id // 32] >> token_id % 32 & 1)


def only_token(mask: np.ndarray) -> int | None:
    """The token that may come next when it is the only one."""
    (words,) = np.nonzero(mask)
    bits = int(mask[words[0]]) & 0xFFFFFFFF if len(words) == 1 else 0
    return 32 * int(words[0]) + bits.bit_length() - 1 if bits.bit_count() == 1 else None


@dataclass(frozen=True)
class AllOf:
    """Several constraints of one request: a token must be allowed by each."""

    constraints: Sequence[Constraint]

    def advance(self, token_id: int) -> None:
        for constraint in self.constraints:
            constraint.advance(token_id)

    def mask(self) -> np.ndarray | None:
        found = [mask for constraint in self.constraints if (mask := constraint.mask()) is not None]
        return np.bitwise_and.reduce(found) if found else None

    def forced(self) -> Sequence[int]:
        return ()  # what one forces another may forbid

    def copy(self) -> "AllOf":
        return AllOf([constraint.copy() for constraint in self.constraints])
