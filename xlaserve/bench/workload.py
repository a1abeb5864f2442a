"""What a benchmark sends, and when: prompts of given lengths, of files, and their times of arrival.

Lengths of made-up prompts are in common English words, each of which is one token to most tokenizers: so they need no
tokenizer, and every server gets the same text. What the server counted is in the report.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from xlaserve.engine.simulation.trace import Lengths, TraceRequest, read_trace
from xlaserve.errors import ConfigError

_TEXT = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no most
number who over know water than call first people may down side been now find
"""
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Job:
    """One request. arrival: seconds from the start."""

    prompt: str
    output_tokens: int
    arrival: float = 0.0


class Drawn:
    """Prompts of random words, the same ones for the same seed. A prefix depends on its name and the seed alone."""

    def __init__(self, seed: int):
        self._seed = seed
        self._rng = random.Random(seed)

    def fixed(
        self, count: int, input_len: int, output_len: int, *, range_ratio: float = 0.0, prefix_len: int = 0
    ) -> Iterator[Job]:
        """Lengths evenly between those times 1 - `range_ratio` and 1 + `range_ratio`; one prefix before each prompt.

        Raises ConfigError for a ratio not below 1.
        """
        if not 0 <= range_ratio < 1:
            raise ConfigError(f"the range ratio is {range_ratio}: must be at least 0 and below 1")
        for _ in range(count):
            num_words, num_tokens = (self._near(length, range_ratio) for length in (input_len, output_len))
            yield Job(self._prompt("prefix", prefix_len, num_words), num_tokens)

    def prefix_repetition(
        self, count: int, prefix_len: int, suffix_len: int, num_prefixes: int, output_len: int
    ) -> Iterator[Job]:
        """As many requests of each prefix, one or two fewer of the last ones, in random order."""
        prefixes = [number % num_prefixes for number in range(count)]
        self._rng.shuffle(prefixes)
        for number in prefixes:
            yield Job(self._prompt(f"prefix {number}", prefix_len, suffix_len), output_len)

    def chats(self, count: int, max_tokens: int) -> Iterator[Job]:
        """Log-normal lengths in the proportions and with the spread of ShareGPT; `max_tokens`: of both together."""
        prompts, outputs = Lengths(100, 1.0), Lengths(200, 0.8)
        for _ in range(count):
            num_words = min(prompts.draw(self._rng), max_tokens - 1)
            yield Job(self._words(num_words), min(outputs.draw(self._rng), max_tokens - num_words))

    def trace(self, requests: Iterable[TraceRequest]) -> Iterator[Job]:
        """Prompts that share what the trace says they share."""
        for request in requests:
            own = request.prompt_tokens - request.prefix_tokens
            yield Job(self._prompt(request.prefix, request.prefix_tokens, own), request.output_tokens, request.arrival)

    def _near(self, length: int, ratio: float) -> int:
        return max(1, self._rng.randint(round(length * (1 - ratio)), round(length * (1 + ratio))))

    def _prompt(self, prefix: str, prefix_len: int, num_words: int) -> str:
        beginning = random.Random(f"{self._seed} {prefix}").choices(WORDS, k=prefix_len)
        return " ".join([*beginning, *self._rng.choices(WORDS, k=num_words)])

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")
    prompt: Annotated[str, Field(min_length=1)]
    output_tokens: Annotated[int, Field(ge=1)] | None = None


def read_custom(path: Path, output_len: int) -> list[Job]:
    """A JSON object a line: prompt, and output_tokens where it is not `output_len`. Raises ConfigError."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    jobs = []
    for number, line in lines:
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            raise ConfigError(
                f"{path}, line {number}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            ) from error
        jobs.append(Job(found.prompt, found.output_tokens or output_len))
    return _some(jobs, path)


def read_sharegpt(path: Path, output_len: int | None) -> list[Job]:
    """The first question of each conversation of a ShareGPT file, and as many tokens as its answer has words.

    Raises ConfigError.
    """
    try:
        conversations = TypeAdapter(list[dict[str, Any]]).validate_json(_text(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: must be a JSON list of objects with `conversations`, as ShareGPT has it") from error
    jobs = []
    for conversation in conversations:
        turns = [turn["value"] for turn in conversation.get("conversations", ())[:2] if turn.get("value")]
        if len(turns) == 2:
            jobs.append(Job(turns[0], output_len or len(turns[1].split())))
    return _some(jobs, path)


def read_lengths(path: Path, drawn: Drawn) -> list[Job]:
    """A trace as `xlaserve bench scheduler` reads it. Raises ConfigError."""
    return list(drawn.trace(read_trace(path)))


def arriving(jobs: Sequence[Job], rate: float, burstiness: float, seed: int) -> list[Job]:
    """The jobs at `rate` requests/s, times between them from a gamma distribution of shape `burstiness`: 1 is a Poisson
    process, less is more bursty. A rate of infinity: all at once. Raises ConfigError.
    """
    if not rate > 0 or not 0 < burstiness < inf:
        raise ConfigError(f"request rate {rate} and burstiness {burstiness}: must be above 0")
    if rate == inf:
        return [replace(job, arrival=0.0) for job in jobs]
    rng, now, arrived = random.Random(seed), 0.0, []
    for job in jobs:
        arrived.append(replace(job, arrival=now))
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return arrived


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _some(jobs: list[Job], path: Path) -> list[Job]:
    if not jobs:
        raise ConfigError(f"{path}: no request in it")
    return jobs
