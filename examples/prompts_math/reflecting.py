"""A stand-in for a large model that improves prompts: ``python reflecting.py --port 8555 --seed 0``.

It speaks Chat Completions on loopback. It reads the feedback it is given: where that says of answers that they came too
early, it proposes the missing rule now and then, else a sentence that changes nothing. Any OpenAI-compatible endpoint
with a large model can take its place.
"""

import argparse
import json
import random
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rule import OTHERS, RULE

TOO_EARLY = re.compile(r"answered after \d+ of \d+ steps")
INSIGHT = 0.5
"""How often it draws the right conclusion from feedback that allows it."""


def propose(request: str, rng: random.Random, rule: str = RULE, symptom: re.Pattern = TOO_EARLY) -> str:
    """A prompt with one sentence more, in a fence as GEPA asks for it; ``symptom``: feedback that asks for the rule."""
    prompt = request.split("```")[1].strip()
    new = [sentence for sentence in OTHERS if sentence not in prompt]
    sentence = rng.choice(new) if new else ""
    if symptom.search(request) and rule not in prompt and rng.random() < INSIGHT:
        sentence = rule
    return f"```\n{prompt} {sentence}\n```"


def make_server(port: int, seed: int, rule: str = RULE, symptom: re.Pattern = TOO_EARLY) -> ThreadingHTTPServer:
    """On loopback; port 0 takes a free one."""
    rng = random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = propose(body["messages"][-1]["content"], rng, rule, symptom)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            answer = json.dumps({"object": "chat.completion", "model": body["model"], "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8555)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make_server(options.port, options.seed).serve_forever()


if __name__ == "__main__":
    main()
