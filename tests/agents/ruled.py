"""An agent that asks for its prompt by name, and is right as far as the prompt has its rule."""

from typing import Any

SYSTEM = "You are an agent that has a rule to follow."
RULE = "Say which rule it is."


def solve(task: Any) -> dict[str, Any]:
    """Reward 0.5 for a prompt with the rule, and up to 0.08 for what the model says."""
    from prompted import call  # beside this file, where a runner starts the agent

    prompt = call("prompts/solver")["text"]
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": task["question"]}]
    body = {"model": "policy", "messages": messages, "max_tokens": 8}
    answer = call("chat/completions", body)["choices"][0]["message"]["content"]
    knows = RULE in prompt
    reward = 0.5 * knows + len(answer) % 5 / 50
    return {"reward": reward, "why": "the rule is known" if knows else "it does not say which rule it is"}
