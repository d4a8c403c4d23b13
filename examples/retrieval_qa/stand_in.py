"""A small stand-in for MuSiQue, made from a seed, in MuSiQue's own files.

Made-up people, books and towns, a sentence for each fact, and questions that take two of them: "What is the province
of the birthplace of Ada Brook?" Nobody and nothing that is asked about in training is asked about in what is held out.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FIRST = (
    "Ada", "Adam", "Alice", "Anna", "Ben", "Carl", "Clara", "Daniel", "Emma", "Eric", "Frank", "George",
    "Grace", "Henry", "Ida", "Jack", "Laura", "Lucy", "Mark", "Nina", "Oscar", "Paul", "Rosa", "Simon",
)  # fmt: skip
LAST = (
    "Baker", "Barnes", "Bishop", "Brook", "Carter", "Cole", "Cooper", "Cross", "Fisher", "Foster", "Grant", "Hale",
    "Hunter", "Lane", "Mason", "Miller", "Moore", "Parker", "Porter", "Reed", "Stone", "Turner", "Ward", "West",
)  # fmt: skip
TOWNS = (
    "Ashford", "Bergen", "Bolton", "Bristol", "Burton", "Calais", "Chester", "Dalton", "Derby", "Dover", "Durham",
    "Exeter", "Falmouth", "Florence", "Geneva", "Grafton", "Hamburg", "Hastings", "Kendal", "Kingston", "Lancaster",
    "Leeds", "Lincoln", "Lisbon", "Malmo", "Milan", "Newport", "Norwich", "Odessa", "Oxford", "Perth", "Plymouth",
    "Preston", "Reading", "Riga", "Salem", "Seville", "Sheffield", "Stafford", "Taunton", "Trenton", "Turin",
    "Utrecht", "Verona", "Warwick", "Weston", "Windsor", "York",
)  # fmt: skip
PROVINCES = ("Alba", "Borea", "Corvia", "Delmar", "Elyria", "Fenland", "Galen", "Harland")
RIVERS = ("Amber", "Bright", "Cedar", "Dark", "Eagle", "Green", "Long", "Silver")
TRADES = ("baker", "dancer", "doctor", "farmer", "judge", "lawyer", "painter", "pilot", "sailor", "singer")
COLORS = ("Black", "Blue", "Broken", "Empty", "Frozen", "Golden", "Hidden", "Lost", "Quiet", "Secret", "White", "Wild")
THINGS = (
    "Bridge",
    "Castle",
    "Forest",
    "Garden",
    "Harbor",
    "House",
    "Island",
    "Letter",
    "Mirror",
    "Road",
    "Sea",
    "Winter",
)
PEOPLE, BOOKS = 520, 140
PARAGRAPHS = 20
"""Of a record, as MuSiQue's have; all but two are about something else."""

SAID = {
    "birthplace": "{0} was born in {1}.",
    "profession": "{0} is a {1} by profession.",
    "author": "The book {0} was written by {1}.",
    "province": "{0} lies in the province of {1}.",
    "mayor": "The mayor of {0} is {1}.",
    "river": "The river in {0} is the {1}.",
}
CHAINS = (
    *(("birthplace", second) for second in ("province", "mayor", "river")),
    *((first, second) for first in ("author", "mayor") for second in ("birthplace", "profession")),
)


@dataclass(frozen=True)
class Fact:
    """What somebody's or something's ``relation`` is."""

    number: int
    about: str
    relation: str
    value: str

    @property
    def paragraph(self) -> dict:
        """Title and text, as MuSiQue has them."""
        return {"title": self.about, "paragraph_text": SAID[self.relation].format(self.about, self.value)}


def facts(rng: random.Random) -> list[Fact]:
    """All that there is to know."""
    people = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], PEOPLE)
    books = rng.sample([f"{color} {thing}" for color in COLORS for thing in THINGS], BOOKS)
    known = [(person, "birthplace", rng.choice(TOWNS)) for person in people]
    known += [(person, "profession", rng.choice(TRADES)) for person in people]
    known += [(book, "author", author) for book, author in zip(books, rng.sample(people, BOOKS), strict=True)]
    known += [(town, "mayor", mayor) for town, mayor in zip(TOWNS, rng.sample(people, len(TOWNS)), strict=True)]
    known += [(town, "province", rng.choice(PROVINCES)) for town in TOWNS]
    known += [(town, "river", rng.choice(RIVERS)) for town in TOWNS]
    return [Fact(number, *item) for number, item in enumerate(known)]


def records(known: list[Fact], rng: random.Random) -> Iterator[list[dict]]:
    """All questions, in lots of those about one of them."""
    by_subject: dict[tuple[str, str], Fact] = {(fact.about, fact.relation): fact for fact in known}
    for about in dict.fromkeys(fact.about for fact in known):
        chains = [(by_subject.get((about, first)), second) for first, second in CHAINS]
        yield [
            record(first, by_subject[first.value, second], known, rng) for first, second in chains if first is not None
        ]


def record(first: Fact, second: Fact, known: list[Fact], rng: random.Random) -> dict:
    """A question in MuSiQue's format, with its two steps and the paragraphs they rest on."""
    others = rng.sample([fact for fact in known if fact not in (first, second)], PARAGRAPHS - 2)
    sample = rng.sample([first, second, *others], PARAGRAPHS)
    steps = ((first, f"{first.relation} of {first.about}"), (second, f"{second.relation} of #1"))
    who = "Who" if second.relation == "mayor" else "What"
    return {
        "id": f"2hop__{first.number}_{second.number}",
        "paragraphs": [
            {"idx": at, **fact.paragraph, "is_supporting": fact in (first, second)} for at, fact in enumerate(sample)
        ],
        "question": f"{who} is the {second.relation} of the {first.relation} of {first.about}?",
        "question_decomposition": [
            {"id": fact.number, "question": request, "answer": fact.value, "paragraph_support_idx": sample.index(fact)}
            for fact, request in steps
        ],
        "answer": second.value,
        "answer_aliases": [],
        "answerable": True,
    }


def make(folder: Path, train: int, heldout: int, seed: int) -> None:
    """Write ``musique_ans_v1.0_train.jsonl`` and ``musique_ans_v1.0_dev.jsonl`` into a folder."""
    rng = random.Random(seed)
    lots = list(records(facts(rng), rng))
    rng.shuffle(lots)
    parts: dict[str, list[dict]] = {"dev": [], "train": []}
    for lot in lots:
        parts["dev" if len(parts["dev"]) < heldout else "train"].extend(lot)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("dev", heldout)):
        if len(parts[name]) < count:
            raise SystemExit(f"there are {len(parts[name])} questions left for {name}; asked for {count}")
        chosen = rng.sample(parts[name], count)
        lines = "".join(json.dumps(item) + "\n" for item in chosen)
        (folder / f"musique_ans_v1.0_{name}.jsonl").write_text(lines, encoding="utf-8")
