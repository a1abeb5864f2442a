"""The configuration's section `speculative`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NUM_DRAFTS = 7  # of a request in a step, where nothing is said; with the token before them a body of 8
LOOKUP = (3, 5)  # tokens, likewise


class SpeculativeSection(BaseModel):
    """Tokens that are guessed and verified several at a time, by vLLM's names. It changes no text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    method: Literal["ngram"] | None = None  # ngram: prompt lookup, what followed when the text last ended like this
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=64)  # of a request in a step, at most; None: 7
    prompt_lookup_min: int | None = Field(default=None, ge=1, le=64)  # tokens of the end that is looked up; None: 3,
    prompt_lookup_max: int | None = Field(default=None, ge=1, le=64)  # and 5; or what the other one is

    @model_validator(mode="after")
    def _bounds(self) -> "SpeculativeSection":
        least, most = self.lookup
        if least > most:
            raise ValueError(f"speculative.prompt_lookup_min ({least}) is more than prompt_lookup_max ({most})")
        return self

    @property
    def lookup(self) -> tuple[int, int]:
        """The shortest and the longest end of a text that is looked up, in tokens."""
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least is None:
            least = LOOKUP[0] if most is None else min(most, LOOKUP[0])
        return least, max(least, LOOKUP[1]) if most is None else most

    @property
    def num_drafts(self) -> int:
        """Of a request in a step, at most."""
        if self.method is None:
            return 0
        return NUM_DRAFTS if self.num_speculative_tokens is None else self.num_speculative_tokens
