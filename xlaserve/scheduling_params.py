"""What one request asks of the queue and of the KV cache. Nothing of it changes what is generated."""

import math
from dataclasses import dataclass

from xlaserve.errors import InvalidRequest

MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SchedulingParams:
    """Checked on construction: a wrong value raises `InvalidRequest` naming the field.

    priority: lower is earlier; 0 unless the policy heeds it. timeout: seconds from the request's arrival to its end,
    which is then given what there is; None = no limit. tenant: who asks; "" where there are no API keys.
    cache_salt: only requests with the same one share blocks of KV memory; "" for what all may share.
    """

    priority: int = 0
    timeout: float | None = None
    tenant: str = ""
    cache_salt: str = ""

    def __post_init__(self):
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}", param="priority")
        if self.timeout is not None and not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise InvalidRequest(f"timeout is {self.timeout}: must be a number of seconds above 0", param="timeout")


NO_PREFERENCE = SchedulingParams()
