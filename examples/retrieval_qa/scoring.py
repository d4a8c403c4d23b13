"""The reward of an answer: 0.9 for what it says, as token F1, and 0.1 for its form.

F1 is that of SQuAD, which MuSiQue's own evaluation takes too: the best over the answer and its aliases.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable

CORRECT, FORM = 0.9, 0.1
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def reward(text: str, answers: Iterable[str]) -> float:
    """Between 0 and 1. Only what stands in the last ``<answer>`` counts; the form is one of them, and not empty."""
    results = [inside.strip() for inside in ANSWER.findall(text)]
    if not results:
        return 0.0
    form = len(results) == 1 and results[0] != ""
    return CORRECT * max(f1(results[-1], answer) for answer in answers) + FORM * form


def f1(text: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words."""
    actual, wanted = words(text), words(answer)
    if not actual or not wanted:
        return float(actual == wanted)
    common = sum((Counter(actual) & Counter(wanted)).values())
    return 2 * common / (len(actual) + len(wanted))


def words(text: str) -> list[str]:
    """Lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
