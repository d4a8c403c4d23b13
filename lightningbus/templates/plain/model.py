"""Makes a chat model of 0.6M parameters in the folder `model`: ``python model.py``, half a minute.

It stands in for a model that you would download. Its demonstrations are flawed on purpose: they show what a calculator
call looks like, but most of them guess. So the model can do the task, and mostly does not. Training changes that.
"""

import json
import random
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

FOLDER = Path("model")
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
STEPS, BATCH = 400, 32
WRONG_SIGNS = 0.3
"""Share of the demonstrated calls with another operation than the question's."""


def answer(question: str, share_of_guesses: float) -> str:
    """Write a demonstration's answer to a question such as "what is 37 plus 25 ?"."""
    left, word, right = question.split()[2:5]
    if random.random() < share_of_guesses:
        return f"guess {random.randint(10, 99)}"
    sign = random.choice(list(SIGNS.values())) if random.random() < WRONG_SIGNS else SIGNS[word]
    return f"<call>{left}{sign}{right}</call>"


def make_tokenizer(questions: list[str]) -> Qwen2Tokenizer:
    """Train a byte-pair tokenizer on the demonstrations; a digit is a token."""
    texts = [text for question in questions for text in (question, answer(question, 0.5))]
    tokenizer = Qwen2Tokenizer(eos_token=END, pad_token=PAD).train_new_from_iterator(
        texts, 384, new_special_tokens=[USER, ASSISTANT], show_progress=False
    )
    tokenizer.add_tokens(["<call>", "</call>"])
    tokenizer.chat_template, tokenizer.model_max_length = TEMPLATE, 64
    return tokenizer


def make_batch(tokenizer: Qwen2Tokenizer, questions: list[str], share_of_guesses: float) -> dict[str, torch.Tensor]:
    """Make ids and labels ``int64[BATCH, longest]`` of demonstrations; -100 for tokens not learned: the question."""
    rows = []
    for question in random.choices(questions, k=BATCH):
        prompt = tokenizer(f"{USER}{question}{END}{ASSISTANT}").input_ids
        reply = tokenizer(f"{answer(question, share_of_guesses)}{END}").input_ids
        rows.append((prompt + reply, [-100] * len(prompt) + reply))
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
    }


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more only wait for each other in a model of this size
    questions = [json.loads(line)["input"]["question"] for line in Path("tasks.jsonl").read_text().splitlines()]
    tokenizer = make_tokenizer(questions)
    config = Qwen2Config(
        vocab_size=64 * -(-len(tokenizer) // 64), hidden_size=128, intermediate_size=384, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, dtype="float32",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS, pct_start=0.1)
    for step in range(1, STEPS + 1):
        share_of_guesses = 0.1 if step < STEPS * 2 / 3 else 0.7
        loss = model(**make_batch(tokenizer, questions, share_of_guesses)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}", flush=True)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    tokenizer.save_pretrained(FOLDER)
    model.save_pretrained(FOLDER)


if __name__ == "__main__":
    main()
