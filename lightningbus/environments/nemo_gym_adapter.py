"""Resources servers of NeMo Gym: their tools and their verification, with the Responses API in between."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .asgi_server import serve_app


class Adapter:
    """``http://HOST:PORT`` of a resources server that runs, or the name of one in the package, which is started here.

    ``dataset`` and ``heldout`` are JSONL files of rows; by default the ``train``, else ``example``, and ``validation``
    files of the package. ``config`` has fields of the server's configuration.
    """

    is_endless = False

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        known = {"dataset", "heldout", "config", "max_steps"}
        if unknown := set(arguments) - known:
            raise ValueError(f"no such argument: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        self._max_steps: int = arguments.get("max_steps", 30)
        self._files: dict[str, Path | None] = {"train": None, "heldout": None}
        if name.startswith(("http://", "https://")):
            self._url = name.rstrip("/")
        else:
            module = importlib.import_module(f"resources_servers.{name}.app")
            self._url = serve_app(make_app(module, name, arguments.get("config", {})))
            data = Path(str(module.__file__)).parent / "data"
            self._files["train"] = find_file(data, "train.jsonl", "example.jsonl")
            self._files["heldout"] = find_file(data, "validation.jsonl")
        for split, argument in (("train", "dataset"), ("heldout", "heldout")):
            if argument in arguments:
                self._files[split] = Path(arguments[argument])

    def tasks(self, split: str) -> Iterator[dict[str, Any]] | None:
        """Yield the rows of a file as tasks."""
        file = self._files[split]
        if file is None:
            if split == "train":
                raise ValueError("there is no data set: name a file of rows by --arg dataset=FILE")
            return None
        lines = file.read_text(encoding="utf-8").splitlines()
        return ({"id": str(number), "input": json.loads(line)} for number, line in enumerate(lines) if line.strip())

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Play one session of the server; its ``verify`` gives the reward, and the numbers beside it are metrics."""
        import httpx
        from openai import AsyncOpenAI

        parameters = dict(task["responses_create_params"])
        turns = parameters.pop("input")
        inputs: list[Any] = [{"role": "user", "content": turns}] if isinstance(turns, str) else list(turns)
        outputs: list[Any] = []
        async with (
            AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=None) as client,
            httpx.AsyncClient(base_url=self._url, timeout=None) as server,
        ):
            session = (await server.post("/seed_session", json=task)).raise_for_status().json()
            if session.get("mcp"):
                raise RuntimeError("tools of this resources server are offered by MCP, which is not supported")
            for _ in range(self._max_steps):
                response = await client.responses.create(**parameters | {"model": model, "input": [*inputs, *outputs]})
                new = [item.model_dump(exclude_none=True) for item in response.output]
                outputs += new
                calls = [item for item in new if item["type"] == "function_call"]
                for call in calls:
                    outputs.append(await call_tool(server, call))
                if not calls or response.incomplete_details:
                    break
            answer = {**response.model_dump(), "output": outputs}
            verified = (await server.post("/verify", json={**task, "response": answer})).raise_for_status().json()
        numbers = {name: float(value) for name, value in verified.items() if isinstance(value, int | float)}
        reward = numbers.pop("reward")
        return {"reward": reward, "metrics": numbers}


async def call_tool(server: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Call the server's route of a function's name; return the item with its answer, errors too."""
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError as error:
        output = json.dumps({"error": f"the arguments are no JSON: {error}"})
    else:
        output = (await server.post(f"/{call['name']}", json=arguments)).text
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def make_app(module: Any, name: str, config: dict[str, Any]) -> Any:
    """Build the app of the resources server that a module defines."""
    from nemo_gym.base_resources_server import SimpleResourcesServer
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf

    classes: list[Any] = [value for value in vars(module).values() if isinstance(value, type)]
    (kind,) = (
        value for value in classes if issubclass(value, SimpleResourcesServer) and value.__module__ == module.__name__
    )
    address = {"host": "127.0.0.1", "port": 1}  # required by the configuration; no server reads it here
    fields = {"name": name, "entrypoint": "app.py", **address, **config}
    client = ServerClient(head_server_config=BaseServerConfig(**address), global_config_dict=OmegaConf.create({}))
    server = kind(config=kind.model_fields["config"].annotation(**fields), server_client=client)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    return app


def find_file(directory: Path, *names: str) -> Path | None:
    """Find the first existing one of these files."""
    return next((directory / name for name in names if (directory / name).exists()), None)
