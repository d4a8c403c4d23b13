"""Whatever the chat template, a chat that continues is its rendering, with answers as they were sampled."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import Environment
from transformers import Qwen2Tokenizer

from lightningbus.runners.gateway.continued_chat import ContinuedPrompt, continue_prompt
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import Change, TokenHistory, Tokenized

pytestmark = pytest.mark.unit

END = "<|im_end|>"
KEEPS = {
    "ChatML": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "trims": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
    ),
    "no space before answers": (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ '<|im_end|>' if m.role == 'assistant' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
}
"""Templates that never change what they have rendered."""
INST = "{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% elif m.role == 'user' %}[INST]"
CHANGES = {
    "Mistral: the system message is in the last turn of the user's": (
        "{% for m in messages %}" + INST + "{% if loop.last %}{{ messages[0].content }}\n\n{% endif %}"
        "{{ m.content }}[/INST]{% endif %}{% endfor %}"
    ),
    "the system message is repeated in the last turn of the user's": (
        "{{ messages[0].content }}{% for m in messages %}" + INST + "{% if loop.last %}{{ messages[0].content }} "
        "{% endif %}{{ m.content }}[/INST]{% endif %}{% endfor %}"
    ),
    "an answer begins with a word that history lacks": (
        "{% for m in messages %}" + INST + "{{ m.content }}[/INST]{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}think: {% endif %}"
    ),
}  # fmt: skip
"""Templates that render what was asked in another way as soon as it is answered."""
REWRITES = (
    "{% for m in messages %}" + INST.replace("m.content", "m.content.split('</think>')[-1]", 1)
    + "{{ m.content }}[/INST]{% endif %}{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{% for m in messages %}" + INST
    + "{{ m.content }}[/INST]{% endif %}{% endfor %}",
)  # fmt: skip
"""One forgets thoughts, in the last answer too; one begins with the number of turns."""
THINKS = "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n\n{% endif %}"
KEEPS_THOUGHTS = {
    "of all answers": KEEPS["ChatML"].replace("{{ m.content }}", THINKS + "{{ m.content }}"),
    "that the prompt begins": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n{{ m.reasoning }}\n"
        "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
}
DROPS_THOUGHTS = {
    "of all answers": KEEPS["ChatML"],
    "of all answers but the last": KEEPS_THOUGHTS["of all answers"].replace(
        "m.reasoning %}", "m.reasoning and loop.last %}"
    ),
    "beyond their beginning": KEEPS_THOUGHTS["of all answers"].replace("{{ m.reasoning }}", "{{ m.reasoning[:3] }}"),
}
WORDS = st.text(alphabet=st.sampled_from("abc \n\t12é冬"), max_size=12)
ASKED = WORDS.map(lambda text: f"q{text}")
THOUGHTS = st.text(alphabet=st.sampled_from("abc \n12é冬<k|m_"), min_size=4, max_size=12).filter(
    lambda text: text.strip() == text
)


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE that merges, across spaces and newlines too."""
    texts = ["abcabc the cat \n\n12 12 q:ab\n\nc assistant:a assistant: b", "think: a\n\n\nuser q é 冬"] * 50
    return Qwen2Tokenizer(eos_token=END).train_new_from_iterator(
        texts, 400, new_special_tokens=["<|im_start|>"], show_progress=False
    )


class Node:
    """Renders chats as an inference node does, by a template."""

    def __init__(self, tokenizer: Qwen2Tokenizer, template: str) -> None:
        self._tokenizer, self._template = tokenizer, Environment().from_string(template)
        self.begun = "<think>\n" if "assistant\n<think>" in template else ""
        """Beginning of an answer that the prompt ends with."""

    def render(self, body: dict[str, Any]) -> str:
        return body.get("prompt") or self._template.render(**body)

    async def tokenize(self, body: dict[str, Any]) -> Tokenized:
        token_ids = list(self._tokenizer.encode(self.render(body), add_special_tokens=False))
        texts = self._tokenizer.convert_ids_to_tokens(token_ids) if body.get("return_token_strs") else ()
        return Tokenized(token_ids, "".join(texts))


async def play(
    node: Node, tokenizer: Qwen2Tokenizer, turns: list[tuple[str, str]], *, is_divided: bool, thought: str = ""
) -> list[ContinuedPrompt | Change | None]:
    """Play a conversation, and compare what is sent with its rendering; an answer may be sampled letter by letter."""
    history, messages = TokenHistory(), [{"role": "system", "content": "s cat"}]
    prompts: list[ContinuedPrompt | Change | None] = []
    last: list[int] = []
    for question, answer in turns:
        messages = [*messages, {"role": "user", "content": question}]
        call = ChatRequest.parse({"model": "policy", "messages": messages}, chat=True)
        request = call.to_tokenize_request(messages, is_answered=False)
        rendered = (await node.tokenize(request)).token_ids
        prompt = await continue_prompt(history, call, call, {}, node.tokenize)
        is_spliced = isinstance(prompt, ContinuedPrompt)
        sent = prompt.token_ids if isinstance(prompt, ContinuedPrompt) else rendered
        assert "".join(tokenizer.decode(sent).split()) == "".join(node.render(request).split())
        assert not is_spliced or sent[: len(last)] == last
        prompts.append(prompt)
        text = f"<think>\n{thought}\n</think>\n\n{answer}".removeprefix(node.begun) if thought else answer
        pieces = text if is_divided else [text]
        sampled = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
        last = [*sent, *sampled, tokenizer.convert_tokens_to_ids(END)]
        reply = {"role": "assistant", "content": answer} | ({"reasoning": thought} if thought else {})
        history.add(call, reply, last, prompt.rendered if isinstance(prompt, ContinuedPrompt) else sent)
        messages = [*messages, reply]
    return prompts


PROPERTY = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("template", KEEPS.values(), ids=KEEPS)
@PROPERTY
@given(turns=st.lists(st.tuples(ASKED, WORDS), min_size=2, max_size=5), is_divided=st.booleans())
async def test_answers_stay_as_sampled_where_a_template_keeps_what_it_rendered(
    tokenizer: Qwen2Tokenizer, template: str, turns: list[tuple[str, str]], is_divided: bool
) -> None:
    prompts = await play(Node(tokenizer, template), tokenizer, turns, is_divided=is_divided)
    assert not any(isinstance(prompt, Change) for prompt in prompts)


@pytest.mark.parametrize("template", CHANGES.values(), ids=CHANGES)
@PROPERTY
@given(turns=st.lists(st.tuples(ASKED, WORDS), min_size=2, max_size=5), is_divided=st.booleans())
async def test_a_conversation_is_begun_anew_where_a_template_changes_what_was_asked(
    tokenizer: Qwen2Tokenizer, template: str, turns: list[tuple[str, str]], is_divided: bool
) -> None:
    prompts = await play(Node(tokenizer, template), tokenizer, turns, is_divided=is_divided)
    assert prompts == [None, *[Change.PROMPT] * (len(turns) - 1)]


@PROPERTY
@given(template=st.sampled_from(REWRITES), thoughts=st.lists(WORDS, min_size=2, max_size=4))
async def test_a_conversation_is_begun_anew_where_a_template_rewrites_an_answer_or_drops_a_part(
    tokenizer: Qwen2Tokenizer, template: str, thoughts: list[str]
) -> None:
    turns = [("q", f"{thought}b</think> a") for thought in thoughts]
    prompts = await play(Node(tokenizer, template), tokenizer, turns, is_divided=False)
    assert prompts == [None, *[Change.ANSWER] * (len(turns) - 1)]


@pytest.mark.parametrize("template", KEEPS_THOUGHTS.values(), ids=KEEPS_THOUGHTS)
@PROPERTY
@given(turns=st.lists(st.tuples(ASKED, WORDS), min_size=2, max_size=4), thought=THOUGHTS, is_divided=st.booleans())
async def test_thoughts_stay_as_sampled_where_a_template_keeps_them(
    tokenizer: Qwen2Tokenizer, template: str, turns: list[tuple[str, str]], thought: str, is_divided: bool
) -> None:
    prompts = await play(Node(tokenizer, template), tokenizer, turns, is_divided=is_divided, thought=thought)
    assert not any(isinstance(prompt, Change) for prompt in prompts)
    assert not is_divided or all(isinstance(prompt, ContinuedPrompt) for prompt in prompts[1:])


@pytest.mark.parametrize("template", DROPS_THOUGHTS.values(), ids=DROPS_THOUGHTS)
@PROPERTY
@given(turns=st.lists(st.tuples(ASKED, WORDS), min_size=2, max_size=4), thought=THOUGHTS, is_divided=st.booleans())
async def test_a_conversation_is_begun_anew_where_a_template_drops_thoughts(
    tokenizer: Qwen2Tokenizer, template: str, turns: list[tuple[str, str]], thought: str, is_divided: bool
) -> None:
    prompts = await play(Node(tokenizer, template), tokenizer, turns, is_divided=is_divided, thought=thought)
    assert prompts == [None, *[Change.ANSWER] * (len(turns) - 1)]


async def test_a_node_that_gives_no_strings_of_tokens_is_not_trusted(tokenizer: Qwen2Tokenizer) -> None:
    class Silent(Node):
        async def tokenize(self, body: dict[str, Any]) -> Tokenized:
            return Tokenized((await super().tokenize(body)).token_ids)

    prompts = await play(Silent(tokenizer, KEEPS["ChatML"]), tokenizer, [("a", "abc")] * 2, is_divided=True)
    assert prompts == [None, Change.UNKNOWN]
