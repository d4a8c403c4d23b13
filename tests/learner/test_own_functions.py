"""A user's own functions: whatever is wrong with them ends the learner with a sentence that names the line."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lightningbus.learner.batching.advantages import Estimator
from lightningbus.learner.batching.credit import Episode, resolve_credit_fn
from lightningbus.learner.errors import LearnerError, as_learner_error
from lightningbus.learner.selection.selector import TaskStatistics
from lightningbus.learner.settings.algorithm import ActorSettings, AlgorithmSettings, CreditSettings
from lightningbus.learner.settings.own_function import OwnFunction, OwnFunctionError
from lightningbus.learner.settings.user_code import describe_error
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.training.own_loss import compute_own_loss
from tests.commands import ROOT
from tests.factories import group, rollout
from tests.learner.conftest import builder_for, settings_for
from tests.learner.test_trainer import Start, batch_of, conversations, masters, sampled_by

HERE = Path(__file__)
NAN, INF = float("nan"), float("inf")
EPISODES = (Episode("a", 1.0, (0.0, 0.0), ("x", "y")), Episode("a", 0.0, (0.0,), ("x",)))


@pytest.fixture
def import_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """The import path of a function."""

    def name(function: Any) -> str:
        module: Any = ModuleType("mine")
        module.function = function
        monkeypatch.setitem(sys.modules, "mine", module)
        return "mine:function"

    return name


def broken(*arguments: Any) -> Any:
    return dict[str, Any]()["length"]


def calls_torch(*arguments: Any) -> Any:
    return torch.zeros(2) @ torch.zeros(3)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (broken, f"raised KeyError: 'length' ({HERE}, line {inspect.getsourcelines(broken)[1] + 1})"),
        (calls_torch, f"({HERE}, line {inspect.getsourcelines(calls_torch)[1] + 1})"),
        (lambda scores: scores, "raised TypeError: "),
        (lambda *_: None, "returned None for 2 scores: it must be a list"),
        (lambda *_: 1.0, "returned 1.0 (float) for 2 scores: it must be a list"),
        (lambda *_: {"a": 1.0, "b": 2.0}, "(dict) for 2 scores: it must be a list"),
        (lambda scores, *_: (score for score in scores), "(generator) for 2 scores: it must be a list"),
        (lambda *_: torch.tensor(1.0), "(Tensor) for 2 scores: it must be a list"),
        (lambda *_: [1.0, "2"], "returned what is not a number for 2 scores: '2' (str)"),
        (lambda *_: torch.zeros(2, 2), "returned what is not a number for 2 scores: "),
        (lambda *_: [NAN, INF], "returned values that are not finite, 2 of 2 for scores: nan, inf"),
    ],
)
def test_what_is_wrong_with_an_own_estimator_is_a_sentence(
    import_path: Callable[[Any], str], function: Any, sentence: str
) -> None:
    estimate = make_estimator(AlgorithmSettings(adv_estimator=import_path(function)))
    with pytest.raises(OwnFunctionError) as raised:
        estimate([1.0, 0.0], ["a", "a"], [1, 1])
    assert str(raised.value).startswith("algorithm.adv_estimator: mine:function ") and sentence in str(raised.value)


def test_an_estimator_says_a_few_of_its_values_that_are_not_finite(import_path: Callable[[Any], str]) -> None:
    estimate = make_estimator(AlgorithmSettings(adv_estimator=import_path(lambda scores, *_: [NAN] * len(scores))))
    with pytest.raises(OwnFunctionError, match=r"not finite, 500 of 500 for scores: nan, nan, nan, …$"):
        estimate([1.0] * 500, ["a"] * 500, [1] * 500)


def test_credit_by_part_of_the_docs_gives_each_call_the_reward_of_its_part(import_path: Callable[[Any], str]) -> None:
    (text,) = re.findall(r"```python\n(def by_part.*?)```", (ROOT / "docs" / "lightningrl.md").read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    builder = builder_for(settings_for(Path("m"), credit={"method": import_path(namespace["by_part"])}))
    parts = [{"brief": 0.0, "correct": 1.0}, {"brief": 1.0, "correct": 0.0}]
    members = [
        replace(rollout("a", sample, 0.5), named_rewards=named_rewards) for sample, named_rewards in enumerate(parts)
    ]
    advantages = builder.build([group("a", *members)], 0).advantages
    assert [[advantages[member.id, call] > 0 for call in (0, 1)] for member in members] == [
        [False, True],
        [True, False],
    ]


@pytest.mark.parametrize("kind", [Episode, Estimator, TaskStatistics])
def test_help_has_the_meaning_of_each_field_that_a_function_gets(kind: Any) -> None:
    text = inspect.getdoc(kind).partition("Fields:\n")[2]  # type: ignore[union-attr]
    assert re.findall(r"^    (\w+): \S", text, re.MULTILINE) == [each.name for each in fields(kind)]


def test_an_estimator_may_give_an_array_or_a_tensor(import_path: Callable[[Any], str]) -> None:
    for convert in (np.array, torch.tensor, tuple):
        estimate = make_estimator(
            AlgorithmSettings(adv_estimator=import_path(lambda scores, *_, to=convert: to(scores)))
        )
        assert estimate([1.0, 0.5], ["a", "a"], [1, 1]) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (broken, f"raised KeyError: 'length' ({HERE}, line {inspect.getsourcelines(broken)[1] + 1})"),
        (lambda *_: None, "returned None for 2 rollouts: it must be a list"),
        (lambda *_: [[1.0, 1.0]], "returned 1 values for 2 rollouts"),
        (lambda *_: [[1.0, 1.0], None], "returned None for 1 calls of a rollout: it must be a list"),
        (lambda *_: [[1.0], [1.0]], "returned 1 values for 2 calls of a rollout"),
        (lambda *_: [[1.0, "x"], [None]], "returned what is not a number for 2 calls of a rollout: 'x' (str)"),
        (lambda *_: [[None, NAN], [None]], "returned values that are not finite, 1 of 1 for calls of a rollout: nan"),
    ],
)
def test_what_is_wrong_with_own_credit_is_a_sentence(
    import_path: Callable[[Any], str], function: Any, sentence: str
) -> None:
    share = resolve_credit_fn(import_path(function))
    with pytest.raises(OwnFunctionError) as raised:
        share(EPISODES, make_estimator(AlgorithmSettings()), CreditSettings())
    assert str(raised.value).startswith("credit.method: mine:function ") and sentence in str(raised.value)


def test_credit_that_asks_a_broken_estimator_names_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("mine")
    module.broken, module.share = broken, lambda episodes, estimate, settings: estimate([1.0], ["a"], [1])
    monkeypatch.setitem(sys.modules, "mine", module)
    fields = {"credit": "mine:share", "algorithm": {"adv_estimator": "mine:broken"}}
    builder = builder_for(settings_for(Path("m"), **fields))
    with pytest.raises(OwnFunctionError, match=r"^algorithm.adv_estimator: mine:broken raised KeyError"):
        builder.build([group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))], 0)


def loss_of(function: Any, **changes: Any) -> torch.Tensor:
    """A user's loss on two calls, of two tokens and one."""
    mask = torch.tensor([[True, True], [True, False]])
    fields: dict[str, Any] = {
        "log_probs": torch.full((2, 2), -1.0, requires_grad=True) * mask,
        "old": torch.full((2, 2), -1.0) * mask,
        "advantages": torch.ones(2, 2) * mask,
        "mask": mask,
        "weights": torch.full((2, 2), 0.5) * mask,
        **changes,
    }
    loss: torch.Tensor = compute_own_loss(
        OwnFunction("actor.policy_loss", "mine:function", function), settings=ActorSettings(), **fields
    )
    return loss


def changes_in_place(log_prob: Any, *_: Any) -> Any:
    squared = log_prob.exp()
    loss = squared * squared
    squared += 1
    return loss


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (broken, f"raised KeyError: 'length' ({HERE}, line {inspect.getsourcelines(broken)[1] + 1})"),
        (changes_in_place, f"({HERE}, line {inspect.getsourcelines(changes_in_place)[1]})"),
        (lambda *_: None, "returned None, not a tensor of (2, 2): a loss per token"),
        (lambda *_: np.zeros((2, 2)), "(ndarray), not a tensor of (2, 2): a loss per token"),
        (lambda log_prob, *_: log_prob.sum(), "returned a tensor of (), not of (2, 2): a loss per token"),
        (lambda log_prob, *_: log_prob * NAN, "returned NaN for 3 of 3 tokens"),
        (lambda log_prob, *_: log_prob * 1e39 * 1e39, "returned an infinite loss for 3 of 3 tokens"),
        (lambda log_prob, old, *_: (log_prob - old).sqrt(), "returned a loss whose gradient is not finite"),
        (lambda log_prob, *_: log_prob.detach(), "returned a loss without a gradient: compute it from log_prob"),
        (lambda log_prob, *_: log_prob > 0, "returned a loss without a gradient: compute it from log_prob"),
    ],
)
def test_what_is_wrong_with_an_own_loss_is_a_sentence(function: Any, sentence: str) -> None:
    with pytest.raises(OwnFunctionError) as raised:
        loss_of(function)
    assert str(raised.value).startswith("actor.policy_loss: mine:function ") and sentence in str(raised.value)


def test_an_own_loss_and_its_gradient_are_weighed_and_padding_may_be_anything() -> None:
    log_probs = torch.full((2, 2), -1.0, requires_grad=True)
    loss = loss_of(lambda log_prob, old, advantages, mask, _: -log_prob / advantages, log_probs=log_probs)
    loss.backward()
    assert loss.item() == pytest.approx(1.5)
    assert log_probs.grad is not None and log_probs.grad.tolist() == [[-0.5, -0.5], [-0.5, 0.0]]


def test_a_loss_of_log_probabilities_that_are_not_finite_is_not_the_functions_fault() -> None:
    log_probs = torch.full((2, 2), NAN, requires_grad=True)
    assert torch.isnan(loss_of(lambda log_prob, *_: -log_prob, log_probs=log_probs))


def test_an_own_loss_that_is_nan_ends_the_step_before_anything_moves(
    start: Start, import_path: Callable[[Any], str]
) -> None:
    trainer = start(actor={"policy_loss": import_path(lambda log_prob, *_: log_prob * NAN)})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    before = masters(trainer)
    with pytest.raises(OwnFunctionError, match=r"^actor.policy_loss: mine:function returned NaN for \d+ of \d+ tokens"):
        trainer.step(batch)
    assert all(torch.equal(part, before[name]) for name, part in masters(trainer).items())


def test_an_own_functions_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OwnFunctionError) as raised:
        OwnFunction("credit.method", "mine:broken", broken)()
    error = as_learner_error(raised.value)
    assert isinstance(error, LearnerError) and "KeyError: 'length'" in str(error)
    assert 'return dict[str, Any]()["length"]' in caplog.text


def test_an_errors_text_is_one_line_and_not_long() -> None:
    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert len(describe_error(ValueError("a" * 10_000))) < 400


RESOLVE = """
from lightningbus.learner.settings.import_path import resolve_function
print(resolve_function('{}', 'actor.policy_loss')())
"""


def resolve_in(directory: Path, path: str) -> subprocess.CompletedProcess[str]:
    """As a role is started: with ``-P``, in a directory of the user's."""
    command = [sys.executable, "-P", "-c", RESOLVE.format(path)]
    return subprocess.run(command, cwd=directory, env={}, capture_output=True, text=True)


@pytest.mark.integration
def test_an_own_function_lies_in_the_working_directory_whatever_its_modules_are_called(tmp_path: Path) -> None:
    (tmp_path / "learner").mkdir()
    (tmp_path / "learner" / "__init__.py").write_text("def function():\n    import schemas\n    return schemas.VALUE\n")
    (tmp_path / "schemas.py").write_text("VALUE = 'found'\n")
    assert resolve_in(tmp_path, "learner:function").stdout == "found\n"


@pytest.mark.integration
def test_a_module_that_fails_at_import_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\nundefined\n")
    last = resolve_in(tmp_path, "mine:function").stderr.splitlines()[-1]
    assert "actor.policy_loss: 'mine:function' cannot be imported: NameError: name 'undefined'" in last
    assert last.endswith(f"({tmp_path / 'mine.py'}, line 2)")
