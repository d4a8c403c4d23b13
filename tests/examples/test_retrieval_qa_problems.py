"""Multi-hop retrieval: its questions are MuSiQue's, what is held out is not asked in training, answers get their F1."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightningbus.tasks.task_loading import load_tasks
from tests.examples.musique import data, lines, make, policies, scoring

RECORD: dict[str, Any] = {
    "id": "2hop__482757_12019",
    "paragraphs": [
        {
            "idx": 0,
            "title": "Maria Bodaness",
            "paragraph_text": "Mária Bodaness was a\nHungarian  painter, born in Eger.",
            "is_supporting": True,
        },
        {"idx": 1, "title": "Eger", "paragraph_text": "Eger is the seat of Heves County.", "is_supporting": True},
        {"idx": 2, "title": "Eger", "paragraph_text": "The town has a “castle”.", "is_supporting": False},
    ],
    "question": "In what county was Maria Bodaness born? ",
    "question_decomposition": [
        {"id": 482757, "question": "Maria Bodaness >> place of birth", "answer": "Eger", "paragraph_support_idx": 0},
        {"id": 12019, "question": "Of what county is #1 the seat?", "answer": "Heves", "paragraph_support_idx": 1},
    ],
    "answer": "Heves County",
    "answer_aliases": ["Heves", "Heves megye", "Heves"],
    "answerable": True,
}
"""Every field that MuSiQue's own have."""


def musique(folder: Path, train: list[Any], dev: list[Any]) -> Path:
    folder.mkdir()
    for name, records in (("train", train), ("dev", dev)):
        texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / f"musique_ans_v1.0_{name}.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def test_musiques_own_files_become_tasks_and_passages(tmp_path: Path) -> None:
    unanswerable = {**RECORD, "id": "no", "answerable": False}
    odd = {key: RECORD[key] for key in ("id", "question", "answer")} | {"answer_aliases": None, "paragraphs": []}
    source = musique(tmp_path / "musique", [RECORD, unanswerable, ""], [{**odd, "id": "bare"}])
    done = make(tmp_path / "out", "--musique", str(source))
    assert done.returncode == 0, done.stderr
    train, heldout = (load_tasks(tmp_path / "out" / f"{part}.jsonl") for part in ("train", "heldout"))
    assert [(problem.id, problem.input) for problem in (*train, *heldout)] == [
        (
            "2hop__482757_12019",
            {
                "question": "In what county was Maria Bodaness born?",
                "answers": ["Heves County", "Heves", "Heves megye"],
            },
        ),
        (
            "bare",
            {"question": "In what county was Maria Bodaness born?", "answers": ["Heves County"]},
        ),
    ]
    assert lines(tmp_path / "out" / "corpus" / "passages.jsonl") == [
        "Maria Bodaness: Mária Bodaness was a Hungarian painter, born in Eger.",
        "Eger is the seat of Heves County.",
        "Eger: The town has a “castle”.",
    ]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ("{", "musique_ans_v1.0_dev.jsonl line 2 is not JSON"),
        ([], "line 2 needs id, question, answer and paragraphs, each with title and paragraph_text"),
        ({**RECORD, "paragraphs": [{"title": "x"}]}, "line 2 needs id, question"),
        ({**RECORD, "answer": None}, "line 2 has something else than text"),
    ],
)
def test_a_record_that_is_not_musiques_is_named(tmp_path: Path, record: Any, sentence: str) -> None:
    done = make(tmp_path / "out", "--musique", str(musique(tmp_path / "musique", [RECORD], [RECORD, record])))
    assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--musique", "/no/where"], "No such file or directory: '/no/where/musique_ans_v1.0_train.jsonl'"),
        (["--train", "9999"], "questions left for train; asked for 9999"),
    ],
)
def test_too_little_is_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = make(tmp_path / "out", *options)
    assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr


def test_questions_made_anew_are_searched_in_an_index_made_anew(tmp_path: Path) -> None:
    assert make(tmp_path, "--train", "50", "--heldout", "10").returncode == 0
    old = tmp_path / "corpus" / "minilm.faiss"
    old.write_bytes(b"of other passages")
    assert make(tmp_path, "--train", "50", "--heldout", "10", "--seed", "1").returncode == 0
    assert not old.exists()


def test_what_is_held_out_is_asked_of_nobody_asked_about_in_training(tmp_path: Path) -> None:
    assert make(tmp_path).returncode == 0
    train, heldout = (lines(tmp_path / f"{part}_records.jsonl") for part in ("train", "heldout"))
    assert (len(train), len(heldout), len({item["id"] for item in train + heldout})) == (1700, 100, 1800)
    about = [{item["question"].rpartition(" of ")[2] for item in part} for part in (train, heldout)]
    assert not about[0] & about[1]
    for relation in ("province", "mayor", "river", "birthplace", "profession"):
        assert sum(f" {relation} of the " in item["question"] for item in heldout) >= 5, relation


def test_the_stand_in_has_musiques_format_and_its_steps_lead_to_its_answers(tmp_path: Path) -> None:
    assert make(tmp_path, "--train", "50", "--heldout", "10").returncode == 0
    built = lines(tmp_path / "stand_in" / "musique_ans_v1.0_train.jsonl")
    known = set(lines(tmp_path / "corpus" / "passages.jsonl"))
    assert len(built) == 50
    for item in built:
        assert item.keys() == RECORD.keys() and len(item["paragraphs"]) == 20
        assert all(paragraph.keys() == RECORD["paragraphs"][0].keys() for paragraph in item["paragraphs"])
        steps = item["question_decomposition"]
        assert all(step.keys() == RECORD["question_decomposition"][0].keys() for step in steps)
        supporting = [item["paragraphs"][step["paragraph_support_idx"]] for step in steps]
        assert [paragraph for paragraph in item["paragraphs"] if paragraph["is_supporting"]] == sorted(
            supporting, key=lambda paragraph: paragraph["idx"]
        )
        assert all(step["answer"] in place["paragraph_text"] for step, place in zip(steps, supporting, strict=True))
        assert steps[-1]["answer"] == item["answer"] and {data.passage(place) for place in supporting} <= known


def test_a_seed_makes_the_same_questions_and_another_makes_others(tmp_path: Path) -> None:
    def make_lines(seed: int, folder: str) -> list[str]:
        assert make(tmp_path / folder, "--seed", str(seed)).returncode == 0
        return [(tmp_path / folder / name).read_text() for name in ("train_records.jsonl", "corpus/passages.jsonl")]

    assert make_lines(1, "a") == make_lines(1, "b") != make_lines(2, "c")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<answer>Heves County</answer>", 1.0),
        ("<answer> the Heves county. </answer>", 1.0),
        ("So it is <answer>\nHeves\n</answer>!", 1.0),
        ("<answer>Heves County in Hungary</answer>", 0.9 * 2 / 3 + 0.1),
        ("<answer>Eger</answer>", 0.1),
        ("<answer>a</answer>", 0.1),
        ("<answer>Eger</answer> <answer>Heves</answer>", 0.9),
        ("<answer>Heves</answer> <answer></answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>Heves", 0.0),
        ("Heves County", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_is_f1_and_a_tenth_for_the_form(text: str, reward: float) -> None:
    assert scoring.reward(text, ["Heves County", "Heves"]) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("text", "answer", "f1"),
    [
        ("The New York Times", "new york times", 1.0),
        ("new new york", "new york new", 1.0),
        ("york york", "york", 2 / 3),
        ("U.S.", "us", 1.0),
        ("the", "an", 1.0),
        ("", "york", 0.0),
    ],
)
def test_f1_is_that_of_squad(text: str, answer: str, f1: float) -> None:
    assert scoring.f1(text, answer) == pytest.approx(f1)


def test_the_scripted_policy_goes_on_from_what_it_was_given() -> None:
    question = {"role": "user", "content": RECORD["question"].strip()}
    first, second = (data.passage(item) for item in RECORD["paragraphs"][:2])

    def answer_to(*searches: tuple[str, str], **flaws: float) -> Any:
        messages = [question]
        for number, (query, actual) in enumerate(searches):
            function = {"name": "search", "arguments": json.dumps({"query": query})}
            messages.append({"role": "assistant", "tool_calls": [{"id": str(number), "function": function}]})
            messages.append({"role": "tool", "content": actual})
        answer = policies.Policy([RECORD], flaws).answer(messages)
        calls = answer.get("tool_calls")
        return json.loads(calls[0]["function"]["arguments"])["query"] if calls else answer["content"]

    birth, seat = "Maria Bodaness >> place of birth", "Of what county is Eger the seat?"
    assert answer_to() == birth
    assert answer_to(verbatim=1.0) == question["content"]
    assert answer_to((question["content"], "something else"), verbatim=1.0) == birth
    assert answer_to((birth, f"something\n{first}")) == seat
    assert answer_to((birth, first), stops=1.0) == "<answer> Eger </answer>"
    assert answer_to((birth, first), stops=1.0, untagged=1.0) == "Eger"
    assert answer_to((birth, first), (seat, second)) == "<answer> Heves </answer>"
    assert answer_to((birth, "something else")) == "<answer> unknown </answer>"
    with pytest.raises(ValueError, match="no such flaw: lazy"):
        policies.Policy([RECORD], {"lazy": 1.0})
