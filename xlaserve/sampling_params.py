"""What one request asks of sampling. Knows nothing of devices; the device side is `SamplingMetadata`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from xlaserve.errors import InvalidRequest
from xlaserve.grammar import Grammar

PoolingType = Literal["last", "mean", "cls"]  # the hidden state of the last token, all tokens' mean, the first token's
MAX_LOGPROBS = 20  # OpenAI's limit; what the device returns of each token
MAX_BEAM_WIDTH = 10  # each beam needs as many alternatives, and one for each token that ends it
MAX_LENGTH_PENALTY = 10
MAX_CHOICES = 128  # OpenAI's limit
MAX_STOP_STRINGS = 4  # OpenAI's limit
MAX_PENALTY = 2  # OpenAI's limit, of presence_penalty and frequency_penalty
MAX_REPETITION_PENALTY = 100  # and the least is 1 / 100
MAX_BIAS = 100  # OpenAI's limit
MAX_BIASES = 1024  # OpenAI's limit
MAX_BAD_WORDS = 1024
SEED_LIMIT = 2**63
MAX_TOP_K = 2**31 - 1  # what the device holds; no vocabulary is larger
MIN_TEMPERATURE = 1e-5  # below it logits / temperature leaves float32, and nothing but the best token would be drawn
TEXT_OPTIONS = ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Checked on construction: a wrong value raises `InvalidRequest` naming the field.

    max_tokens: tokens to generate at most; None = what is left of the context; 0 = the prompt is only computed.
    temperature: 0 = greedy, as is anything below MIN_TEMPERATURE. top_k: 0 or -1 = off. top_p: 1 = off.
    min_p: tokens less likely than this share of the likeliest are left out; 0 = off. presence_penalty: taken off the
    logits of tokens in the output, frequency_penalty: as often as they are there; repetition_penalty: what divides
    positive and multiplies negative logits of tokens in the prompt or the output, 1 = off. logit_bias: a mapping, or
    pairs, of tokens and what is added to their logits. allowed_token_ids: no others are sampled, None = all.
    bad_words: texts that are not generated. min_tokens: so many are generated before EOS or a stop token may be.
    n: answers to the same prompt; with a seed all are reproducible, and differ. seed: None = drawn afresh for each
    request. logprobs: None = off, else the number of alternatives (0..20); prompt_logprobs: the same of
    the prompt's tokens.
    skip_special_tokens, spaces_between_special_tokens: see `make_detokenizer`. include_stop_str_in_output: text ends
    with the stop string, or with the token, that ended it.
    reasoning: the output may begin with <think>...</think>, of thinking_token_budget tokens at most; None = no limit.
    grammar: what the output must look like, after any reasoning; EOS comes when it is complete. With ignore_eos it
    comes only when the grammar allows nothing else. Not with what could leave it no token: min_tokens,
    allowed_token_ids, bad_words.
    """

    n: int = 1
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    reasoning: bool = False
    thinking_token_budget: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self):
        _check("n", self.n, _is_int(self.n) and 1 <= self.n <= MAX_CHOICES, f"an integer from 1 to {MAX_CHOICES}")
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, _is_int(self.max_tokens) and self.max_tokens >= 0, "an integer >= 0")
        _check("n", self.n, self.n == 1 or self.max_tokens != 0, "1 with max_tokens 0: no choice is made")
        _check("temperature", self.temperature, _in_range(self.temperature, 0, 2), "a number from 0 to 2")
        if self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        _check("top_p", self.top_p, _in_range(self.top_p, 0, 1) and self.top_p > 0, "a number above 0, up to 1")
        _check("top_k", self.top_k, _is_int(self.top_k) and self.top_k >= -1, "an integer >= 1, or 0 or -1 for off")
        object.__setattr__(self, "top_k", min(max(0, self.top_k), MAX_TOP_K))
        _check("min_p", self.min_p, _in_range(self.min_p, 0, 1), "a number from 0 to 1")
        self._check_rules()
        if self.seed is not None:
            allowed = _is_int(self.seed) and -SEED_LIMIT <= self.seed < SEED_LIMIT
            _check("seed", self.seed, allowed, "an integer of 64 bits")
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        _check("stop", self.stop, len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        _check("stop", self.stop, all(isinstance(s, str) and s for s in self.stop), "non-empty strings")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        ids_ok = all(_is_int(i) and i >= 0 for i in self.stop_token_ids)
        _check("stop_token_ids", self.stop_token_ids, ids_ok, "token ids >= 0")
        for name in ("ignore_eos", "reasoning", *TEXT_OPTIONS):
            _check(name, getattr(self, name), isinstance(getattr(self, name), bool), "true or false")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                allowed = _is_int(count) and 0 <= count <= MAX_LOGPROBS
                _check(name, count, allowed, f"an integer from 0 to {MAX_LOGPROBS}")
        if self.thinking_token_budget is not None:
            allowed = _is_int(self.thinking_token_budget) and self.thinking_token_budget >= 0
            _check("thinking_token_budget", self.thinking_token_budget, allowed, "an integer >= 0")
            _check("thinking_token_budget", self.thinking_token_budget, self.reasoning, "left out without reasoning")

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """logit_bias as pairs."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    def _check_rules(self) -> None:
        """Penalties, bias and what is not allowed."""
        limit = MAX_PENALTY
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, _in_range(value, -limit, limit), f"a number from {-limit} to {limit}")
        low, high = 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        allowed = f"a number from {low} to {high}, 1 for off"
        _check("repetition_penalty", self.repetition_penalty, _in_range(self.repetition_penalty, low, high), allowed)
        biases = self.logit_bias
        biases = tuple(biases.items()) if isinstance(biases, Mapping) else tuple(biases)
        object.__setattr__(self, "logit_bias", biases)
        _check("logit_bias", biases, len(biases) <= MAX_BIASES, f"a mapping of {MAX_BIASES} tokens at most")
        fine = all(_is_int(token) and token >= 0 and _in_range(bias, -MAX_BIAS, MAX_BIAS) for token, bias in biases)
        _check("logit_bias", dict(biases), fine, f"of token ids >= 0 to numbers from {-MAX_BIAS} to {MAX_BIAS}")
        if self.allowed_token_ids is not None:
            ids = tuple(self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", ids)
            fine = bool(ids) and all(_is_int(i) and i >= 0 for i in ids)
            _check("allowed_token_ids", ids, fine, "token ids >= 0, at least one")
        words = (self.bad_words,) if isinstance(self.bad_words, str) else tuple(self.bad_words)
        object.__setattr__(self, "bad_words", words)
        fine = len(words) <= MAX_BAD_WORDS and all(isinstance(word, str) and word.strip() for word in words)
        _check("bad_words", words, fine, f"{MAX_BAD_WORDS} texts at most, none of them empty")
        _check("min_tokens", self.min_tokens, _is_int(self.min_tokens) and self.min_tokens >= 0, "an integer >= 0")
        fine = self.max_tokens is None or self.min_tokens <= self.max_tokens
        _check("min_tokens", self.min_tokens, fine, f"at most max_tokens ({self.max_tokens})")
        if self.grammar is not None:
            for name in ("min_tokens", "allowed_token_ids", "bad_words"):
                _check(name, getattr(self, name), not getattr(self, name), f"left out beside {self.grammar.param}")


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """Asks for a hidden state of the prompt, and for no answer: see PoolingType. Raises as SamplingParams."""

    pooling: PoolingType = "last"
    n: ClassVar[int] = 1

    def __post_init__(self):
        _check("pooling", self.pooling, self.pooling in get_args(PoolingType), "last, mean or cls")

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=0)


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Checked on construction, as SamplingParams, whose fields of the same names mean the same.

    n: answers returned, the best of `beam_width` (None: n) that are followed at a time. An answer's score is the sum of
    its tokens' logprobs over their number to the power of `length_penalty`: above 0, longer ones gain by it.
    """

    n: int = 1
    beam_width: int | None = None
    length_penalty: float = 1.0
    max_tokens: int | None = 16
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self):
        allowed = f"an integer from 1 to {MAX_BEAM_WIDTH}"
        for name, value in (("n", self.n), ("beam_width", self.width)):
            _check(name, value, _is_int(value) and 1 <= value <= MAX_BEAM_WIDTH, allowed)
        _check("n", self.n, self.n <= self.width, f"at most beam_width ({self.width}), as there are no more answers")
        limit = MAX_LENGTH_PENALTY
        allowed = f"a number from {-limit} to {limit}"
        _check("length_penalty", self.length_penalty, _in_range(self.length_penalty, -limit, limit), allowed)
        _check("max_tokens", self.max_tokens, self.max_tokens != 0, "an integer >= 1")
        object.__setattr__(self, "stop_token_ids", self.greedy.stop_token_ids)

    @property
    def width(self) -> int:
        return self.n if self.beam_width is None else self.beam_width

    @property
    def greedy(self) -> SamplingParams:
        """What both have in common, for a single answer without a search."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=0.0,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            **{name: getattr(self, name) for name in TEXT_OPTIONS},
        )


def _is_int(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(value, low: float, high: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and low <= value <= high


def _check(name: str, value, ok: bool, allowed: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name} is {str(value)[:80]!r}: must be {allowed}", param=name)
