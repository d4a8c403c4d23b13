"""Agents that misbehave, one way each. Stock client only, as a user would write them."""

import time

from openai import OpenAI

client = OpenAI(max_retries=0)


def ask(model="policy"):
    messages = [{"role": "user", "content": "what is 12 plus 34 ?"}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=4)


def raises(task):
    ask()
    raise RuntimeError(f"cannot do {task}")


def hangs(task):
    ask()
    time.sleep(3600)


def says_nothing(task):
    ask()


def wants_another_model(task):
    ask("nobody")
    return 1.0


def streams(task):
    """1.0 if a streamed answer is an ordinary one: text, a finish reason, no field of ours."""
    messages = [{"role": "user", "content": "what is 12 times 34 ?"}]
    # A small model may answer with nothing but the end, or with special tokens alone.
    extra_body = {"min_tokens": 2, "skip_special_tokens": False}
    request = {"max_tokens": 6, "temperature": 0, "stream": True, "extra_body": extra_body}
    chunks = list(client.chat.completions.create(model="policy", messages=messages, **request))
    extra = {key for chunk in chunks for choice in chunk.choices for key in (choice.model_extra or {})}
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    finished = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert not extra & {"token_ids", "prompt_token_ids"}, extra
    assert all(chunk.choices[0].logprobs is None for chunk in chunks if chunk.choices)
    return float(bool(text) and len(finished) == 1)


def leaves(task):
    """1.0 at the end of the first tool's text: what the model says after it is not read, nor the stream closed."""
    messages = [{"role": "user", "content": "which tool?"}]
    stream = client.chat.completions.create(model="policy", messages=messages, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content == "</tool>":
            break
    return 1.0


def completes(task):
    """The older route, with log-probabilities that the agent asked for itself."""
    answer = client.completions.create(model="policy", prompt="<|user|>compute 12 plus 34", max_tokens=4, logprobs=1)
    assert len(answer.choices[0].logprobs.token_logprobs) == answer.usage.completion_tokens
    return {"reward": 0.5, "text": answer.choices[0].text}


def speaks_every_dialect(task):
    """1.0 if the model says the same, greedily, through each API, plain and streamed."""
    from anthropic import Anthropic

    claude = Anthropic(max_retries=0)
    messages = [{"role": "user", "content": "compute 12 times 34"}]
    same = {"extra_body": {"ignore_eos": True, "temperature": 0}, "model": "policy"}
    chat = client.chat.completions.create(messages=messages, max_tokens=6, **same)
    texts = [chat.choices[0].message.content]
    texts.append(client.responses.create(input=messages, max_output_tokens=6, **same).output_text)
    with client.responses.stream(input=messages, max_output_tokens=6, **same) as stream:
        texts.append("".join(event.delta for event in stream if event.type == "response.output_text.delta"))
    message = claude.messages.create(messages=messages, max_tokens=6, **same)
    texts.append(message.content[0].text)
    with claude.messages.stream(messages=messages, max_tokens=6, **same) as stream:
        texts.append(stream.get_final_text())
    counted = claude.messages.count_tokens(model="policy", messages=messages).input_tokens
    assert counted == message.usage.input_tokens == chat.usage.prompt_tokens
    assert message.stop_reason == "max_tokens"
    return float(len(set(texts)) == 1)


def rewarded_by_span(task):
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    with trace.get_tracer("odd").start_as_current_span("judge") as span:
        ask()
        span.set_attribute("lightningbus.reward", 0.25)
