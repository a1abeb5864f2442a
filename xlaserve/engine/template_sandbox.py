"""The sandbox that chat templates run in, set up as transformers sets up its own, with limits on time and on text.

A template comes with a model, so it is somebody else's program. It reaches no Python internals (Jinja's sandbox), and
it cannot run away: every turn of a loop and every call of a macro looks at the clock, and text is counted as it is
made, beforehand where one operation can make much of it.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from xlaserve.engine import template_builtins as builtins

MAX_SECONDS = 2.0  # of computing
MAX_CHARACTERS = 2**28  # made in one rendering, everything that is thrown away again included
_MAX_INT_BITS = 4096


class _Budget(threading.local):
    """What the rendering on this thread may still use; outside of one, nothing."""

    deadline = 0.0  # of time.thread_time(): a busy machine is not the template's fault
    characters = 0


_budget = _Budget()


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bounds what templates rendered inside may use: MAX_SECONDS and MAX_CHARACTERS, then jinja2's SecurityError."""
    _budget.deadline = time.thread_time() + MAX_SECONDS
    _budget.characters = MAX_CHARACTERS
    try:
        yield
    finally:
        del _budget.deadline, _budget.characters


def compile_template(source: str) -> jinja2.Template:
    """To be rendered inside `limits()`. Raises jinja2.TemplateSyntaxError."""
    environment = _Environment()
    return environment.from_string(_guarded(environment.parse(source)))


def parse_template(source: str) -> nodes.Template:
    """Its syntax, to look at. Raises jinja2.TemplateSyntaxError."""
    return _Environment().parse(source)


class _Guard(Extension):
    """Called from nodes of the syntax tree, which no template can write or shadow."""

    def tick(self) -> str:
        if time.thread_time() > _budget.deadline:
            raise SecurityError(f"the chat template ran for more than {MAX_SECONDS:g} seconds")
        return ""

    def spend(self, characters: int) -> str:
        _spend(characters)
        return ""

    def concat(self, *parts: Any) -> str:
        text = [str(part) for part in parts]
        _spend(sum(map(len, text)))
        return "".join(text)


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it only holds its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or constant calls would be made by the compiler, where no limit holds
            finalize=_output,
            extensions=[_Guard, _Generation, loopcontrols],
        )
        del self.globals["lipsum"]
        self.globals.update(builtins.GLOBALS)
        self.filters["tojson"] = builtins.to_json
        for name, cost in builtins.FILTER_COSTS.items():
            self.filters[name] = builtins.with_cost(self.filters[name], cost, _spend)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raises at once; Jinja would let the value pass as long as it is only printed."""
        raise SecurityError(f"the chat template reads the attribute {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _spend_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _spend(builtins.printf_cost(left))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            _spend(len(result))
        return result

    def call(__self, __context, __obj, *args, **kwargs) -> Any:  # the names of the base class: kwargs may hold "self"
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        if isinstance(getattr(method, "__self__", None), str) and method.__name__ in builtins.METHOD_COSTS:
            _spend(builtins.METHOD_COSTS[method.__name__](method.__self__, *args, **kwargs))
        return super().call(__context, __obj, *args, **kwargs)


def _guarded(template: nodes.Template) -> nodes.Template:
    """Puts the guard's calls into loops and macros, and in the place of what makes text."""
    for block in template.find_all((nodes.For, nodes.Macro)):
        tick = _guard_call("tick", [], block.lineno)
        block.body.insert(0, nodes.ExprStmt(tick, lineno=block.lineno))
        if isinstance(block, nodes.For) and block.test is not None:  # may be false every time
            block.test = nodes.Or(tick, block.test, lineno=block.lineno)
    for output in template.find_all(nodes.Output):
        literal = sum(len(node.data) for node in output.nodes if isinstance(node, nodes.TemplateData))
        if literal:
            output.nodes.insert(0, _guard_call("spend", [nodes.Const(literal, lineno=output.lineno)], output.lineno))
    return _with_counted_concat(template)


def _with_counted_concat(node: Any) -> Any:
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, field, _with_counted_concat(value))
        elif isinstance(value, list):
            setattr(node, field, [_with_counted_concat(v) if isinstance(v, nodes.Node) else v for v in value])
    return _guard_call("concat", node.nodes, node.lineno) if isinstance(node, nodes.Concat) else node


def _guard_call(method: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    target = nodes.ExtensionAttribute(_Guard.identifier, method, lineno=lineno)
    return nodes.Call(target, args, [], None, None, lineno=lineno)


def _spend(characters: int) -> None:
    _budget.characters -= characters
    if _budget.characters < 0:
        raise SecurityError("the chat template makes too much text")


@jinja2.pass_context  # which also keeps the compiler from printing constants by itself
def _output(_context: Any, value: Any) -> str:
    text = str(value)
    _spend(len(text))
    return text


def _spend_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            _spend(len(sequence) * max(0, times))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_INT_BITS:
        raise SecurityError("the chat template multiplies numbers that are too large")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_INT_BITS:
        raise SecurityError("the chat template raises a number to a power that is too large")
