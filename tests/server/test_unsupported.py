"""Fields that are not served: null and values that ask for nothing pass, others are refused by name."""

import pytest

from tests.server.test_protocol import chat, completion
from xlaserve.errors import InvalidRequest
from xlaserve.server.protocol.chat import ChatRequest
from xlaserve.server.protocol.completion import CompletionRequest
from xlaserve.server.unsupported import CHAT, COMPLETION


def test_report_74_null_is_the_same_as_absent_in_every_optional_field():
    optional = {*CompletionRequest.model_fields, *COMPLETION} - {"model", "prompt"}
    assert completion(**dict.fromkeys(optional)) == completion()
    optional = {*ChatRequest.model_fields, *CHAT} - {"model", "messages"}
    assert chat(**dict.fromkeys(optional)) == chat()


@pytest.mark.parametrize("field", sorted(COMPLETION))
def test_unsupported_completion_fields(field):
    check_unsupported(completion, COMPLETION, field)


@pytest.mark.parametrize("field", sorted(CHAT))
def test_unsupported_chat_fields(field):
    check_unsupported(chat, CHAT, field)


def check_unsupported(parse, table, field):
    for neutral in table[field].neutral:
        assert parse(**{field: neutral}) == parse()
    for other in (2, "other", [1], {"x": 1}):
        with pytest.raises(InvalidRequest, match=field) as caught:
            parse(**{field: other})
        assert caught.value.param == field


def test_openais_no_ops_are_taken():
    chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto")
