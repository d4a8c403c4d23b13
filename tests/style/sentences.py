"""Length of sentences in README, CONTRIBUTING and docs/: ``python -m tests.style.sentences``.

Prose only: code, tables, headings and lists of links are left out. A sentence ends with a full stop, a question mark
or the end of its paragraph or list item.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_MEAN_WORDS = 15.0
"""Largest mean number of words of a page's sentences."""
_CODE_BLOCK = re.compile(r"^```.*?^```", re.S | re.M)
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.M)
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\"'(\[*])")


def split_sentences(markdown: str) -> list[str]:
    """The sentences of a Markdown text's prose."""
    text = _CODE_BLOCK.sub("\n\n", markdown)
    text = _LIST_ITEM.sub("\n\n", text)
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not re.match(r"\s*(\||#|<|!\[|>)", line)]
        if lines:
            paragraphs.append(" ".join(lines))
    sentences = [sentence for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph)]
    return [sentence for sentence in sentences if count_words(sentence)]


def count_words(sentence: str) -> int:
    """Words of a sentence; inline code and a link's address count as one."""
    sentence = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence))
    return len(re.findall(r"[\w'’/-]*\w[\w'’/-]*", sentence))


def mean_words(markdown: str) -> float:
    """Mean number of words of a sentence; 0 without any."""
    counts = [count_words(sentence) for sentence in split_sentences(markdown)]
    return sum(counts) / len(counts) if counts else 0.0


def list_pages() -> list[Path]:
    """List README, CONTRIBUTING and every page of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Print the mean of every page; exit with 1 where one is over the limit."""
    means = {page.relative_to(ROOT).as_posix(): mean_words(page.read_text()) for page in list_pages()}
    for name, mean in means.items():
        print(
            f"{name}: {mean:.1f} words a sentence"
            + (f", more than {MAX_MEAN_WORDS:g}" if mean > MAX_MEAN_WORDS else "")
        )
    raise SystemExit(1 if max(means.values()) > MAX_MEAN_WORDS else 0)


if __name__ == "__main__":
    main()
