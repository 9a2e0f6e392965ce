"""Options of vLLM that do not exist here: each is refused by name, with the nearest thing.

Owns: the hints for the frequent ones; the list of all names lies in vllm_options.txt.
Does not know: the options that exist (options).
"""

from __future__ import annotations

from importlib import resources

_ALWAYS = "it is always so here; leave the option out"
_ONE_DEVICE = "a model runs on one device; leave the option out"
_PROXY = "put a reverse proxy in front for this"
_DOWNLOADS = "give the path of a downloaded copy as the model"

HINTS = {
    "api_server_count": "one API process serves; start several servers behind a balancer for more",
    "async_scheduling": "leave the option out",
    "attention_backend": "--backend chooses all operations",
    "cpu_offload_gb": "use a smaller or more strongly quantised model",
    "code_revision": "code from a model's repository is never run",
    "data_parallel_size": "start several servers behind a balancer",
    "disable_log_requests": "--log-level warning hides the line that each request writes",
    "disable_uvicorn_access_log": "--log-level warning hides the line that each request writes",
    "enable_chunked_prefill": _ALWAYS,
    "enable_log_requests": "one line a request is logged at --log-level info",
    "enable_prompt_tokens_details": _ALWAYS,
    "enable_request_id_headers": _ALWAYS,
    "enforce_eager": "leave the option out",
    "hf_token": "set the environment variable HF_TOKEN",
    "load_format": "the format is read from the files; leave the option out",
    "long_prefill_token_threshold": "--max-num-batched-tokens bounds the prompt tokens of a step",
    "max_num_scheduled_tokens": "--max-num-batched-tokens bounds the tokens of a step",
    "num_gpu_blocks_override": "--kv-tokens gives the size of the KV cache in tokens",
    "override_generation_config": "--generation-config takes the path of a file",
    "pipeline_parallel_size": _ONE_DEVICE,
    "quantization": "the quantisation is read from the model's files; leave the option out",
    "revision": _DOWNLOADS,
    "root_path": _PROXY,
    "seed": "send `seed` with each request",
    "ssl_certfile": _PROXY,
    "ssl_keyfile": _PROXY,
    "swap_space": "preempted sequences are computed again; leave the option out",
    "tensor_parallel_size": _ONE_DEVICE,
    "tokenizer": "the tokenizer is the model's own",
    "tokenizer_revision": _DOWNLOADS,
    "trust_remote_code": "code from a model's repository is never run; leave the option out",
    "uds": "--host and --port; put a reverse proxy in front for a socket file",
    "uvicorn_log_level": "--log-level sets the level of all logs",
}


def _is_vllm(key: str) -> bool:
    names = resources.files("octavo.config").joinpath("vllm_options.txt").read_text("utf-8")
    return key in names.split()


def hint(name: str) -> str | None:
    """What to say of vLLM's option `name` (with or without dashes); None if it is not vLLM's."""
    key = name.lstrip("-").replace("-", "_")
    key = key.removeprefix("no_")
    if key in HINTS:
        return HINTS[key]
    return "" if _is_vllm(key) else None


def refusal(name: str) -> tuple[str, str] | None:
    """(message, what to do instead) for an option of vLLM's that is not supported here."""
    found = hint(name)
    if found is None:
        return None
    spelt = "--" + name.lstrip("-").replace("_", "-")
    return f"vLLM's {spelt} is not supported", found
