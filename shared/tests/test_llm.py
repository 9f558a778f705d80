"""The client against a real HTTP server on the loopback interface that speaks the chat API."""

import asyncio
import http.server
import json
import threading
import time

import pytest

from iclr_shared.errors import InputError
from iclr_shared.llm import (
    LLM,
    AuthenticationError,
    BadRequestError,
    BudgetExceeded,
    CacheMiss,
    FakeLLM,
    TransientError,
)

ASK = [{"role": "user", "content": "2+2"}]


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan, self.requests, self.lock = [], [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((self.headers["Authorization"], request))
            step = self.server.plan.pop(0) if self.server.plan else 200
        if step == "slow":
            time.sleep(1.5)
            step = 200
        body = self.answer(request) if step in (200, "empty", "cut") else {"error": {"message": "no can do"}}
        if step == "empty":
            body["choices"] = []
        if step == "cut":
            body["choices"][0]["finish_reason"] = "length"
        data = b"<html>" if step == "html" else json.dumps(body).encode()
        self.send_response(step if isinstance(step, int) else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, request):
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        if self.path.endswith("embeddings"):
            texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
            data = [{"object": "embedding", "index": i, "embedding": [float(len(t)), 1.0]} for i, t in enumerate(texts)]
            return {"object": "list", "model": "m", "data": data, "usage": usage}
        message = {"role": "assistant", "content": f"echo {request['messages'][-1]['content']}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def llm(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    made = []

    def make(**options):
        made.append(LLM("m", server.url, **{"cache_dir": tmp_path / "cache", "max_retries": 0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_answers_are_kept(server, llm, tmp_path):
    model = llm()
    first, second = model.complete(ASK, temperature=0.0), model.complete(ASK, temperature=0.0)
    assert (first.text, first.finish_reason, first.cached) == ("echo 2+2", "stop", False)
    assert (second.text, second.cached) == ("echo 2+2", True)
    assert (model.usage.calls, model.usage.cached, model.usage.tokens) == (1, 1, 7)
    assert llm().complete(ASK, temperature=0.0).cached
    assert not llm().complete(ASK, temperature=0.5).cached
    assert not llm(cache=False).complete(ASK).cached
    assert server.requests[0][0] == "Bearer secret-key"
    assert b"secret-key" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_n_samples_stay_n_samples(server, llm):
    for _ in range(2):
        for sample in range(3):
            llm().complete(ASK, sample=sample, temperature=1.0)
    assert len(server.requests) == 3


def test_replay_only(server, llm):
    with pytest.raises(CacheMiss):
        llm(cache="only").complete(ASK)
    llm().complete(ASK)
    assert llm(cache="only").complete(ASK).text == "echo 2+2"
    assert len(server.requests) == 1


def test_await_and_many_at_once(server, llm):
    assert asyncio.run(llm().acomplete(ASK)).text == "echo 2+2"
    chats = [[{"role": "user", "content": str(i)}] for i in range(20)]
    assert [answer.text for answer in llm().complete_all(chats, concurrency=4)] == [f"echo {i}" for i in range(20)]
    assert len(server.requests) == 21


def test_an_interrupted_batch_asks_only_for_what_is_missing(server, llm):
    chats = [[{"role": "user", "content": str(i)}] for i in range(6)]
    server.plan[:] = [200, 200, 500, 200, 200, 200]
    with pytest.raises(TransientError):
        llm().complete_all(chats, concurrency=1)
    assert len(llm().complete_all(chats, concurrency=1)) == 6
    assert len(server.requests) == 7


def test_embeddings_are_kept_one_by_one(server, llm):
    assert llm().embed(["a", "bbb"]) == [[1.0, 1.0], [3.0, 1.0]]
    assert llm().embed(["bbb", "cc"]) == [[3.0, 1.0], [2.0, 1.0]]
    assert server.requests[1][1]["input"] == ["cc"]


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ([401], AuthenticationError),
        ([403], AuthenticationError),
        ([400], BadRequestError),
        ([404], BadRequestError),
        ([429], TransientError),
        ([500], TransientError),
        (["slow"], TransientError),
        (["empty"], TransientError),
        (["html"], TransientError),
    ],
)
def test_errors_come_in_three_kinds_and_hold_no_secret(server, llm, plan, kind):
    server.plan[:] = plan
    model = llm(timeout=1.0)
    with pytest.raises(kind) as caught:
        model.complete(ASK)
    assert "secret-key" not in str(caught.value)
    assert "no can do" in str(caught.value) or kind is not BadRequestError
    assert not llm().complete(ASK).cached  # a failure is not kept


def test_retries_and_cut_answers(server, llm):
    server.plan[:] = [429, 500, "cut"]
    assert llm(max_retries=3).complete(ASK).finish_reason == "length"
    assert len(server.requests) == 3


def test_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = LLM("m", "http://127.0.0.1:9/v1", cache_dir=tmp_path, max_retries=0)
    with pytest.raises(TransientError, match="Is the server running"):
        model.complete(ASK)
    model.close()


def test_without_a_key(server, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        LLM("m", cache=False).complete(ASK)
    assert LLM("m", server.url, cache=False).complete(ASK).text == "echo 2+2"  # a local server


def test_budgets(llm):
    model = llm(budget_calls=1)
    model.complete(ASK)
    model.complete(ASK)
    with pytest.raises(BudgetExceeded, match="1 calls"):
        model.complete(ASK, sample=1)
    model = llm(budget_tokens=7)
    model.complete(ASK, sample=2)
    with pytest.raises(BudgetExceeded, match="7 tokens"):
        model.complete(ASK, sample=3)


def test_bad_settings():
    with pytest.raises(InputError, match="http"):
        LLM("m", "localhost:8000")
    with pytest.raises(InputError, match="Name the model"):
        LLM("")


def test_fake():
    fake = FakeLLM(["one", "two"])
    assert [fake.complete(ASK).text, asyncio.run(fake.acomplete(ASK)).text] == ["one", "two"]
    with pytest.raises(CacheMiss):
        fake.complete(ASK)
    rule = FakeLLM(lambda messages: messages[0]["content"].upper())
    assert rule.complete_all([[{"role": "user", "content": "x"}]])[0].text == "X"
