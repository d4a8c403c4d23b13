"""Little repositories of one file, each with a bug in its return line.

The docstring says what the function should return. Hidden tests call it.
"""

import random
from dataclasses import dataclass
from itertools import product

NAMES = [
    ("price", "tax"), ("width", "height"), ("distance", "hours"), ("income", "costs"), ("boxes", "apples"),
    ("rows", "columns"), ("score", "bonus"), ("weight", "load"), ("speed", "limit"), ("stock", "sold"),
    ("wages", "days"), ("points", "games"), ("litres", "guests"), ("pages", "chapters"), ("seats", "tickets"),
]  # fmt: skip
"""Arguments of a function of two numbers."""
LISTS = ["items", "prices", "words", "scores", "rows", "days", "cities", "steps", "lines", "colours"]
"""Arguments of a function of a list."""
KINDS = {
    "operator": {
        "plus": "{a} + {b}",
        "minus": "{a} - {b}",
        "times": "{a} * {b}",
        "divided by": "{a} / {b}",
    },
    "extreme": {"larger": "max({a}, {b})", "smaller": "min({a}, {b})"},
    "comparison": {
        "above": "{a} > {b}",
        "below": "{a} < {b}",
        "at least": "{a} >= {b}",
        "at most": "{a} <= {b}",
    },
    "place": {"first": "{a}[0]", "second": "{a}[1]", "last": "{a}[-1]"},
}
"""Each kind of repair: the word in the docstring, and the expression that it asks for."""
DOCSTRINGS = {
    "operator": "Return {a} {word} {b}.",
    "extreme": "Return the {word} of {a} and {b}.",
    "comparison": "Return whether {a} is {word} {b}.",
    "place": "Return the {word} of {a}.",
}
VALUES = {
    "operator": [(8, 2), (9, 3), (5, 4)],
    "extreme": [(8, 2), (3, 9)],
    "comparison": [(8, 2), (3, 9), (4, 4)],
    "place": [([5, 6, 7, 8],), ([3, 1, 2],)],
}
"""Arguments of the hidden test's calls; no two expressions of a kind give the same for all of them."""


@dataclass(frozen=True)
class Repair:
    """A repository with a bug: its docstring has ``word``, its code does what ``wrong_word`` says."""

    kind: str
    word: str
    wrong_word: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join([self.kind, self.word.replace(" ", "-"), *self.arguments])

    @property
    def file(self) -> str:
        return f"{self.arguments[0]}.py"

    @property
    def prompt(self) -> str:
        return f"Mend {self.file}: find() returns the wrong value."

    @property
    def right(self) -> str:
        """The expression that the docstring asks for."""
        return self._fill(KINDS[self.kind][self.word])

    @property
    def source(self) -> str:
        """The file with the bug."""
        docstring = self._fill(DOCSTRINGS[self.kind])
        wrong = self._fill(KINDS[self.kind][self.wrong_word])
        return f'def find({", ".join(self.arguments)}):\n    """{docstring}"""\n    return {wrong}\n'

    @property
    def command(self) -> str:
        """A command that mends the file."""
        return f"sed -i 's|return .*|return {self.right}|' {self.file}"

    @property
    def test(self) -> str:
        """The hidden test, which fails before."""
        lines = ["def test_find():", f"    from {self.arguments[0]} import find", ""]
        for values in VALUES[self.kind]:
            expected = eval(self.right, {}, dict(zip(self.arguments, values, strict=True)))
            lines.append(f"    assert find({', '.join(map(repr, values))}) == {expected!r}")
        return "\n".join(lines) + "\n"

    def _fill(self, text: str) -> str:
        return text.format(word=self.word, **dict(zip("ab", self.arguments, strict=False)))


def make_repairs(seed: int = 0) -> list[Repair]:
    """Make every repository, in an order by chance. The bug of each is by chance too."""
    chance = random.Random(seed)
    repairs = []
    for kind, expressions in KINDS.items():
        names = [(name,) for name in LISTS] if kind == "place" else NAMES
        for arguments, word in product(names, expressions):
            wrong_word = chance.choice([other for other in expressions if other != word])
            repairs.append(Repair(kind, word, wrong_word, arguments))
    chance.shuffle(repairs)
    return repairs
