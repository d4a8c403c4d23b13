"""Whether the judges of a run file answer, by one question each."""

import asyncio
from collections.abc import Iterator

import aiohttp

from lightningbus.graders.errors import GraderError, GradingFailedError, UnusableGradeError
from lightningbus.graders.judges.cache import JudgeCache
from lightningbus.graders.judges.judge import Judge, UnansweredError
from lightningbus.graders.judges.prompts import ask_for_score, read_score
from lightningbus.graders.settings import JudgeSettings
from lightningbus.graders.submission import Submission
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings

ANSWER_SECONDS = 60.0
"""Longest wait for a judge's answer, in seconds."""
SUBMISSION = Submission("dry-run", "trial", "trial", "trial", 0, 1, "2 + 2", "4")


def check_judges(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each judge; raise `UserError` if its endpoint refuses the key or the question."""
    graders = settings.grader.graders if settings.grader is not None else {}
    for name, grader in graders.items():
        if grader.judge is not None:
            yield asyncio.run(_ask(name, grader.judge))


async def _ask(name: str, judge: JudgeSettings) -> str:
    place, seconds = f"grader.graders.{name}.judge", min(judge.timeout_seconds, ANSWER_SECONDS)
    settings = judge.model_copy(update={"compare": "alone", "timeout_seconds": seconds})
    cache = JudgeCache(None)
    try:
        async with aiohttp.ClientSession() as session:
            client = Judge(name, settings, cache, session)
            answer = await client.ask_once(ask_for_score(settings, SUBMISSION))
        read_score(settings, answer.text)
    except GraderError as error:
        raise UserError(f"grader.{error}") from error
    except GradingFailedError as error:
        raise UserError(f"{place}: {error}") from error
    except UnusableGradeError as error:
        return f"warning: {place}: {error}; a judge that thinks first needs more max_tokens"
    except (UnansweredError, aiohttp.ClientError, TimeoutError) as error:
        return f"warning: {place}: {judge.url} does not answer: {str(error) or type(error).__name__}"
    finally:
        cache.close()
    fields = client.fields.describe()
    return f"{place}: {judge.model} answers at {judge.url}{fields and f', and takes {fields}'}"
