"""Pairs of answers: files of them, those of rollouts with rewards, and what is left out."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightningbus.analysis.replay import write_parquet
from lightningbus.learner.backend import make_builder
from lightningbus.learner.batching.demonstrations import Demonstration
from lightningbus.learner.batching.preferences import Pair, Preference, Preferences, choose_pair
from lightningbus.learner.preference_files import load_preferences, read_preferences
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.chats import demonstrated_call
from tests.factories import model_call, rollout
from tests.learner.conftest import tiny_model, tiny_tokenizer
from tests.learner.test_preference_weights import preferring

USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "two?"), ("assistant", "2"), ("assistant", "5"))
)
PAIRS = [
    {"prompt": "one?", "chosen": "1", "rejected": "7"},
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    {"prompt": "three?", "chosen": "3", "rejected": "no"},
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("chat"), vocab_size=320)


def write_pairs(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts_of(preference: Preference, model: Path) -> list[list[tuple[str, str]]]:
    """Prompt and answer of each call, of the better answer and of the worse."""
    tokenizer = tiny_tokenizer(model)
    return [
        [(tokenizer.decode(call.prompt_ids), tokenizer.decode(call.response_ids)) for call in answer.calls]
        for answer in (preference.chosen, preference.rejected)
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "two?", "chosen": "2", "rejected": "5"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"messages": [USER], "chosen": "2", "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "two?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": None, "messages": [USER], "chosen": "2", "rejected": "5", "tools": None},
    ],
)
def test_a_pair_in_any_form_is_two_answers_to_a_prompt(chat_model: Path, tmp_path: Path, line: Any) -> None:
    (preference,) = load_preferences(write_pairs(tmp_path / "pairs.jsonl", [line]), chat_model)
    end = tiny_tokenizer(tmp_path).eos_token
    assert texts_of(preference, tmp_path) == [[("two?", "2" + end)], [("two?", "5" + end)]]
    assert (preference.chosen.id, preference.rejected.id) == ("pair-1/chosen", "pair-1/rejected")


def test_only_turns_after_the_prompt_are_compared(chat_model: Path, tmp_path: Path) -> None:
    """Answers of several turns, after a turn of the assistant that both share."""
    shared = [USER, GOOD, {"role": "user", "content": "and?"}]
    longer = [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "b"},
    ]
    lines = [
        {"prompt": shared, "chosen": longer, "rejected": [BAD]},
        {"chosen": [*shared, *longer], "rejected": [*shared, BAD]},
    ]
    end = tiny_tokenizer(tmp_path).eos_token
    for preference in load_preferences(write_pairs(tmp_path / "pairs.jsonl", lines), chat_model):
        assert texts_of(preference, tmp_path) == [
            [("two?2and?", "a" + end), ("two?2and?a?", "b" + end)],
            [("two?2and?", "5" + end)],
        ]


def test_parquet_of_pairs_is_read_as_lines_are(chat_model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}] * 2
    parquet.write_table(pa.Table.from_pylist(lines), tmp_path / "pairs.parquet")
    of_lines = load_preferences(write_pairs(tmp_path / "pairs.jsonl", lines), chat_model)
    of_table = load_preferences(tmp_path / "pairs.parquet", chat_model)
    assert [texts_of(each, tmp_path) for each in of_table] == [texts_of(each, tmp_path) for each in of_lines]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "line 1 is no JSON"),
        ('{"prompt": "x", "chosen": "y"}', "line 1: it has no chosen and rejected, each a text or a list of messages"),
        ('{"prompt": "x", "chosen": "y", "rejected": [1]}', "line 1: it has no chosen and rejected"),
        ('{"chosen": "y", "rejected": "z"}', "line 1: it has no prompt or messages, and chosen and rejected do not"),
        (json.dumps({"prompt": "x", "chosen": [USER], "rejected": "z"}), "line 1: chosen has no message of an assist"),
        (json.dumps({"prompt": [USER], "chosen": "z", "rejected": []}), "line 1: rejected has no message of an assist"),
    ],
)
def test_a_wrong_line_is_named(chat_model: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_preferences(tmp_path / "pairs.jsonl", chat_model)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_preferences(tmp_path / "absent.jsonl", chat_model)


def test_the_first_of_the_best_is_paired_with_the_first_of_the_worst() -> None:
    rewards = {"a": 0.5, "b": 1.0, "c": 0.0, "d": 1.0, "e": 0.0}
    assert choose_pair(list(rewards), rewards.__getitem__) == ("b", "c")
    assert choose_pair(["b", "d"], rewards.__getitem__) is None
    assert choose_pair(["a"], rewards.__getitem__) is None


def test_groups_of_rollouts_become_pairs(chat_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The best against the worst of each task, of all their calls; groups of equal rewards are counted."""
    turns = [model_call(0, [5, 6], [7]), model_call(1, [5, 6, 7, 8], [9, 10])]
    members = [rollout("a", 0, 0.5), rollout("a", 1, 1.0, calls=turns), rollout("a", 2, 0.0), rollout("a", 3, None)]
    equal = [rollout("b", number, 1.0) for number in range(3)]
    write_parquet(tmp_path / "all.parquet", [*members, *equal, rollout("c", 0, 1.0)])
    with caplog.at_level(logging.WARNING):
        (preference,) = load_preferences(tmp_path / "all.parquet", chat_model)
    assert (preference.chosen.id, preference.rejected.id) == ("a.1", "a.2")
    assert [call.response_ids.tolist() for call in preference.chosen.calls] == [[7], [9, 10]]
    assert "groups left out because no two of their rewards differ: 2" in caplog.text
    table = parquet.read_table(tmp_path / "all.parquet").drop_columns(["reward"])
    parquet.write_table(table, tmp_path / "bare.parquet")
    with pytest.raises(ValueError, match="line 1: it has no column reward: pairs are chosen by the rewards"):
        load_preferences(tmp_path / "bare.parquet", chat_model)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": "high"}, "line 4: reward is not a number but 'high'"),
        ({"reward": float("nan")}, "line 4: reward is not a number but 'nan'"),
        ({"prompt_ids": None}, "line 4: it has no prompt_ids"),
    ],
)
def test_a_wrong_row_of_a_rollout_is_named(
    chat_model: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    first = {"task": "t", "rollout": "a", "reward": 1.0, "call": 0, "prompt_ids": [5], "response_ids": [7]}
    second = first | {"rollout": "b", "reward": 0.0}
    path = tmp_path / "calls.jsonl"
    path.write_text(f"{json.dumps(first)}\n\n\n{json.dumps(second | changes)}\n")
    with pytest.raises(ValueError, match=sentence):
        load_preferences(path, chat_model)


def test_both_calls_of_rollouts_in_turn_are_compared(chat_model: Path, tmp_path: Path) -> None:
    rows = [
        {"task": "t", "rollout": name, "reward": reward, "call": index, "prompt_ids": [5], "response_ids": [7 + index]}
        for index in (0, 1)
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]
    path = write_pairs(tmp_path / "calls.jsonl", rows)
    (preference,) = load_preferences(path, chat_model)
    assert [len(answer.calls) for answer in (preference.chosen, preference.rejected)] == [2, 2]


def test_parts_of_a_prompt_and_of_answers_are_texts(chat_model: Path, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "?"}]
    in_parts = {"prompt": [{**USER, "content": parts}], "chosen": [GOOD], "rejected": [{**BAD, "content": ["5"]}]}
    in_text = {"prompt": [{**USER, "content": "two\n?"}], "chosen": [GOOD], "rejected": [BAD]}
    first, second = load_preferences(write_pairs(tmp_path / "pairs.jsonl", [in_parts, in_text]), chat_model)
    assert texts_of(first, tmp_path) == texts_of(second, tmp_path)


def pair(number: int, chosen: list[int], rejected: list[int]) -> Preference:
    sides = (("chosen", chosen), ("rejected", rejected))
    return Preference(
        *[Demonstration(f"{number}/{name}", [demonstrated_call(0, [1, 2], tokens)]) for name, tokens in sides]
    )


def test_every_pass_has_each_pair_once(model_path: Path) -> None:
    settings = preferring(model_path, batch_size=2)
    preferences = Preferences([pair(number, [number + 3], [number + 9, 4]) for number in range(5)], settings)
    taken = [preferences.take(step) for step in range(5)]
    pairs = [each for _, members in taken for each in members]
    for epoch, members in enumerate((pairs[:5], pairs[5:])):
        assert sorted(each.chosen for each in members) == [f"{number}/chosen#{epoch}" for number in range(5)]
        assert all(each.rejected == each.chosen.replace("chosen", "rejected") for each in members)
    for sequences, members in taken:
        ids = [name for each in members for name in (each.chosen, each.rejected)]
        assert [sequence.rollout_id for sequence in sequences] == ids


def test_pairs_that_teach_nothing_are_left_out(
    chat_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"prompt": "x", "chosen": "y" * 200, "rejected": "z"}
    path = write_pairs(tmp_path / "pairs.jsonl", [*PAIRS, long, {"prompt": "x", "chosen": "y", "rejected": "y"}])
    settings = preferring(chat_model, batch_size=2, path=path)
    with caplog.at_level(logging.WARNING):
        preferences = read_preferences(settings)
    assert (len(preferences), preferences.num_too_long, preferences.num_equal) == (3, 1, 1)
    assert "pairs left out because both answers are the same: 1" in caplog.text
    assert "pairs left out because an answer does not fit seq_len: 1" in caplog.text
    with pytest.raises(ValueError, match=r"preferences.path: .* holds no pair of different answers of at most seq_len"):
        Preferences([pair(0, [3], [3])], settings)
    batch = make_builder(settings).build([], 0, step=0)
    assert len(batch.pairs) == 2 and isinstance(batch.pairs[0], Pair) and len(batch.sequences) == 4
    assert batch.metrics["tokens/compared"] == batch.metrics["tokens"] > 0
    swapped = [Pair(each.rejected, each.chosen) for each in batch.pairs]
    digest = batch.compute_sha256()
    batch.pairs[:] = swapped
    assert batch.compute_sha256() != digest, "which answer is the better one counts"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "preferences are trained alone: with groups_per_step 0"),
        ({"groups_per_step": 0, "supervised": {"path": "f"}}, "preferences are trained alone: .* without `supervised`"),
        ({"groups_per_step": 0, "actor": {"ppo_epochs": 2}}, "preferences need one update a step"),
        ({"groups_per_step": 0, "actor": {"ppo_mini_batch_size": 4}}, "leave out .* actor.ppo_mini_batch_size"),
        ({"groups_per_step": 0, "preferences": {"path": "f", "beta": 0}}, "greater than 0"),
    ],
)
def test_settings_that_contradict_pairs_are_refused(changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSettings.model_validate({"model_path": "m", "preferences": {"path": "f"}, **changes})
