"""An assistant's turn in the text of a chat template, divided into the prompt and the answer. Pure."""

import re

from lightningbus.learner.transitions.chat_content import Message

THOUGHT_WORDS = r"[^<>/]*(?:think|thought|reason)[^<>]*>"
THOUGHT_START = re.compile(rf"<{THOUGHT_WORDS}\s*$")
"""The beginning of a thought at the end of a prompt, as templates of DeepSeek-R1's kind put it there."""
THOUGHT_END = re.compile(rf"</{THOUGHT_WORDS}")
THOUGHT_FIELDS = ("reasoning", "reasoning_content", "thinking")


def divide_turn(prompt: str, whole: str, question: Message, answer: Message) -> tuple[str, str] | None:
    """Return the prompt and the answer as the template writes them; None: the answer does not continue the prompt.

    A prompt may begin a thought, which the template leaves out of an answer without one. The prompt may have text in
    its last message, such as the system's, which the template moves once an answer follows: then the answer is the
    text after that message and its end.
    """
    if whole.startswith(prompt):
        return prompt, whole[len(prompt) :]
    header = prompt if _has_thought(answer) else THOUGHT_START.sub("", prompt)
    if whole.startswith(header):
        return header, whole[len(header) :]
    content = question.get("content")
    text = content.strip() if isinstance(content, str) else ""
    if not text or text not in header:
        return None
    _, end, rest = whole.rpartition(header[header.rfind(text) :])
    return (header, rest) if end else None


def _has_thought(message: Message) -> bool:
    content = message.get("content")
    texts = content if isinstance(content, list) else [content]
    return any(message.get(name) for name in THOUGHT_FIELDS) or any(THOUGHT_END.search(str(text)) for text in texts)
