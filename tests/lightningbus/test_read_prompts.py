"""What the model read: the prompt's tokens as text, in Python, in the terminal and on the page."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import AddedToken, Tokenizer, models
from typer.testing import CliRunner

from lightningbus.analysis.transcript import Transcript
from lightningbus.cli.app import app
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.token_texts import read_tokens
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve
from tests.factories import batches
from tests.seed_store import insert
from tests.store.conftest import StoreProcess, prepared

WORDS = ["a", "b", "c", "d", "e", "<|user|>", "hello"]
"""Tokens by id; the prompts of `batches` are 5 and 6."""
READ = "<|user|> hello"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        insert(built.sql, batches("a", 0, parts=2))
        yield built


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the model; the current directory has the run's, with its settings on record."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model"
    path.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken(WORDS[5])])
    tokenizer.save(str(path / "tokenizer.json"))
    for part in ("store", "bus", "logs"):
        (tmp_path / "runs" / "run" / part).mkdir(parents=True)
    settings = {"name": "run", "inference": [{"model_path": str(path)}]}
    (tmp_path / "runs" / "run" / "run.json").write_text(json.dumps(settings))
    return path


@pytest.mark.integration
def test_a_transcript_has_what_the_model_read(store: StoreProcess, model: Path) -> None:
    transcript = Transcript.load(store.sql, "a.0", "run", has_prompts=True)
    assert [call["prompt"] for call in transcript.calls] == [READ, READ]
    assert f"the model read: {READ}" in repr(transcript)
    assert all("prompt" not in call for call in Transcript.load(store.sql, "a.0", "run").calls)


@pytest.mark.integration
def test_the_terminal_shows_what_the_model_read(store: StoreProcess, model: Path) -> None:
    command = ["rollouts", "show", "a.0", "--sql", store.url, "--prompts"]
    assert f"the model read: {READ}" in CliRunner().invoke(app, command).output
    elsewhere = model.rename(model.parent / "elsewhere")
    answer = CliRunner().invoke(app, [*command, "--tokenizer", str(elsewhere), "--json"])
    assert json.loads(answer.output)["model_calls"][0]["prompt"] == READ
    assert CliRunner().invoke(app, [*command, "--tokenizer", str(model.parent)]).exit_code == 2


@pytest.mark.integration
async def test_the_page_is_told_what_the_model_read(store: StoreProcess, model: Path) -> None:
    client = await asyncio.to_thread(connect_readonly, store.url, limits=UI)

    def read(run_id: str, model: str, token_ids: Any) -> str:
        if run_id != "run" or model != "policy":
            raise LookupError("it is not here")
        return read_tokens(run_id, model, token_ids)

    pages = UiServer(Reader(client), "127.0.0.1", lambda: "no bus here", read_tokens=read)
    key = {"run_id": "run", "rollout_id": "a.0", "execution_id": "a.0-1"}
    async with serve(pages, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:
        async with session.get("/api/prompt", params={**key, "call": "1"}) as response:
            assert await response.json() == {"prompt": READ}
        async with session.get("/api/prompt", params={**key, "call": "9"}) as response:
            assert (response.status, await response.json()) == (404, {"error": "no token of this prompt is on record"})


def test_a_tokenizer_that_is_not_here_is_asked_for(model: Path) -> None:
    with pytest.raises(UserError, match="run 'other' of model 'policy' has no directory here"):
        read_tokens("other", "policy", [5])
    with pytest.raises(UserError, match=r"has no node of model 'small' on record: .* --tokenizer DIR"):
        read_tokens("run", "small", [5])
