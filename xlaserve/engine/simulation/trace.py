"""What requests arrive when: read from a file of one JSON object a line, or drawn at random."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, log
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from xlaserve.errors import ConfigError

_MAX_PROBLEMS = 5  # told of one line


@checked_dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=True))
class TraceRequest:
    """One line of a trace. Only the two lengths have to be there."""

    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]
    arrival: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # seconds from the start
    prefix: str = ""  # prompts with the same name here begin with the same tokens, as many as both have
    prefix_tokens: Annotated[int, Field(ge=0)] = 0  # how many of prompt_tokens these are
    tenant: str = ""
    priority: int = 0  # lower is earlier, with `scheduler.policy: priority`
    cache_salt: str = ""  # blocks are shared only among requests of one salt

    @model_validator(mode="after")
    def _prefix_fits(self) -> "TraceRequest":
        if self.prefix_tokens > self.prompt_tokens:
            raise ValueError(f"prefix_tokens is {self.prefix_tokens}, prompt_tokens only {self.prompt_tokens}")
        if bool(self.prefix) != bool(self.prefix_tokens):
            raise ValueError("prefix and prefix_tokens belong together: give both or neither")
        return self


def read_trace(path: Path) -> list[TraceRequest]:
    """By time of arrival; empty lines are skipped. Raises ConfigError naming the file, the line and the key."""
    adapter = TypeAdapter(TraceRequest)
    requests = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_parse(adapter, f"{path}, line {number}", line))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not requests:
        raise ConfigError(f"{path}: no request in it")
    return sorted(requests, key=attrgetter("arrival"))


def _parse(adapter: TypeAdapter[TraceRequest], where: str, line: str) -> TraceRequest:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)[:_MAX_PROBLEMS]
        raise ConfigError("\n".join(_explain(where, problem) for problem in problems)) from error


def _explain(where: str, problem: Mapping) -> str:
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "unexpected_keyword_argument":
        return f"{where}: unknown key {key!r}. Valid keys: {', '.join(TraceRequest.__dataclass_fields__)}"
    if not key:
        return f"{where}: {problem['msg']}"
    found = "" if problem["type"] == "missing" else f" is {str(problem['input'])[:80]!r}"
    return f"{where}: {key}{found}: {problem['msg']}"


@dataclass(frozen=True)
class Lengths:
    """Log-normal, rounded, at least 1. sigma: the standard deviation of the logarithm; 0: always the mean."""

    mean: float
    sigma: float = 0.0

    def __post_init__(self):
        if not 0 < self.mean < inf:
            raise ConfigError(f"a mean length is {self.mean}: must be a finite number above 0")
        if not 0 <= self.sigma < inf:
            raise ConfigError(f"the sigma of a length is {self.sigma}: must be a finite number >= 0")

    def draw(self, rng: random.Random) -> int:
        return max(1, round(rng.lognormvariate(log(self.mean) - self.sigma**2 / 2, self.sigma)))


@dataclass(frozen=True)
class Workload:
    """Requests drawn at random, the same ones for the same seed."""

    num_requests: int
    prompt: Lengths  # without the shared prefix
    output: Lengths
    max_tokens: int  # of prompt and output together, longer requests are cut
    rate: float | None = None  # requests/s, arriving as a Poisson process; None: all at once
    prefix_tokens: int = 0  # at the start of every prompt
    num_prefixes: int = 1  # different ones, each as likely
    tenants: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})  # each one's share of the requests
    seed: int = 0

    def __post_init__(self):
        if self.rate is not None and not 0 < self.rate < inf:
            raise ConfigError(f"rate is {self.rate}: must be a finite number above 0")
        if not self.tenants:
            raise ConfigError("tenants: there must be one at least")
        for name, load in self.tenants.items():
            if not 0 < load < inf:
                raise ConfigError(f"the load of tenant {name!r} is {load}: must be a finite number above 0")
        if self.prefix_tokens + 2 > self.max_tokens:
            raise ConfigError(
                f"a prefix of {self.prefix_tokens} tokens leaves no room within model.max_model_len, {self.max_tokens}"
            )

    def requests(self) -> Iterator[TraceRequest]:
        rng = random.Random(self.seed)
        names, loads = list(self.tenants), list(self.tenants.values())
        arrival = 0.0
        for _ in range(self.num_requests):
            if self.rate is not None:
                arrival += rng.expovariate(self.rate)
            prompt_tokens = min(self.prefix_tokens + self.prompt.draw(rng), self.max_tokens - 1)
            yield TraceRequest(
                prompt_tokens=prompt_tokens,
                output_tokens=min(self.output.draw(rng), self.max_tokens - prompt_tokens),
                arrival=arrival,
                prefix=f"prefix {rng.randrange(self.num_prefixes)}" if self.prefix_tokens else "",
                prefix_tokens=self.prefix_tokens,
                tenant=rng.choices(names, loads)[0],
            )
