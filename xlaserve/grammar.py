"""What a request's output must look like, as it was asked for. Knows nothing of how that is enforced."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from xlaserve.errors import InvalidRequest

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]
MAX_GRAMMAR_BYTES = 256 * 1024


@dataclass(frozen=True)
class Grammar:
    """Checked on construction, as far as that needs no compiler: raises InvalidRequest naming `param`.

    text, by kind: json_schema: the schema, as JSON. regex: in the syntax of Rust's regex crate, to match the whole
    output. choice: a JSON list of strings. grammar: Lark as llguidance has it, or EBNF with "::=" as llama.cpp has it
    (GBNF). structural_tag: JSON with "structures" and "triggers", as vLLM has it.
    param: the request's field, for messages.
    """

    kind: GrammarKind
    text: str
    param: str = field(default="grammar", compare=False)

    def __post_init__(self):
        if self.kind not in get_args(GrammarKind):
            raise InvalidRequest(
                f"{self.param}: {self.kind!r} is none of {', '.join(get_args(GrammarKind))}", param=self.param
            )
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{self.param}: a lone surrogate is no text", param=self.param) from error
        if not self.text:
            raise InvalidRequest(f"{self.param}: is empty", param=self.param)
        if size > MAX_GRAMMAR_BYTES:
            message = f"{self.param}: has {size} bytes, {MAX_GRAMMAR_BYTES} are the most that is taken"
            raise InvalidRequest(message, param=self.param)


ANY_JSON_OBJECT = '{"type": "object"}'
