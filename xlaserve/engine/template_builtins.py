"""What chat templates can call, as transformers offers it, and what the calls that can make much text from little cost.

A cost is an upper bound, in characters, on what one call adds to its arguments.
"""

import functools
import json
import re
import string
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateError

_PRINTF_WIDTH = re.compile(r"%(?:\(.*?\))?[-+ #_^]*(\d*\*|\d+)?(?:\.(\*|\d+))?")
_UNBOUNDED = 2**62  # a width that is taken from the arguments


def printf_cost(text: str, *_args, **_kwargs) -> int:
    """Of `text % args`, and of strftime with GNU's widths."""
    widths = [width for match in _PRINTF_WIDTH.finditer(text) for width in match.groups() if width]
    return sum(_UNBOUNDED if width.endswith("*") else int(width[:18]) for width in widths)


def _format_cost(text: str, *_args, **_kwargs) -> int:
    """Of `text.format(...)`. A format that is none raises ValueError, as the call itself would."""
    specs = [spec for _, _, spec, _ in string.Formatter().parse(text) if spec]
    return sum(_UNBOUNDED if "{" in spec else sum(map(int, re.findall(r"\d{1,18}", spec))) for spec in specs)


def _width_cost(text: Any, *args, **kwargs) -> int:
    lines = 1 + text.count("\n") + text.count("\t") if isinstance(text, str) else 1
    return lines * sum(value for value in (*args, *kwargs.values()) if isinstance(value, int) and value > 0)


def _replace_cost(text: str, old: str, new: str, *_args, **_kwargs) -> int:
    return str(text).count(str(old)) * len(str(new))


def _join_cost(separator: str, items: Any, *_args, **_kwargs) -> int:
    if not isinstance(items, list | tuple):
        return 0
    return sum(len(item) for item in items if isinstance(item, str)) + len(separator) * len(items)


METHOD_COSTS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "expandtabs"), _width_cost),
    **dict.fromkeys(("format", "format_map"), _format_cost),
    "replace": _replace_cost,
    "join": _join_cost,
}
FILTER_COSTS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "indent", "batch", "slice", "tojson"), _width_cost),
    "format": printf_cost,
    "replace": _replace_cost,
    "join": lambda items, separator="", *_args, **_kwargs: _join_cost(separator, items),
}


def with_cost(function: Callable, cost: Callable[..., int], spend: Callable[[int], None]) -> Callable:
    """The filter, but the cost of each call is spent first."""
    num_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja passes its own context before the value

    @functools.wraps(function)  # copies Jinja's marks, too
    def counted(*args, **kwargs):
        spend(cost(*args[num_hidden:], **kwargs))
        return function(*args, **kwargs)

    return counted


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Unlike Jinja's own, it does not escape HTML."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if printf_cost(format) > len(format) * 100:
        raise SecurityError("the chat template formats a date with a width that is too large")
    return datetime.now().strftime(format)


class _Dict:
    """`dict` in templates: callable, but not the class, whose attributes lead out of the sandbox."""

    def __call__(self, *args, **kwargs) -> dict:
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs) -> dict:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` in templates, without names that begin with an underscore."""

    def __init__(*args, **kwargs):  # no name for self: kwargs may hold one
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the chat template sets the attribute {name!r}: a name must not begin with an underscore")


GLOBALS: dict[str, Any] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "dict": _Dict(),
    "namespace": _Namespace,
}
