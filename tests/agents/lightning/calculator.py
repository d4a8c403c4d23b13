"""Calls a calculator; emits a reward for the call, then one for the right result."""

import operator
import re

import agentlightning as agl
from openai import OpenAI

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALL = re.compile(r"<call>(\d{1,6})([-+*])(\d{1,6})</call>")


class Calculator(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        llm = resources["main_llm"]
        client = OpenAI(base_url=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id), api_key=llm.api_key)
        question = [{"role": "user", "content": task["question"]}]
        answer = client.chat.completions.create(model=llm.model, messages=question, **llm.sampling_parameters)
        call = CALL.search(answer.choices[0].message.content or "")
        agl.emit_reward(0.1 if call else 0.0)
        if call is None:
            agl.emit_reward(0.0)
            return
        result = OPERATORS[call[2]](int(call[1]), int(call[3]))
        agl.emit_reward(float(str(result) == task["answer"]))
