"""A language model behind any OpenAI-compatible server, with a disk cache, budgets and counted usage (extra ``llm``).

The `openai` SDK carries the requests, its retries included; `diskcache` keeps the answers. Serve a local model with
vLLM, llama.cpp or Ollama and give its address as `base_url`. The key comes from the SDK's environment variable
``OPENAI_API_KEY`` only, and is never written anywhere.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from iclr_shared.errors import InputError, Unavailable, require

Messages = Sequence[Mapping[str, Any]]


class LLMError(Unavailable):
    """The server did not answer as asked."""


class AuthenticationError(LLMError):
    """The key is missing or refused: set OPENAI_API_KEY."""


class TransientError(LLMError):
    """Still failing after all retries (rate limit, time-out, server error, no connection); try again later."""


class BadRequestError(LLMError):
    """The server refuses the request as it is: wrong model name, too long a prompt, an unknown parameter."""


class BudgetExceeded(LLMError):
    """The next call would pass the budget; what was answered is in the cache."""


class CacheMiss(LLMError):
    """``cache="only"`` and this request was never answered."""


@dataclass
class Usage:
    """What was spent: calls sent to the server, answers from the cache, tokens in and out."""

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Answer:
    """One completion.

    Args:
        text: of the answer; empty if the model gave none.
        finish_reason: ``"stop"``, or ``"length"`` where the answer was cut.
        cached: whether it came from the disk.
    """

    text: str
    finish_reason: str
    cached: bool = False


@dataclass
class LLM:
    """A model on a server.

    Args:
        model: name that the server knows.
        base_url: such as ``http://localhost:8000/v1``; None is the SDK's default.
        cache: True keeps answers, False asks always, ``"only"`` never asks (replays, tests).
        cache_dir: default is the user's cache folder for iclr.
        max_retries: by the SDK, with exponential waits, for rate limits, time-outs and server errors.
        timeout: seconds for one request.
        budget_calls, budget_tokens: hard stops, over the life of this object; None is no limit.
    """

    model: str
    base_url: str | None = None
    cache: bool | Literal["only"] = True
    cache_dir: Path | None = None
    max_retries: int = 5
    timeout: float = 60.0
    budget_calls: int | None = None
    budget_tokens: int | None = None
    usage: Usage = field(default_factory=Usage, init=False)

    def __post_init__(self):
        if not self.model:
            raise InputError("Name the model, as the server knows it.")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise InputError(f"The server's address must start with http:// or https://, got {self.base_url!r}.")
        self._openai = require("openai", "iclr-shared[llm]")
        self._lock = threading.Lock()
        self._store = None
        if self.cache:
            import platformdirs

            diskcache = require("diskcache", "iclr-shared[llm]")
            folder = self.cache_dir or Path(platformdirs.user_cache_dir("iclr")) / "llm"
            # JSON instead of diskcache's default, which is pickle.
            self._store = diskcache.Cache(str(folder), disk=diskcache.JSONDisk, eviction_policy="none")

    def complete(self, messages: Messages, *, sample: int = 0, **params: Any) -> Answer:
        """Answer a chat.

        Args:
            messages: ``[{"role": "user", "content": "..."}, ...]``.
            sample: index of the sample: with temperature above 0, n indices give n answers, each kept.
            **params: of the chat API, such as ``temperature=0.0, max_tokens=512``.

        Raises:
            AuthenticationError, TransientError, BadRequestError: as the server answers.
            BudgetExceeded, CacheMiss: as set above.
        """
        request, stored = self._prepare(messages, sample, params)
        if stored:
            return stored
        with self._mapped_errors(), self._client(self._openai.OpenAI) as client:
            response = client.chat.completions.create(model=self.model, **request)
        return self._keep(request, sample, response)

    async def acomplete(self, messages: Messages, *, sample: int = 0, **params: Any) -> Answer:
        """`complete`, to be awaited."""
        request, stored = self._prepare(messages, sample, params)
        if stored:
            return stored
        with self._mapped_errors():
            async with self._client(self._openai.AsyncOpenAI) as client:
                response = await client.chat.completions.create(model=self.model, **request)
        return self._keep(request, sample, response)

    def complete_all(self, chats: Iterable[Messages], *, concurrency: int = 8, **params: Any) -> list[Answer]:
        """Answer many chats, `concurrency` at a time, in their order. A failure propagates once all are done.

        Each answer is in the cache as soon as it arrives, so that a repeated call asks only for what is missing.
        """
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=concurrency) as pool:
            futures = [pool.submit(self.complete, chat, **params) for chat in chats]
        return [future.result() for future in futures]

    def embed(self, texts: Sequence[str], **params: Any) -> list[list[float]]:
        """Embeddings of `texts`, in order, each cached by itself. Raises as `complete`."""
        requests = [{"input": text, **params} for text in texts]
        vectors = [self._cached("embed", request, 0) for request in requests]
        missing = [i for i, vector in enumerate(vectors) if vector is None]
        if missing:
            self._spend_call()
            with self._mapped_errors(), self._client(self._openai.OpenAI) as client:
                response = client.embeddings.create(model=self.model, input=[texts[i] for i in missing], **params)
            self._count(response.usage)
            for i, item in zip(missing, response.data, strict=True):
                vectors[i] = list(item.embedding)
                self._write("embed", requests[i], 0, vectors[i])
        return vectors

    def close(self) -> None:
        """Close the cache."""
        if self._store is not None:
            self._store.close()

    def _prepare(self, messages: Messages, sample: int, params: dict[str, Any]) -> tuple[dict[str, Any], Answer | None]:
        """The request and its stored answer; where there is none, a call is taken from the budget."""
        request = {"messages": [dict(message) for message in messages], **params}
        if (stored := self._cached("chat", request, sample)) is not None:
            return request, Answer(stored["text"], stored["finish_reason"], cached=True)
        self._spend_call()
        return request, None

    def _client(self, kind: Callable[..., Any]) -> Any:
        options = {"base_url": self.base_url, "max_retries": self.max_retries, "timeout": self.timeout}
        try:
            return kind(**options)
        except self._openai.OpenAIError:
            if self.base_url is None:
                raise AuthenticationError("No key for the server: set OPENAI_API_KEY, or give base_url.") from None
            return kind(**options, api_key="none")  # local servers want no key; the SDK wants some text

    def _keep(self, request: dict[str, Any], sample: int, response: Any) -> Answer:
        self._count(response.usage)
        if not response.choices:
            raise TransientError("The server answered without a completion.")
        choice = response.choices[0]
        stored = {"text": choice.message.content or "", "finish_reason": choice.finish_reason or "unknown"}
        self._write("chat", request, sample, stored)
        return Answer(**stored)

    def _key(self, kind: str, request: Mapping[str, Any], sample: int) -> str:
        text = json.dumps([kind, self.base_url, self.model, request, sample], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _cached(self, kind: str, request: Mapping[str, Any], sample: int) -> Any:
        stored = None if self._store is None else self._store.get(self._key(kind, request, sample))
        if stored is not None:
            with self._lock:
                self.usage.cached += 1
        elif self.cache == "only":
            raise CacheMiss(f"No stored answer of {self.model} to this request, and cache='only' forbids asking.")
        return stored

    def _write(self, kind: str, request: Mapping[str, Any], sample: int, value: Any) -> None:
        if self._store is not None:
            self._store.set(self._key(kind, request, sample), value)

    def _spend_call(self) -> None:
        with self._lock:
            if self.budget_calls is not None and self.usage.calls >= self.budget_calls:
                raise BudgetExceeded(f"The budget of {self.budget_calls} calls is spent.")
            if self.budget_tokens is not None and self.usage.tokens >= self.budget_tokens:
                raise BudgetExceeded(f"The budget of {self.budget_tokens} tokens is spent ({self.usage.tokens} used).")
            self.usage.calls += 1

    def _count(self, usage: Any) -> None:
        if usage is None:
            return
        with self._lock:
            self.usage.prompt_tokens += usage.prompt_tokens or 0
            self.usage.completion_tokens += getattr(usage, "completion_tokens", 0) or 0

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        """Turn the SDK's errors into our three kinds, without the request (it may hold a key)."""
        openai, where = self._openai, self.base_url or "the server"
        try:
            yield
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            why = f"{where} refuses the key (HTTP {error.status_code}). Set OPENAI_API_KEY."
            raise AuthenticationError(why) from None
        except openai.APITimeoutError:
            raise TransientError(f"{where} did not answer in time, retries included. Try again later.") from None
        except openai.APIConnectionError:
            raise TransientError(f"No connection to {where}. Is the server running?") from None
        except openai.APIStatusError as error:
            status = error.status_code
            if status in (408, 409, 429) or status >= 500:
                why = f"{where} failed with HTTP {status}, retries included. Try again later."
                raise TransientError(why) from None
            message = str(error.body.get("message", ""))[:300] if isinstance(error.body, dict) else ""
            raise BadRequestError(f"{where} refuses the request (HTTP {status}). {message}".rstrip()) from None
        except (openai.OpenAIError, json.JSONDecodeError) as error:
            why = f"{where} gave an answer that is no chat completion ({type(error).__name__})."
            raise TransientError(why) from None


class FakeLLM:
    """Stands in for `LLM` in tests and demonstrations: answers from a script, or by a rule.

    Args:
        script: the answers in order, or a function of the messages that returns the answer.
    """

    model = "fake"

    def __init__(self, script: Sequence[str] | Callable[[Messages], str]):
        self._rule = script if callable(script) else None
        self._script = None if callable(script) else iter(script)
        self.usage = Usage()
        self.requests: list[Messages] = []

    def complete(self, messages: Messages, *, sample: int = 0, **params: Any) -> Answer:
        """The next answer. Raises CacheMiss when the script is used up."""
        self.requests.append(messages)
        self.usage.calls += 1
        try:
            return Answer(self._rule(messages) if self._rule else next(self._script), "stop")
        except StopIteration:
            raise CacheMiss("The script of this FakeLLM is used up.") from None

    async def acomplete(self, messages: Messages, *, sample: int = 0, **params: Any) -> Answer:
        """`complete`, to be awaited."""
        return self.complete(messages, sample=sample, **params)

    def complete_all(self, chats: Iterable[Messages], *, concurrency: int = 8, **params: Any) -> list[Answer]:
        """Each of `chats`, in order."""
        return [self.complete(chat, **params) for chat in chats]
