"""How long the sentences of README and docs are: ``python -m tests.style.sentences``.

Prose only: code, tables, headings and lists of links are left out. A sentence ends with a full stop, a question mark
or the end of its paragraph or list item.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_MEAN_WORDS = {
    "README.md": 15.0,
    "docs/architecture.md": 15.0,
    "docs/concepts.md": 15.0,
    "docs/bring-your-agent.md": 18.0,
    "docs/deployment.md": 18.0,
    **{f"docs/from-{name}.md": 15.0 for name in ("agent-lightning", "art", "prime-rl", "trl", "verl")},
    "docs/guarantees.md": 18.0,
    "docs/lightningrl.md": 18.0,
    "docs/operations.md": 18.0,
    "docs/sizing.md": 18.0,
    "docs/store.md": 18.0,
    "docs/tutorial.md": 15.0,
    "docs/ui.md": 18.0,
}
"""Mean number of words of a sentence, by file."""
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


def main() -> None:
    """Print the mean of README and every page; exit with 1 where one is over its limit."""
    is_over = False
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        mean, limit = mean_words(path.read_text()), MAX_MEAN_WORDS.get(name)
        is_over |= limit is not None and mean > limit
        print(f"{name}: {mean:.1f} words a sentence" + (f", at most {limit:g}" if limit else ""))
    raise SystemExit(1 if is_over else 0)


if __name__ == "__main__":
    main()
