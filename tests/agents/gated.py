"""Agents that ask on the completions route, and wait between two calls until they may go on."""

from urllib.request import urlopen

from openai import OpenAI

client = OpenAI(max_retries=0, timeout=600)


def asks_once(task):
    client.completions.create(model="policy", prompt=[5, 6, 7], max_tokens=4)
    return 1.0


def asks_three_times(task):
    asks_once(task)
    for _ in range(2):
        urlopen(task["gate"], timeout=600).close()
        asks_once(task)
    return 1.0
