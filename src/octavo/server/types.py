"""The bodies of OpenAI's API, as msgspec structs: what is read and what is written.

Owns: field names and JSON types of requests, responses and stream chunks.
Does not know: ranges (core.params), caps, or how anything is generated.

A field that is absent and one that is null mean the same: the default. Fields of type `Ignored`
exist so that clients that send them get no warning. What may be large without need stays as bytes
(`Raw`) until its size was looked at: a million entries take seconds to build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.server.logprobs import ChatLogprobs, CompletionLogprobs, PromptPosition

Raw = msgspec.Raw
NULL = Raw(b"null")
Ignored = msgspec.Raw


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str


class SamplingFields(msgspec.Struct, kw_only=True):
    """What every generating route takes. Meanings and ranges: `core.params.SamplingParams`."""

    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Raw = NULL
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    priority: int | None = None
    timeout: float | None = None


class OpenAIFields(SamplingFields, kw_only=True):
    """What both of OpenAI's generating routes take."""

    model: str | None = None
    service_tier: str | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    user: Ignored = NULL
    metadata: Ignored = NULL
    store: Ignored = NULL
    safety_identifier: Ignored = NULL
    prompt_cache_key: Ignored = NULL


class CompletionRequest(OpenAIFields, kw_only=True):
    prompt: str | list[int | str | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class ChatRequest(OpenAIFields, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Raw = NULL
    chat_template_kwargs: Raw = NULL
    tools: list[Raw] | None = None
    tool_choice: Raw = NULL
    functions: list[Raw] | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: Ignored = NULL
    reasoning_effort: Ignored = NULL
    verbosity: Ignored = NULL
    prediction: Ignored = NULL


class GenerateRequest(SamplingFields, kw_only=True):
    """The body of the old `/generate` route."""

    prompt: str


class TokenizeRequest(msgspec.Struct):
    """`prompt` or `messages`, one of the two."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Raw = NULL
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionChoice(msgspec.Struct):
    """Of a whole response and of a chunk alike; `stop_reason` tells which stop matched.
    `prompt_logprobs` is there only where the request asked for it by this name."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[PromptPosition] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: Sequence[CompletionChoice | Raw]
    usage: Usage | None = None
    object: str = "text_completion"


class AssistantMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: Sequence[ChatChoice | Raw]
    usage: Usage | None = None
    object: str = "chat.completion"


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatChunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    object: str = "chat.completion.chunk"


class ModelCard(msgspec.Struct):
    """`sampling_defaults` are those of the model's generation_config."""

    id: str
    created: int
    max_model_len: int
    root: str
    sampling_defaults: dict[str, Any]
    object: str = "model"
    owned_by: str = "octavo"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"
