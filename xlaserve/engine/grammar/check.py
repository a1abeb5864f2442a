"""Has a grammar translated and tried in a process of its own, which is killed when it takes too long or too much."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import llguidance

from xlaserve.errors import Overloaded
from xlaserve.grammar import Grammar

# Of llguidance: far above what schemas of this size need, low enough that no single mask takes half a second.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "max_lexer_states": 50_000,
    "precompute_large_lexemes": False,  # over the whole vocabulary, where nothing limits it
}
SECONDS = 4.0
MEMORY = 2 * 1024**3  # bytes of address space
MAX_CHECKS = 2  # at once, so that hostile grammars leave cores for the rest
MAX_WAIT = 20.0  # seconds for a turn

_turns = threading.BoundedSemaphore(MAX_CHECKS)


class GrammarRefused(Exception):
    """Says what is wrong with a grammar."""


def translate(grammar: Grammar, *, seconds: float = SECONDS) -> str:
    """The grammar as llguidance has it; to compile it again takes no longer than it took here.

    Takes a tenth of a second at least. Raises GrammarRefused, and Overloaded when others' grammars leave no turn for
    it.
    """
    if not _turns.acquire(timeout=MAX_WAIT):
        raise Overloaded("The server is busy compiling grammars: try again in a moment.", retry_after=int(seconds))
    try:
        return _run(grammar, seconds)
    finally:
        _turns.release()


def _run(grammar: Grammar, seconds: float) -> str:
    program = Path(__file__).with_name("translate.py")
    packages = Path(llguidance.__file__).parent.parent
    command = [sys.executable, "-I", "-S", str(program), str(packages), str(MEMORY), json.dumps(LIMITS)]
    asked = json.dumps({"kind": grammar.kind, "text": grammar.text})
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=seconds, text=True, encoding="utf-8")
    except subprocess.TimeoutExpired:
        raise GrammarRefused(f"takes longer than {seconds:g} seconds to compile; make it simpler") from None
    if done.returncode != 0:  # out of memory, as a rule
        raise GrammarRefused("is too complex to compile; make it simpler")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise GrammarRefused(answer["error"])
    return answer["grammar"]
