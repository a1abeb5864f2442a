"""The deployment's configuration: one YAML file plus `--set a.b=c`, checked here once and frozen.

Values of None mean "derived at start"; the resolved value and its reason are printed in the banner.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from xlaserve.errors import ConfigError
from xlaserve.speculative_config import SpeculativeSection

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _parse_bytes(value):
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError("write a number of bytes, or a size such as 512MiB or 4GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"]
QuantizationName = Literal["auto", "none", "int8", "int8_weight_only", "fp8"]
PolicyName = Literal["fcfs", "priority", "fair"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
POOL_SIZE_KEYS = ("num_blocks", "memory", "memory_utilization")  # of the section `cache`

Bytes = Annotated[int, BeforeValidator(_parse_bytes), Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class ModelSection(_Section):
    source: str = Field(default="demo", min_length=1)  # demo | folder | file.gguf | hub id | random:config.json
    revision: str | None = None  # of a hub id
    served_name: str | None = None  # default: the last part of the source
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: QuantizationName = "auto"  # of the weights, when they are loaded; auto: int8 on a CPU, where it pays
    max_model_len: int | None = Field(default=None, ge=1)
    generation_config: Literal["auto", "none"] = "auto"  # none: the checkpoint's sampling defaults are not used
    logprobs_mode: Literal["raw", "processed"] = "raw"  # the model's own, or of the distribution that is drawn from
    chat_template: Path | None = None  # a file that replaces the checkpoint's template
    tool_parser: ToolParserName = "auto"  # how the model writes tool calls; auto: as its template tells
    reasoning_parser: Literal["auto", "none", "think"] = "auto"  # think: <think>...</think>
    pooling: Literal["auto", "last", "mean", "cls"] = "auto"  # of embeddings; auto: as the checkpoint says, else last


class CacheSection(_Section):
    block_size: int = Field(default=16, ge=1, le=256)  # tokens
    # How large the KV pool is; at most one of the three.
    num_blocks: int | None = Field(default=None, ge=2)  # per layer group, the null block included; windows need fewer
    memory: Bytes | None = None  # of all layer groups together
    memory_utilization: float | None = Field(default=None, gt=0, le=1)  # of the device's memory, weights included
    dtype: KVDtype = "auto"  # of keys and values; auto: the model's
    prefix_caching: bool = True  # requests that begin alike share blocks
    host_memory: Bytes | None = None  # for cached blocks that the pool has no room for any longer; None: they are lost

    @model_validator(mode="after")
    def _one_size(self) -> "CacheSection":
        given = [f"cache.{key} ({getattr(self, key)})" for key in POOL_SIZE_KEYS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} contradict each other: each says how large the KV pool is")
        return self

    @model_validator(mode="after")
    def _host_keeps_prefixes(self) -> "CacheSection":
        if self.host_memory is not None and not self.prefix_caching:
            raise ValueError(
                f"cache.host_memory ({self.host_memory}) and cache.prefix_caching (False) contradict each other: the "
                "host keeps known prefixes only"
            )
        return self


class SchedulerSection(_Section):
    max_num_seqs: int | None = Field(default=None, ge=1, le=4096)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    policy: PolicyName = "fcfs"
    long_prefill_token_threshold: int | None = Field(default=None, ge=1)  # prompt tokens of one request per step
    async_scheduling: bool = True  # false: each step is awaited at once; same code, for debugging


class KernelsSection(_Section):
    attention_backend: str = "auto"
    cpu_instructions: str = "auto"  # of cpu_native: avx512_vnni, avx512, avx2, plain; auto: the best there is


class CompileSection(_Section):
    cache_dir: Path | None = None  # persistent compilation cache; default: the user's cache folder
    bundle: Path | None = None  # a folder that `xlaserve build` has made: its programs are loaded. It is code: trust it
    bundle_strict: bool = False  # true: a bundle that does not fit is refused; else all is compiled afresh
    serve_early: bool | None = None  # with one size of body, the others joining as they are made; None: with a bundle


class TenantSection(_Section):
    """Who may use the server, by one key: written here, or better, in a file that only the server can read."""

    key: SecretStr | None = None
    key_file: Path | None = None
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # its share under scheduler.policy: fair

    @model_validator(mode="after")
    def _has_one_key(self) -> "TenantSection":
        if (self.key is None) == (self.key_file is None):
            raise ValueError("write either key or key_file")
        return self


TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class FilesSection(_Section):
    """Files that clients upload, and batches over them."""

    folder: Path | None = None  # of this server alone; None: there are neither files nor batches
    max_file_bytes: Bytes = 200 * 2**20  # of one upload
    max_total_bytes: Bytes = 10 * 2**30  # of all files, at which uploads are refused; results are not
    batch_lines: int | None = Field(default=None, ge=1)  # that run at a time; None: half of scheduler.max_num_seqs


class ResponsesSection(_Section):
    """Answers of /v1/responses that may be asked for again, in memory: at either limit the oldest are forgotten."""

    max_number: int = Field(default=1024, ge=1)
    max_bytes: Bytes = 64 * 2**20


class ServerSection(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)  # 0: any free port
    max_connections: int = Field(default=256, ge=1)
    api_workers: int = Field(default=0, ge=0, le=64)  # processes that write streamed answers; 0: a thread does
    max_body: Bytes = 16 * 2**20
    max_waiting: int = Field(default=1024, ge=0)  # requests queued in the engine before 429
    max_waiting_tokens: int | None = Field(default=None, ge=1)  # of their prompts
    api_keys: dict[TenantName, TenantSection] = {}  # none: everybody is let in
    admin_key: SecretStr | None = None  # of who may give orders (/admin/...); without one nobody may
    admin_key_file: Path | None = None  # in place of it
    admin_paths: tuple[Path, ...] = ()  # folders that weights may be read from, links followed
    models_memory: Bytes | None = None  # of all models together, weights and KV pools, where some are on demand
    model_wait: float = Field(default=60.0, gt=0, le=3600)  # seconds that a request waits for its model to be loaded
    sleep_after: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # seconds without a request
    sleep_level: Literal[1, 2] = 1  # of that sleep: 1: weights in host memory; 2: weights and KV pool dropped
    allow_chat_template: bool = False  # of a request's own, rendered in a process that is killed when it runs away
    files: FilesSection = FilesSection()
    responses: ResponsesSection = ResponsesSection()

    @field_validator("api_keys", "files", "responses", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("admin_paths", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return () if value is None else value

    @field_validator("admin_paths")
    @classmethod
    def _absolute(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        if relative := [path for path in paths if not path.is_absolute()]:
            raise ValueError(f"{relative[0]} is relative: write the whole path")
        return paths

    @model_validator(mode="after")
    def _one_admin_key(self) -> "ServerSection":
        if self.admin_key is not None and self.admin_key_file is not None:
            raise ValueError("server.admin_key and server.admin_key_file contradict each other: write one of them")
        return self


class ServedModelSection(_Section):
    """One of several models. What it leaves out is as in the sections outside that have the same name."""

    model: ModelSection
    on_demand: bool = False  # loaded by its first request, and sent away when others need its memory
    cache: CacheSection = CacheSection()
    scheduler: SchedulerSection = SchedulerSection()
    speculative: SpeculativeSection = SpeculativeSection()
    kernels: KernelsSection = KernelsSection()
    compile: CompileSection = CompileSection()

    @field_validator("cache", "scheduler", "speculative", "kernels", "compile", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


ServedName = Annotated[str, Field(min_length=1, max_length=200)]


class Config(_Section):
    model: ModelSection = ModelSection()
    models: dict[ServedName, ServedModelSection] = {}  # several in place of one, by the names they are served under
    cache: CacheSection = CacheSection()
    scheduler: SchedulerSection = SchedulerSection()
    speculative: SpeculativeSection = SpeculativeSection()
    kernels: KernelsSection = KernelsSection()
    compile: CompileSection = CompileSection()
    server: ServerSection = ServerSection()
    seed: int = 0  # of random weights

    @field_validator(
        "model", "models", "cache", "scheduler", "speculative", "kernels", "compile", "server", mode="before"
    )
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value  # what YAML makes of a section that holds only comments

    @model_validator(mode="after")
    def _each_model_says_its_own(self) -> "Config":
        for key in ("source", "served_name"):
            if self.models and key in self.model.model_fields_set:
                raise ValueError(f"model.{key} and models contradict each other: each of models has its own")
        for name, section in self.models.items():
            if "source" not in section.model.model_fields_set:
                raise ValueError(f"models.{name}.model.source: say which model this is")
            if section.model.served_name is not None:
                raise ValueError(f"models.{name}.model.served_name: leave it out, it is served as {name!r}")
            if not any(getattr(self._deployment(name).cache, key) for key in POOL_SIZE_KEYS):
                raise ValueError(
                    f"models.{name}.cache: say how large its KV pool is, by one of {', '.join(POOL_SIZE_KEYS)}: the "
                    "models share the memory"
                )
            if section.on_demand and self.server.models_memory is None:
                raise ValueError(
                    f"models.{name}.on_demand: say by server.models_memory how much memory all models may take together"
                )
        shares = {name: self._deployment(name).cache.memory_utilization or 0.0 for name in self.models}
        if sum(shares.values()) > 1:
            told = ", ".join(f"{name} {share:g}" for name, share in shares.items() if share)
            raise ValueError(f"models: their cache.memory_utilization is more than 1 together: {told}")
        return self

    def deployments(self) -> list["Config"]:
        """A config of its own for each of `models`; for one model alone itself."""
        return [self._deployment(name) for name in self.models] or [self]

    def _deployment(self, name: str) -> "Config":
        sections = {}
        for key in ("model", "cache", "scheduler", "speculative", "kernels", "compile"):
            own = getattr(self.models[name], key)
            values = {field: getattr(own, field) for field in own.model_fields_set}
            if values.keys() & set(POOL_SIZE_KEYS):  # of which one replaces another
                values = dict.fromkeys(POOL_SIZE_KEYS) | values
            sections[key] = getattr(self, key).model_copy(update=values)
        sections["model"] = sections["model"].model_copy(update={"served_name": name})
        return self.model_copy(update=sections | {"models": {}})


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: PyYAML would drop the first, a whole section perhaps."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Reads `path` (YAML; None = all defaults), applies `a.b=c` overrides, and checks the result.

    Raises ConfigError naming the file, the key, what was found and what is allowed.
    """
    where = str(path) if path else "the settings"
    data: Any = {}
    if path:
        try:
            data = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
        except yaml.MarkedYAMLError as error:
            raise ConfigError(f"cannot read the config file {path}: {_explain_yaml(error)}") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the config file {path}: {error}") from error
        data = {} if data is None else data
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: expected a mapping of sections, found {type(data).__name__}")
    for override in overrides:
        _apply_override(data, override)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(where, e) for e in error.errors())) from None  # it shows what it was given


def _apply_override(data: dict, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: write it as section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        if _is_secret(key.split(".")):
            raise ConfigError(f"--set {key}: the value is not valid YAML") from None
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from error
    *parents, last = key.split(".")
    for parent in parents:
        if data.get(parent) is None:
            data[parent] = {}
        data = data[parent]
        if not isinstance(data, dict):
            raise ConfigError(f"--set {key}: {parent} is not a section")
    data[last] = value


def _explain_yaml(error: yaml.MarkedYAMLError) -> str:
    """What is wrong and where; not the line itself, nor a word of it: it may hold an API key."""
    problem = error.problem
    if isinstance(error, ComposerError | ConstructorError):
        problem = "an alias, anchor or tag that cannot be used"
    mark = error.problem_mark or error.context_mark
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def _explain(where: str, error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}. {_suggest(path)}"
    # A whole section may hold API keys, which are never shown; where keys do not go together, the message names them.
    told = _is_secret(path) or isinstance(error.get("input"), dict | list)
    found = "" if told else f" is {str(error.get('input'))[:80]!r}"
    named = f"{key}{found}: " if key else ""  # what does not go together names its keys itself
    return f"{where}: {named}{error['msg'].removeprefix('Value error, ')}"


def _is_secret(path: Sequence[str]) -> bool:
    """Whether the value there may hold an API key, which no message shows."""
    return path[-1:] == ["admin_key"] or (
        "api_keys" in path and (path[-1] != "weight" or len(path) - path.index("api_keys") != 3)
    )


def _suggest(path: list[str]) -> str:
    """The nearest valid key, among those of the same section first and then of all."""
    section: Any = Config
    parts = iter(path[:-1])
    for part in parts:
        section = section.model_fields[part].annotation
        if get_origin(section) is dict and next(parts, None):  # sections by a name of the user's
            section = get_args(section)[1]
    siblings = {name: ".".join([*path[:-1], name]) for name in section.model_fields}
    everywhere = {
        name: f"{outer}.{name}"
        for outer, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for name in field.annotation.model_fields
    }
    for candidates in (siblings, everywhere):
        near = difflib.get_close_matches(path[-1], candidates, n=1, cutoff=0.5)
        if near:
            return f"Did you mean {candidates[near[0]]!r}?"
    return f"Valid keys there: {', '.join(siblings.values())}"
