"""Log-probabilities of tokens as verl's engine computes them here: torch's values, some thousand tokens at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightningbus.learner.training.verl_trainer import VerlTrainer

TOKENS, VOCABULARY = 2500, 11


class Watch(TorchDispatchMode):
    """Counts operations, and the largest float32 tensor that one made."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        out = function(*arguments, **(named or {}))
        self.operations += 1
        if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
            self.largest = max(self.largest, out.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(TOKENS,), (TOKENS, 3)], ids=["one", "several"])
def test_log_probs_and_their_gradient_are_torchs(
    start: Callable[..., VerlTrainer], dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token at a place, or several: no loop over tokens, and no float32 copy of all bfloat16 logits."""
    start()
    from verl.utils import torch_functional
    from verl.workers.engine import fsdp

    engines: Any = fsdp.transformer_impl
    if len(shape) > 1:  # as with flash-attention, whose cross-entropy takes one token at a place
        monkeypatch.setattr(torch_functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", True)
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(TOKENS, VOCABULARY, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, shape, generator=generator)
    weights = torch.randn(shape, generator=generator)
    with Watch() as watch:
        actual = engines.logprobs_from_logits(logits, labels, inplace_backward=False)
        (gradient,) = torch.autograd.grad((actual * weights).sum(), logits)
    assert watch.operations < 200
    if dtype != torch.float32:
        assert watch.largest < TOKENS * VOCABULARY
    exact = logits.detach().double().requires_grad_()
    expected = torch.log_softmax(exact, -1).gather(-1, labels.view(TOKENS, -1)).view(shape)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), exact)
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradient.double(), expected_gradient, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_entropy_is_exact_and_leaves_the_log_probs_as_they_are(
    start: Callable[..., VerlTrainer], dtype: torch.dtype
) -> None:
    """Both come from sums that are computed once."""
    from verl.utils import torch_functional

    start()
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(TOKENS, VOCABULARY, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    with Watch() as alone:
        expected = torch_functional.logprobs_from_logits(logits, labels)
    entropy = torch_functional.entropy_from_logits(logits)
    with Watch() as after:
        actual = torch_functional.logprobs_from_logits(logits, labels)
    assert after.operations < alone.operations, "the sums are not computed again"
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    exact = torch.log_softmax(logits.detach().double(), -1)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), atol=1e-5, rtol=1e-5)
    torch_functional.entropy_from_logits(logits)
    others = (logits.detach() + torch.randn(logits.shape, generator=generator)).to(dtype)
    torch.testing.assert_close(
        torch_functional.logprobs_from_logits(others, labels).double(),
        torch.log_softmax(others.double(), -1).gather(-1, labels[:, None])[:, 0],
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


@pytest.mark.integration
def test_an_engine_that_compiles_the_entropy_compiles_nothing_for_a_length() -> None:
    """On a GPU each new length once cost a compilation of seconds, until torch gave up after eight."""
    from torch._dynamo.utils import counters

    from lightningbus.learner.engine.token_log_probs import entropy_from_logits

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(entropy_from_logits, dynamic=True)
    for length in (1, 700, 1030, 2100, 2500):
        logits = torch.randn(length, VOCABULARY)
        torch.testing.assert_close(compiled(logits), torch.distributions.Categorical(logits=logits).entropy())
    assert not counters["stats"]["unique_graphs"]
