"""Has a grammar translated and tried in a process of its own."""

from pathlib import Path
from typing import Any

import llguidance

from xlaserve.engine.child import Child, Refused
from xlaserve.grammar import Grammar

# Of llguidance: far above what schemas of this size need, low enough that no single mask takes half a second.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "max_lexer_states": 50_000,
    "precompute_large_lexemes": False,  # over the whole vocabulary, where nothing limits it
}
SECONDS = 4.0
MAX_CHECKS = 2

_child = Child(
    Path(__file__).with_name("translate.py"),
    [Path(llguidance.__file__).parent.parent],
    task="compile",
    memory=2 * 1024**3,
    max_at_once=MAX_CHECKS,
)


def translate(grammar: Grammar, *, seconds: float = SECONDS) -> str:
    """The grammar as llguidance has it; to compile it again takes no longer than it took here.

    Raises Refused, which says what is wrong with it, and Overloaded: see Child.
    """
    answer = _child.run({"kind": grammar.kind, "text": grammar.text, "limits": LIMITS}, seconds=seconds)
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["grammar"]
