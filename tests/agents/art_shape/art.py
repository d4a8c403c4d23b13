"""The names of openpipe-art 0.5.18 that a rollout function meets."""

import contextlib
import functools

from openai import AsyncOpenAI


class Model:
    def __init__(self, *, name, project, inference_base_url, inference_api_key, inference_model_name):
        self.inference_model_name = inference_model_name
        self._client = AsyncOpenAI(base_url=inference_base_url, api_key=inference_api_key)

    def openai_client(self):
        return self._client

    def get_inference_name(self):
        return self.inference_model_name


class Trajectory:
    def __init__(self, *, messages_and_choices, reward):
        self.messages_and_choices, self.reward, self.metrics = messages_and_choices, reward, {}

    def messages(self):
        return [line if isinstance(line, dict) else line.message.to_dict() for line in self.messages_and_choices]


def retry(max_attempts=3, exceptions=(Exception,)):
    def decorate(function):
        @functools.wraps(function)
        async def tried(*arguments):
            for _ in range(max_attempts - 1):
                with contextlib.suppress(*exceptions):
                    return await function(*arguments)
            return await function(*arguments)

        return tried

    return decorate
