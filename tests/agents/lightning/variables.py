"""An agent in the shape of Agent Lightning 1.0."""

import json
import os
import urllib.request

from openai import AsyncOpenAI

MESSAGES = [{"role": "user", "content": "hello"}]


class Agent:
    async def run(self):
        assert os.environ["QUESTION"] == "1 + 1?" and json.loads(os.environ["GOLDEN_ANSWERS"]) == [2, "two"]
        assert os.environ["PATH"] != "not the path"
        client = AsyncOpenAI(base_url=os.environ["AGL_OPENAI_BASE_URL"], api_key=os.environ["AGL_KEY"], max_retries=0)
        answer = await client.chat.completions.create(model="auto", messages=MESSAGES)
        self.post("note", {"answer": answer.choices[0].message.content})
        self.post("reward", {"value": 0.75})

    def post(self, kind, data):
        body = json.dumps({"event_type": kind, "data": data}).encode()
        headers = {"Authorization": f"Bearer {os.environ['AGL_KEY']}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(os.environ["AGL_EVENT_URL"], body, headers)) as response:
            assert response.status == 200


class Remembers:
    """Whether a field of the rollout before is still there."""

    def run(self):
        return float(os.environ["CASE"] == "second" and "EXTRA" not in os.environ)


class Nothing:
    pass
