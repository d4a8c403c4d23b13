"""vLLM's server with an engine that computes nothing: it refuses what vLLM refuses, and every answer is empty.

``python -m lightningbus.inference.engine.scripted_core`` takes the words of vLLM's server. The calls of a dry run are
sent to it, before there is a model: template, parsers and the checks of a request are vLLM's own.
"""

import asyncio
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvloop
from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.outputs import LogprobsLists

LOGPROB = -0.5


class ScriptedCore:
    """An engine core for vLLM's front end that ends every answer at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._end = tokenizer.eos_token_id or 0
        self._outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Answer a request that the front end has accepted."""
        parameters = request.sampling_params
        assert parameters is not None, "only generation is asked for"
        logprobs = None if parameters.logprobs is None else script_logprobs([self._end], parameters.logprobs)
        output = EngineCoreOutput(request.request_id, [self._end], logprobs, finish_reason=FinishReason.STOP)
        self._outputs.put_nowait(EngineCoreOutputs(outputs=[output]))

    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for the next scripted answer."""
        return await self._outputs.get()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Do nothing: every request has been answered."""

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """Return ``generate``, the only task of this engine."""
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        """Do nothing: there is no cache."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Do nothing: there is no process."""


def script_logprobs(tokens: Sequence[int], num_others: int) -> LogprobsLists:
    """Return scripted log-probabilities for each token, and for ``num_others`` other tokens in its place."""
    ids = np.array([[token, *range(max(0, num_others))] for token in tokens], dtype=np.int64)
    return LogprobsLists(ids, np.full(ids.shape, LOGPROB), np.ones(len(tokens), dtype=np.int64))


def serve(core: type[ScriptedCore]) -> None:
    """Serve with an engine core of this class until the process is ended."""

    def make_core(*_: object, renderer: Any, **named: object) -> ScriptedCore:
        return core(renderer.tokenizer)

    EngineCoreClient.make_async_mp_client = staticmethod(make_core)  # type: ignore[method-assign]
    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
    configure_logging_from_args(arguments)
    validate_parsed_serve_args(arguments)
    uvloop.run(run_server(arguments))


if __name__ == "__main__":
    serve(ScriptedCore)
