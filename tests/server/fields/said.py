"""What a server said to one request, read the same way for completions and chat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.server.harness import Answer


@dataclass(frozen=True)
class Said:
    """A successful answer, whole or streamed."""

    answer: Answer

    @property
    def json(self) -> Any:
        return self.answer.json

    @property
    def usage(self) -> dict[str, Any]:
        return self.json["usage"]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return self.json["choices"]

    @property
    def choice(self) -> dict[str, Any]:
        """The only one."""
        (choice,) = self.choices
        return choice

    @property
    def texts(self) -> list[str]:
        return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in self.choices]

    @property
    def text(self) -> str:
        (text,) = self.texts
        return text

    @property
    def ids(self) -> list[int]:
        """Of the only choice; as `prompt_ids` in answers to requests with return_token_ids."""
        return self.choice["token_ids"]

    @property
    def prompt_ids(self) -> list[int]:
        """Of /tokenize too."""
        where = self.choice if "prompt_token_ids" in self.answer.json.get("choices", [{}])[0] else self.json
        return where["tokens" if "tokens" in where else "prompt_token_ids"]

    @property
    def prompt(self) -> str:
        """The prompt's bytes as text; special tokens, which are no bytes, are left out."""
        return bytes(each for each in self.prompt_ids if each < 248).decode()

    @property
    def end(self) -> tuple[str, Any]:
        return self.choice["finish_reason"], self.choice["stop_reason"]


Ask = Callable[..., Said]  # sends the base request with more fields, or with others


@dataclass(frozen=True)
class Effect:
    """What one field does: two requests that differ in it alone, and how their answers must differ.

    check(without, with_it, ask) returns whether the field did what it is specified to do; `ask` makes further requests.
    base: fields of both requests. server: the name of a fixture, which is the server asked.
    """

    value: Any
    check: Callable[[Said, Said, Ask], bool]
    base: dict[str, Any]
    server: str = "tiny"


def effect(value: Any, check: Callable[[Said, Said, Ask], bool], server: str = "tiny", **base: Any) -> Effect:
    return Effect(value, check, base, server)


@dataclass(frozen=True)
class NoEffect:
    """A field that is taken though it changes nothing, and why it may be."""

    why: str
    value: Any = None  # None: it is required, and has one value
    without: Any = None


@dataclass(frozen=True)
class Elsewhere:
    """A field whose effect takes more than two requests: a test of its own shows it."""

    test: Callable[..., None]


Entry = Effect | NoEffect | Elsewhere
