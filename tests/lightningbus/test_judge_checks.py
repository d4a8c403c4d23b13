"""A dry run asks each judge of a run file one question."""

import asyncio
from typing import Any

import pytest

from lightningbus.bus.embedded.nats_server import free_port
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.judge_checks import check_judges
from lightningbus.run.settings.run_file import RunSettings
from tests.graders.endpoint import as_a_reasoning_model, judging

pytestmark = pytest.mark.integration


def find(url: str, **changes: Any) -> list[str]:
    judge = {"url": url, "model": "m", "rubric": "be right", **changes}
    settings = {"grader": {"graders": {"j": {"judge": judge}, "f": {"function": "a:b"}}}}
    return list(check_judges(RunSettings.model_validate(settings)))


async def test_a_judge_is_asked_once_and_the_fields_it_takes_are_named() -> None:
    async with judging(lambda text: '{"score": 10}') as endpoint:
        (line,) = await asyncio.to_thread(find, endpoint.url, compare="pairs")
        assert line == f"grader.graders.j.judge: m answers at {endpoint.url}" and len(endpoint.requests) == 1
        endpoint.refuse = as_a_reasoning_model
        (line,) = await asyncio.to_thread(find, endpoint.url)
        assert line.endswith(", and takes max_completion_tokens and no temperature")


async def test_a_judge_that_gives_no_score_or_does_not_answer_is_a_warning() -> None:
    async with judging(lambda text: "Let me think.") as endpoint:
        (line,) = await asyncio.to_thread(find, endpoint.url)
        assert line.startswith("warning: grader.graders.j.judge: the judge's answer has no JSON object")
        endpoint.faults.append(503)
        (line,) = await asyncio.to_thread(find, endpoint.url)
        assert line == f"warning: grader.graders.j.judge: {endpoint.url} does not answer: status 503"
    (line,) = await asyncio.to_thread(find, f"http://127.0.0.1:{free_port()}/v1")
    assert line.startswith("warning: grader.graders.j.judge: ")


async def test_a_judge_that_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with judging(lambda text: '{"score": 10}') as endpoint:
        endpoint.faults.append(404)
        with pytest.raises(UserError, match=r"^grader.graders.j.judge: judge 'j' refuses a request: status 404"):
            await asyncio.to_thread(find, endpoint.url)
        endpoint.faults.append(401)
        with pytest.raises(UserError, match=r"^grader.graders.j: .* refuses calls without a key"):
            await asyncio.to_thread(find, endpoint.url)
    with pytest.raises(UserError, match=r"^grader.graders.j: the environment has no NO_SUCH_KEY"):
        await asyncio.to_thread(find, endpoint.url, api_key_env="NO_SUCH_KEY")
