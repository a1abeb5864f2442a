"""Compiles grammars for one vocabulary, on the caller's thread, and remembers the last ones, what is wrong included."""

import os
import threading
from collections import OrderedDict
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from xlaserve.core.constraint import ConstraintFailed
from xlaserve.engine.child import Refused
from xlaserve.engine.grammar.check import LIMITS, translate
from xlaserve.engine.grammar.constraint import GrammarConstraint, eos_mask, run_ahead
from xlaserve.engine.grammar.vocabulary import make_ll_tokenizer
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.errors import InvalidRequest
from xlaserve.grammar import Grammar

MAX_CACHED = 128
MAX_THREADS = 8  # that make masks
MAX_MESSAGE = 300  # characters


@dataclass(frozen=True)
class _Compiled:
    matcher: LLMatcher  # at the start, or where there is something to choose first; only copied from now on
    masks: list[np.ndarray]  # as `run_ahead` gives them


class GrammarCompiler:
    """May be used from any thread. Nothing is made before the first grammar is asked for."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Set[int]):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_id for eos_id in eos_ids if eos_id < vocab_size)
        self._lock = threading.Lock()  # guards what follows
        self._vocabulary: LLTokenizer | None = None
        self._cache: OrderedDict[Grammar, _Compiled | str] = OrderedDict()  # a str: why it is refused
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="grammar")

    def constraint(self, grammar: Grammar, *, more: bool = False) -> GrammarConstraint:
        """At the start of the output. more: see GrammarConstraint.

        Raises InvalidRequest naming what is wrong, Overloaded when too many others have grammars compiled.
        """
        if not self._eos_ids:
            raise _refusal(grammar, "this model has no token that ends an output, so none can be ended by a grammar")
        if not self._tokenizer.vocab_size:
            raise _refusal(grammar, "this model has no tokenizer, so what its tokens write is not known")
        found = self._find(grammar)
        if found is None:
            found = self._compile(grammar)
            self._keep(grammar, found)
        if isinstance(found, str):
            raise _refusal(grammar, found)
        with self._lock:  # a matcher is not to be copied by two threads at once
            matcher = found.matcher.deep_copy()
        return GrammarConstraint(matcher, found.masks, self._pool, self._eos_ids, more=more)

    def _find(self, grammar: Grammar) -> _Compiled | str | None:
        with self._lock:
            if grammar in self._cache:
                self._cache.move_to_end(grammar)
            return self._cache.get(grammar)

    def _keep(self, grammar: Grammar, found: _Compiled | str) -> None:
        with self._lock:
            self._cache[grammar] = found
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)

    def _compile(self, grammar: Grammar) -> _Compiled | str:
        """What is wrong, where something is."""
        try:
            translated = translate(grammar)
        except Refused as problem:
            return str(problem)
        matcher = LLMatcher(self._tokens(), translated, log_level=0, limits=LLParserLimits(**LIMITS))
        if matcher.is_error():
            return " ".join(matcher.get_error().split())[:MAX_MESSAGE]
        num_words = -(-self._vocab_size // 32)
        try:
            masks = run_ahead(matcher, num_words, eos_mask(self._eos_ids, num_words))
        except ConstraintFailed:
            return "allows no output at all, or is too complex"
        if not masks[0].any():
            return "allows nothing that the tokens of this model can write"
        return _Compiled(matcher, masks)

    def _tokens(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = make_ll_tokenizer(self._tokenizer, self._vocab_size, self._eos_ids)
            return self._vocabulary


def _refusal(grammar: Grammar, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{grammar.param} ({grammar.kind}): {problem}", param=grammar.param)
