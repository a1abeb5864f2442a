"""POST /v1/embeddings as OpenAI has it, /v1/score as vLLM has it, /v1/rerank as Jina has it."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from xlaserve.server.protocol.completion import Prompt, PromptForms, parse_prompts
from xlaserve.server.protocol.generation import PromptOptions, ScheduledRequest
from xlaserve.server.protocol.strict import Strict
from xlaserve.server.validation import validate

MAX_INPUTS = 2048  # OpenAI's limit


def _few(values: list[Any]) -> list[Any]:
    if len(values) > MAX_INPUTS:
        raise ValueError(f"has {len(values)} entries: {MAX_INPUTS} are allowed")
    return values


def _as_texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Inputs = Annotated[
    list[Prompt],
    AfterValidator(_few),
    BeforeValidator(parse_prompts, json_schema_input_type=PromptForms),
]
Texts = Annotated[
    list[str],
    AfterValidator(_few),
    Field(min_length=1),
    BeforeValidator(_as_texts, json_schema_input_type=str | list[str]),
]


class EmbeddingRequest(ScheduledRequest, PromptOptions):
    """POST /v1/embeddings."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


class ScoreRequest(ScheduledRequest, PromptOptions):
    """POST /v1/score."""

    text_1: Texts
    text_2: Texts

    @model_validator(mode="after")
    def _texts_pair(self):
        if len(self.text_1) not in (1, len(self.text_2)):
            raise ValueError(
                f"text_1: has {len(self.text_1)} texts: must have one, or as many as text_2, which has "
                f"{len(self.text_2)}"
            )
        return self


class Document(Strict):
    text: str


def _as_documents(value: Any) -> Any:
    """Texts as documents: an error then names what is wrong with one, not all that it is not."""
    return [{"text": each} if isinstance(each, str) else each for each in value] if isinstance(value, list) else value


class RerankRequest(ScheduledRequest, PromptOptions):
    """POST /v1/rerank."""

    query: str
    documents: Annotated[
        list[Document],
        AfterValidator(_few),
        Field(min_length=1),
        BeforeValidator(_as_documents, json_schema_input_type=list[str | Document]),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]


def parse_embedding(data: dict[str, Any]) -> EmbeddingRequest:
    return validate(EmbeddingRequest, data, {})


def parse_score(data: dict[str, Any]) -> ScoreRequest:
    return validate(ScoreRequest, data, {})


def parse_rerank(data: dict[str, Any]) -> RerankRequest:
    return validate(RerankRequest, data, {})
