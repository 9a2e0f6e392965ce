"""`octavo chat`: a conversation in the terminal, with a model in this process or a server.

Owns: the loop of turns, and streaming from a server with the standard library.
Does not know: how a model in this process answers (run).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from octavo.cli.console import make_console, write
from octavo.cli.errors import CliError
from octavo.cli.run import Ask, Messages, Talker
from octavo.config import Options

HELP = "Type and press Enter. /new begins again, /bye or Ctrl-D ends, Ctrl-C stops an answer."

Answer = Callable[[Messages], Iterator[str]]


def chat(options: Options, url: str | None, ask: Ask) -> None:
    answer = Server(url, options, ask).answer if url else Talker(options, ask).answer
    make_console().print(HELP, style="dim")
    converse(answer, ask)


def converse(answer: Answer, ask: Ask) -> None:
    """Turns until the end of input. An answer that is stopped stays in the conversation as far as
    it came."""
    messages = ask.begin()
    while (line := _read()) is not None:
        if line == "/bye":
            return
        if line == "/new":
            messages = ask.begin()
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        said = ""
        with contextlib.suppress(KeyboardInterrupt):
            for piece in answer(messages):
                said += piece
                write(piece)
        write("\n")
        messages.append({"role": "assistant", "content": said})


def _read() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        write("\n")
        return None


class Server:
    """A server that speaks OpenAI's API, at `url` (with or without /v1)."""

    def __init__(self, url: str, options: Options, ask: Ask) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(f"--url {url} is not an http or https address")
        self._url = url
        self._secure = parts.scheme == "https"
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._headers = {"content-type": "application/json"}
        if options.api_key:
            self._headers["authorization"] = f"Bearer {options.api_key[0]}"
        self._body: dict[str, Any] = {"stream": True, "max_tokens": ask.max_tokens}
        chosen = {"temperature": ask.temperature, "seed": ask.seed}
        self._body |= {name: value for name, value in chosen.items() if value is not None}
        if options.source("model").kind != "default":
            self._body["model"] = options.model

    def answer(self, messages: Messages) -> Iterator[str]:
        """The pieces of the answer. Closing the iterator closes the connection, which stops it."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._address, timeout=600)
        try:
            body = json.dumps({**self._body, "messages": messages})
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise CliError(f"{self._url} answered {response.status}: {_reason(response)}")
            yield from _pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise CliError(
                f"cannot reach {self._url}: {error}", "is it running? start it with octavo serve"
            ) from None
        finally:
            connection.close()


def _pieces(response: http.client.HTTPResponse) -> Iterator[str]:
    """Content deltas of an event stream. Raises CliError for an error event."""
    for raw in response:
        line = raw.decode("utf-8").strip()
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise CliError(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            yield choice.get("delta", {}).get("content") or ""


def _reason(response: http.client.HTTPResponse) -> str:
    text = response.read(4096).decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text or response.reason
