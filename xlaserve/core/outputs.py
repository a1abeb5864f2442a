"""What the engine sends back for one request after one step: token ids and numbers, no text, serialisable.

Where there is one per token it is a class with slots, not frozen: that is made in a sixth of the time.
"""

from dataclasses import dataclass
from typing import Literal

from xlaserve.core.reading import PromptRead

# timeout: its time was over before it ran at all; one that has run ends with "length" and the stop_reason "timeout".
FinishReason = Literal["stop", "length", "abort", "error", "timeout"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Logprobs of one generated token: the model's own, or of what was drawn from, as the engine was started."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first; as many as were asked for


@dataclass(slots=True)
class EngineOutput:
    """`token_ids` are the new ones only. The last output of a request has a `finish_reason`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per token id, if asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it, or "timeout"; None for EOS
    error: str | None = None  # with finish_reason "error" or "timeout"
    read: PromptRead | None = None  # of the prompt, if asked for: with the first token, or the end if none is sampled

    def with_next(self, output: "EngineOutput") -> "EngineOutput":
        """This one and the request's next one, as one."""
        return EngineOutput(
            self.request_id,
            self.token_ids + output.token_ids,
            None
            if self.logprobs is None and output.logprobs is None
            else (self.logprobs or ()) + (output.logprobs or ()),
            output.finish_reason,
            output.stop_reason,
            output.error,
            output.read if self.read is None else self.read,
        )
