"""A teacher that reads a hint: the student's answers are scored behind it, also by the trained model itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.teacher.teachers import Teachers
from lightningbus.learner.transitions.chats import ChatTemplate
from lightningbus.learner.transitions.hint import Hint, add_hint
from lightningbus.learner.transitions.transitions import build_transitions
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for, tiny_model, tiny_tokenizer
from tests.learner.scripted_teacher import ScriptedTeacher
from tests.learner.test_demonstrations import LINES, TEMPLATE, encode, render, text_of

TEXT = "say 7"
CHAT = (
    "{% for m in messages %}#{{ m['role'] }} {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}#a {% endif %}"
)
"""A chat template in the letters of the tiny tokenizer."""


def test_the_hint_stands_before_the_answer_whatever_came_before() -> None:
    hint = Hint.render(TEXT, TEMPLATE)
    for messages in (LINES[1][:2], LINES[1][:4]):
        prompt = np.array(encode(render(messages, None, True)))
        hinted = hint.insert(prompt)
        assert hinted is not None
        assert text_of(hinted) == render([*messages, {"role": "user", "content": TEXT}], None, True)
    begun = hint.insert(np.array(encode("<user>a~\n<assistant>b~\n<user>c~\n<assistant><think>")))
    assert begun is not None and text_of(begun).endswith(f"<user>c~\n<user>{TEXT}~\n<assistant><think>")
    assert hint.insert(np.array(encode("once upon a time"))) is None and hint.insert(np.array([1])) is None


@pytest.mark.parametrize(
    "template",
    [
        lambda messages, tools, begins: "".join(each["content"] for each in messages),
        lambda messages, tools, begins: render(messages[-1:], tools, begins),
        lambda messages, tools, begins: render(messages, tools, begins) + str(len(messages)),
        lambda messages, tools, begins: render([{**each, "content": "-"} for each in messages], tools, begins),
    ],
    ids=["no beginning", "the last message alone", "an end that changes", "no content"],
)
def test_a_template_that_renders_no_further_message_is_refused(template: Any) -> None:
    with pytest.raises(ValueError, match=r"teacher\.hint: the model's chat template renders no further message"):
        Hint.render(TEXT, ChatTemplate(template, encode, []))


def test_calls_that_are_no_chats_have_no_place_for_it() -> None:
    calls = build_transitions([model_call(0, encode("<user>a~\n<assistant>"), [5]), model_call(1, [1, 2], [3])])
    hinted, other = add_hint(calls, Hint.render(TEXT, TEMPLATE))
    assert other is None and hinted is not None
    assert text_of(hinted.prompt_ids) == f"<user>a~\n<user>{TEXT}~\n<assistant>"
    assert hinted.response_ids.tolist() == [5] and hinted.index == 0


async def test_answers_are_scored_behind_the_hint_once(tmp_path: Path) -> None:
    """The trained model is its own teacher: its probabilities of the same tokens after another prompt."""
    path = tiny_model(tmp_path / "model", vocab_size=320)
    tokenizer = tiny_tokenizer(path)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    first, answer = ids("#user one\n#a "), ids("two")
    calls = [
        model_call(0, first, answer),
        model_call(1, [*first, *answer, *ids("\n#user more\n#a ")], answer[:2]),
        model_call(2, ids("no chat"), answer),
    ]
    async with ScriptedTeacher(path) as server:
        fields = {"model": "policy", "hint": TEXT, "top_k": 2}
        settings = settings_for(path, checkpoint_dir=tmp_path / "c", teacher=fields)
        teachers = Teachers(settings, lambda _: server.url)
        groups = [group("a", *(rollout("a", sample, float(sample), calls=calls) for sample in range(2)))]
        await teachers.check()
        await teachers.score(groups)
        await teachers.close()
        batch, number = builder_for(settings).build(groups, 0), len(answer)
        scores = groups[0].rollouts[0].teacher_scores["teacher"]
        for prompt, response, part in (
            ("#user one\n#user say 7\n#a ", answer, slice(0, number)),
            ("#user one\n#a two\n#user more\n#user say 7\n#a ", answer[:2], slice(number, number + 2)),
        ):
            assert server.counts[tuple(ids(prompt) + response)] == 2  # rollouts
            expected = server.score(ids(prompt) + response)[-len(response) :]
            np.testing.assert_allclose(scores.logprobs[part], expected, atol=1e-5)
        assert np.isnan(scores.logprobs[number + 2 :]).all()
    assert batch.metrics["tokens/scored"] == 2 * (number + 2)


async def test_a_model_without_such_a_template_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model", vocab_size=320)
    settings = settings_for(path, checkpoint_dir=tmp_path / "c", teacher={"url": "http://t", "hint": TEXT})
    teachers = Teachers(settings, lambda _: None)
    with pytest.raises(LearnerError, match=r"teacher\.hint: the model's chat template renders no further message"):
        await teachers.check()
    await teachers.close()


def test_the_trained_model_is_its_own_teacher_with_a_hint_alone() -> None:
    fields = {"model_path": "m", "teacher": {"model": "policy"}}
    with pytest.raises(ValueError, match="name another one, or give it a `hint`"):
        LearnerSettings.model_validate(fields)
    assert LearnerSettings.model_validate({**fields, "teacher": {"model": "policy", "hint": TEXT}}).teachers
