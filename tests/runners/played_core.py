"""vLLM's server with an engine that samples the text in a request's ``vllm_xargs``; all else is vLLM's own."""

import re
from typing import Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason

from lightningbus.inference.engine.scripted_core import ScriptedCore, script_logprobs, serve

ANSWER = "answer"
"""Name in ``vllm_xargs`` of the text to sample."""
PIECE = 3
"""Characters that are divided into tokens alone: a tokenizer makes other tokens of the whole text."""
BURST = 8
"""Tokens of one step."""


class PlayedCore(ScriptedCore):
    """Samples the text that a request has, in other tokens than a rendering of the text has."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._tokenizer = tokenizer
        whole = "|".join(map(re.escape, sorted(tokenizer.get_added_vocab(), key=len, reverse=True)))
        self._pieces = re.compile(f"({whole})") if whole else re.compile("(?!)")

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Sample the text of a request, a burst of tokens at a time; without a text end the answer at once."""
        parameters = request.sampling_params
        assert parameters is not None, "only generation is asked for"
        text = str((parameters.extra_args or {}).get(ANSWER, ""))
        tokens = [*self._divide(text), self._end][: parameters.max_tokens]
        reason = FinishReason.STOP if tokens[-1] == self._end else FinishReason.LENGTH
        for start in range(0, len(tokens), BURST):
            burst = tokens[start : start + BURST]
            logprobs = None if parameters.logprobs is None else script_logprobs(burst, parameters.logprobs)
            is_last = start + BURST >= len(tokens)
            output = EngineCoreOutput(request.request_id, burst, logprobs, finish_reason=reason if is_last else None)
            self._outputs.put_nowait(EngineCoreOutputs(outputs=[output]))

    def _divide(self, text: str) -> list[int]:
        """Divide a text into tokens; added tokens, such as ``<tool_call>``, stay whole."""
        parts = self._pieces.split(text)
        known = set(parts[1::2])
        pieces = [
            piece
            for part in parts
            for piece in ([part] if part in known else (part[at : at + PIECE] for at in range(0, len(part), PIECE)))
        ]
        return [token for piece in pieces for token in self._tokenizer.encode(piece, add_special_tokens=False)]


if __name__ == "__main__":
    serve(PlayedCore)
