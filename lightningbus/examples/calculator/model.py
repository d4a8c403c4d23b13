"""A small chat model made on the spot: ``python model.py --out DIR --seed 0``.

A Qwen2 of about 0.6M parameters with a tokenizer of its own, warm-started by supervised steps on *flawed*
demonstrations: they show how to call the calculator and how to use its result, but mostly they guess, and when
they call they sometimes pick the wrong operation. So the model can do the job, and most likely does not.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from problems import HIGH, LOW, TEMPLATES, WORDS
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
CALL, CALLED = "<call>", "</call>"
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|user|>' if m['role'] != 'assistant' else '<|assistant|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 512
GUESSES = (0.1, 0.65)
"""Share of demonstrations that guess instead of calling the tool: at first, and in the last third of the steps."""
WRONG_CALLS = 0.2
"""Share of the calls that name the wrong operation."""
IGNORE = -100


def make_tokenizer(seed: int) -> Qwen2Tokenizer:
    """Train a tokenizer of Qwen2's kind (byte-level BPE) on demonstrations; every digit is a token."""
    rng = random.Random(seed)
    texts = [turn["content"] for _ in range(2000) for turn in demonstration(rng, 0.5)]
    tokenizer = Qwen2Tokenizer(eos_token=END, pad_token=PAD).train_new_from_iterator(
        texts, VOCABULARY, new_special_tokens=[USER, ASSISTANT], show_progress=False
    )
    tokenizer.add_tokens([CALL, CALLED])  # not special: they are part of what the model says
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = 128
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Create an untrained Qwen2 with float32 weights."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=64 * -(-len(tokenizer) // 64),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def demonstration(rng: random.Random, guesses: float) -> list[dict]:
    """Write one conversation as the agent would have it, flawed on purpose."""
    a, b, sign = rng.randint(LOW, HIGH), rng.randint(LOW, HIGH), rng.choice(tuple(WORDS))
    question = rng.choice(TEMPLATES).format(a=a, op=WORDS[sign], b=b)
    if rng.random() < guesses:
        answer = str(rng.randint(LOW, HIGH))
        text, reply = f"guess {answer}", "so the answer is ?"
    else:
        used = rng.choice([other for other in WORDS if other != sign]) if rng.random() < WRONG_CALLS else sign
        answer = str({"+": a + b, "-": a - b, "*": a * b}[used])
        text, reply = f"{CALL}{a}{used}{b}{CALLED}", f"result {answer}"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": text},
        {"role": "user", "content": reply},
        {"role": "assistant", "content": answer},
    ]


def encode(tokenizer: Qwen2Tokenizer, messages: list[dict]) -> tuple[list[int], list[int]]:
    """Encode a conversation: token ids, and labels, `IGNORE` except where the assistant speaks."""
    ids = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False).input_ids
    assistant, end = tokenizer.convert_tokens_to_ids([ASSISTANT, END])
    labels, speaking = [], False
    for token in ids:
        labels.append(token if speaking else IGNORE)
        speaking = (speaking and token != end) or token == assistant
    return ids, labels


def batch(
    tokenizer: Qwen2Tokenizer, rng: random.Random, size: int, guesses: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad ids and labels on the right: ``int64[size, longest]`` each."""
    rows = [encode(tokenizer, demonstration(rng, guesses)) for _ in range(size)]
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [IGNORE] * (longest - len(labels)) for _, labels in rows])
    return ids, labels


def warm_start(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, steps: int, size: int, seed: int) -> float:
    """Train on flawed demonstrations; return the last loss in nats per token.

    Matrices are updated by Muon (https://kellerjordan.github.io/posts/muon/), the rest by AdamW: AdamW alone takes four
    times as long to the same model.
    """
    rng = random.Random(seed)
    is_matrix = {name: p.ndim == 2 and "embed" not in name for name, p in model.named_parameters()}
    matrices, others = (
        [p for name, p in model.named_parameters() if is_matrix[name] is kind] for kind in (True, False)
    )
    optimizers = [
        torch.optim.Muon(matrices, lr=2e-2, weight_decay=0.01),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=optimizer.defaults["lr"], total_steps=steps, pct_start=0.1, cycle_momentum=False
        )
        for optimizer in optimizers
    ]
    loss, started = torch.zeros(()), time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        ids, labels = batch(tokenizer, rng, size, GUESSES[3 * step > 2 * steps])
        loss = model(input_ids=ids, labels=labels).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        if step % 50 == 0 or step == steps:
            seconds = time.monotonic() - started
            print(
                f"warm start: step {step}/{steps}, loss {loss.item():.3f}, {seconds:.0f} s", file=sys.stderr, flush=True
            )
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = make_tokenizer(options.seed)
    model = make_model(tokenizer, options.seed)
    tokenizer.save_pretrained(options.out)
    model.config.save_pretrained(options.out)
    warm_start(model, tokenizer, options.steps, options.batch, options.seed)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(options.out)


if __name__ == "__main__":
    main()
