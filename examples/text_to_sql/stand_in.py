"""A small stand-in for Spider, made from a seed, in Spider's own files.

Eight SQLite databases of two tables each, and templated questions of seven kinds. No two questions have the same
query, so what is held out is neither asked nor answered in training. For an eighth kind, `lookups`, there are hotels:
only their rows say which of two tables answers a question.
"""

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from database import run_query

PEOPLE = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon",
    "Kim", "Leo", "Mia", "Ned", "Ola", "Pia", "Ray", "Sue", "Tom", "Uma",
)  # fmt: skip
THINGS = (
    "Amber", "Birch", "Coral", "Dawn", "Ember", "Fern", "Glow", "Haze", "Iris",
    "Jade", "Kite", "Lark", "Moss", "Nova", "Opal", "Pine", "Reef", "Sage",
)  # fmt: skip
COUNTRIES = ("Chile", "France", "Japan", "Kenya", "Peru")
CITIES = ("Bern", "Lima", "Oslo", "Paris", "Rome")
COLORS = ("black", "blue", "green", "red", "white")


@dataclass(frozen=True)
class Table:
    """What a table holds: ``label`` tells its rows apart, ``words`` fall into groups, ``numbers`` are never equal."""

    name: str
    label: str
    labels: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    numbers: dict[str, range]
    rows: int
    key: str = "id"
    parent: "Table | None" = None

    @property
    def columns(self) -> list[str]:
        return [self.label, *self.words, *self.numbers]

    @property
    def link(self) -> str:
        """How its rows name those of its parent, and the other way round."""
        assert self.parent is not None
        return f"{self.name}.{self.parent.name}_id = {self.parent.name}.{self.parent.key}"


def databases() -> dict[str, Table]:
    """The second table of each database; its parent is the first."""
    singer = Table("singer", "name", PEOPLE, {"country": COUNTRIES}, {"age": range(18, 70)}, 8)
    author = Table("author", "name", PEOPLE, {"country": COUNTRIES}, {"income": range(10, 90)}, 8, "author_id")
    keeper = Table("keeper", "name", PEOPLE, {"shift": ("day", "night")}, {"salary": range(20, 90)}, 6)
    teacher = Table("teacher", "name", PEOPLE, {"subject": ("art", "music", "sport")}, {"age": range(25, 66)}, 7)
    airport = Table("airport", "name", THINGS, {"city": CITIES}, {"size": range(2, 60)}, 6, "airport_id")
    brand = Table("brand", "name", THINGS, {"country": COUNTRIES}, {"rank": range(1, 90)}, 7)
    team = Table("team", "name", THINGS, {"city": CITIES, "color": COLORS}, {"score": range(40)}, 6, "team_id")
    artist = Table("artist", "name", PEOPLE, {"style": ("modern", "old", "pop")}, {"age": range(20, 95)}, 7)

    concert = {"city": CITIES}, {"year": range(1990, 2024), "capacity": range(100, 900, 10)}
    book = {"genre": ("crime", "drama", "poetry")}, {"length": range(60, 900), "price": range(5, 60)}
    animal = {"species": ("bear", "lion", "otter", "zebra")}, {"weight": range(5, 400), "age": range(1, 30)}
    course = {"room": ("east", "north", "south")}, {"length": range(10, 90), "fee": range(1, 30)}
    flight = {"airline": ("Aero", "Delta", "Polar")}, {"distance": range(200, 9000, 50), "price": range(40, 900)}
    product = {"color": COLORS}, {"price": range(1, 200), "stock": range(400), "weight": range(1, 90)}
    player = (
        {"position": ("back", "goal", "wing"), "country": COUNTRIES},
        {"score": range(60), "height": range(160, 205)},
    )
    painting = {"room": ("east", "north", "south")}, {"year": range(1700, 2020), "value": range(10, 900, 5)}
    return {
        "concert_hall": Table("concert", "title", THINGS, *concert, 16, parent=singer),
        "library": Table("book", "title", THINGS, *book, 18, "book_id", author),
        "zoo": Table("animal", "name", THINGS, *animal, 16, parent=keeper),
        "school": Table("course", "title", THINGS, *course, 14, parent=teacher),
        "air_travel": Table("flight", "code", THINGS, *flight, 18, "flight_id", airport),
        "shop": Table("product", "name", THINGS, *product, 18, parent=brand),
        "league": Table("player", "name", PEOPLE, *player, 20, "player_id", team),
        "museum": Table("painting", "title", THINGS, *painting, 16, parent=artist),
    }


def hotels(count: int, rng: random.Random) -> dict[str, Table]:
    """Databases whose two tables have the same columns; each person is in one of them, by chance."""
    people = [f"{first} {last}" for first in PEOPLE for last in (*THINGS, *CITIES, *COUNTRIES)]
    rng.shuffle(people)
    size = len(people) // (2 * count)
    numbers = {"age": range(18, 90), "room": range(100, 400)}
    by_name = {}
    for number in range(count):
        guests, workers = (tuple(people[half * size :][:size]) for half in (2 * number, 2 * number + 1))
        guest = Table("guest", "name", guests, {}, numbers, size)
        by_name[f"hotel_{number}"] = Table("worker", "name", workers, {}, numbers, size, parent=guest)
    return by_name


def lookups(table: Table) -> Iterator[tuple[str, str]]:
    """Of hotels alone."""
    for place, label in enumerate(table.labels if not table.words else ()):
        number = [*table.numbers][place % len(table.numbers)]
        yield f"What is the {number} of {label}?", f"SELECT {number} FROM {table.name} WHERE {table.label} = '{label}'"


def selections(table: Table) -> Iterator[tuple[str, str]]:
    for word, value in conditions(table):
        for wanted in [column for column in table.columns if column != word]:
            text = f"What is the {wanted} of each {table.name} whose {word} is '{value}'?"
            yield text, f"SELECT {wanted} FROM {table.name} WHERE {word} = '{value}'"


def comparisons(table: Table) -> Iterator[tuple[str, str]]:
    for number, values in table.numbers.items():
        for value in values[:: len(values) // 6]:
            for text, sign in (("over", ">"), ("under", "<")):
                request = f"What is the {table.label} of each {table.name} with {number} {text} {value}?"
                yield request, f"SELECT {table.label} FROM {table.name} WHERE {number} {sign} {value}"


def counts(table: Table) -> Iterator[tuple[str, str]]:
    for word, value in conditions(table):
        text = f"How many {table.name}s have {word} '{value}'?"
        yield text, f"SELECT count(*) FROM {table.name} WHERE {word} = '{value}'"


def extremes(table: Table) -> Iterator[tuple[str, str]]:
    for number in table.numbers:
        for text, function in (("highest", "max"), ("lowest", "min"), ("average", "avg")):
            request, query = f"What is the {text} {number} of", f"SELECT {function}({number}) FROM {table.name}"
            yield f"{request} all {table.name}s?", query
            for word, value in conditions(table):
                yield f"{request} {table.name}s whose {word} is '{value}'?", f"{query} WHERE {word} = '{value}'"


def rankings(table: Table) -> Iterator[tuple[str, str]]:
    for number in table.numbers:
        for text, order in (("highest", "DESC"), ("lowest", "ASC")):
            for count in range(1, 6):
                them = table.name if count == 1 else f"{count} {table.name}s"
                request = f"What is the {table.label} of the {them} with the {text} {number}?"
                yield request, f"SELECT {table.label} FROM {table.name} ORDER BY {number} {order} LIMIT {count}"


def groups(table: Table) -> Iterator[tuple[str, str]]:
    for word in table.words:
        yield (
            f"How many {table.name}s are there for each {word}?",
            f"SELECT {word}, count(*) FROM {table.name} GROUP BY {word}",
        )
        for number in table.numbers:
            for text, function in (("highest", "max"), ("lowest", "min"), ("average", "avg")):
                request = f"What is the {text} {number} of {table.name}s for each {word}?"
                yield request, f"SELECT {word}, {function}({number}) FROM {table.name} GROUP BY {word}"


def joins(table: Table) -> Iterator[tuple[str, str]]:
    parent = table.parent
    if parent is None:
        return
    both = f"{table.name} JOIN {parent.name} ON {table.link}"
    for word, value in [*conditions(parent), *((parent.label, label) for label in parent.labels)]:
        where = f"WHERE {parent.name}.{word} = '{value}'"
        text = f"What is the {table.label} of each {table.name} whose {parent.name} has {word} '{value}'?"
        yield text, f"SELECT {table.name}.{table.label} FROM {both} {where}"
        text = f"How many {table.name}s are there whose {parent.name} has {word} '{value}'?"
        yield text, f"SELECT count(*) FROM {both} {where}"


KINDS = {kind.__name__: kind for kind in (selections, comparisons, counts, extremes, rankings, groups, joins, lookups)}
USUAL = tuple(name for name in KINDS if name != "lookups")
NUM_HOTELS = 10


def conditions(table: Table) -> list[tuple[str, str]]:
    return [(word, value) for word, values in table.words.items() for value in values]


def fill(path: Path, child: Table, rng: random.Random) -> None:
    """Make the two tables of one database."""
    assert child.parent is not None
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in (child.parent, child):
            types = [f"{table.key} INTEGER PRIMARY KEY", *(f"{name} TEXT" for name in (table.label, *table.words))]
            types += [f"{name} INTEGER" for name in table.numbers]
            columns = [rng.sample(table.labels, table.rows)]
            columns += [[rng.choice(values) for _ in range(table.rows)] for values in table.words.values()]
            columns += [rng.sample(values, table.rows) for values in table.numbers.values()]
            if table.parent is not None:
                types.append(f"{table.parent.name}_id INTEGER REFERENCES {table.parent.name}({table.parent.key})")
                columns.append([rng.randint(1, table.parent.rows) for _ in range(table.rows)])
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(types)})")
            places = ", ".join("?" * len(types))
            rows = zip(range(1, table.rows + 1), *columns, strict=True)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", rows)


def records(directory: Path, chosen: dict[str, Table], names: Sequence[str], rng: random.Random) -> list[dict]:
    """All questions that have an answer, the kinds in turn, so that a part of them holds some of each."""
    kinds: list[list[dict]] = [[] for _ in names]
    for db_id, child in chosen.items():
        path = directory / "database" / db_id / f"{db_id}.sqlite"
        for request, kind in zip(kinds, (KINDS[name] for name in names), strict=True):
            for question, query in chain(kind(child.parent), kind(child)):
                if any(value for row in run_query(path, query) for value in row):
                    request.append({"db_id": db_id, "question": question, "query": query})
    for request in kinds:
        rng.shuffle(request)
    return [record for turn in zip_longest(*kinds) for record in turn if record is not None]


def make(
    directory: Path,
    train: int,
    heldout: int,
    seed: int,
    num_databases: int | None = None,
    kinds: Sequence[str] = USUAL,
) -> None:
    """Write ``train_spider.json``, ``dev.json`` and ``database/`` into a directory.

    ``num_databases``: how many of the eight, the first ones; ``kinds``: names of the kinds of questions.
    """
    rng = random.Random(seed)
    databases_used = dict(islice(databases().items(), num_databases))
    if "lookups" in kinds:
        databases_used |= hotels(NUM_HOTELS, rng)
    for db_id, child in databases_used.items():
        path = directory / "database" / db_id / f"{db_id}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fill(path, child, rng)
    actual = records(directory, databases_used, kinds, rng)
    if train + heldout > len(actual):
        raise SystemExit(f"there are {len(actual)} questions; asked for {train + heldout}")
    chosen = actual[: train + heldout]
    rng.shuffle(chosen)
    for name, part in (("train_spider", chosen[:train]), ("dev", chosen[train:])):
        (directory / f"{name}.json").write_text(json.dumps(part, indent=1), encoding="utf-8")
