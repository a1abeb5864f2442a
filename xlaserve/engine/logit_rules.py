"""What a request's parameters ask of its logits, as the runner takes it when the request gets a row."""

from dataclasses import replace

from xlaserve.core.request import Request
from xlaserve.runner.commands import LogitRules

NO_RULES = LogitRules()


def has_rules(request: Request) -> bool:
    return _asked(request) != NO_RULES


def logit_rules(request: Request) -> LogitRules | None:
    """None where nothing is asked for: such rows cost nothing. All tokens of the request have come back."""
    rules = _asked(request)
    if rules == NO_RULES:
        return None
    return replace(rules, prompt_ids=tuple(request.prompt_ids), output_ids=tuple(request.output_ids))


def _asked(request: Request) -> LogitRules:
    params = request.params
    rules = LogitRules(
        bias=params.biases,
        allowed=params.allowed_token_ids,
        forbidden=request.forbidden_ids,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
    )
    if params.min_tokens:
        first_stop = request.num_prompt_tokens + params.min_tokens
        rules = replace(rules, stop_ids=tuple(sorted(request.stop_ids)), first_stop=first_stop)
    return rules
