"""Agents under instrumentation. What stands in the spans is what the instrumentations named wrote; they are no part of
this environment, so an OpenTelemetry SDK says it in their place."""

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

client = OpenAI(max_retries=0)
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def graph(task):
    """LangGraph as openinference-instrumentation-langchain 0.1.80 sees it, then rewards by agentlightning 0.3.0."""
    tracer = provider.get_tracer("openinference.instrumentation.langchain", "0.1.80")

    def span(name, kind, **more):
        fields = {"openinference.span.kind": kind, **{key.replace("_", "."): value for key, value in more.items()}}
        return tracer.start_as_current_span(name, attributes=fields, set_status_on_exception=False)

    def ask():
        with span("model", "CHAIN"), span("ChatOpenAI", "LLM") as model:
            answer = client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "2+3?"}], tools=TOOLS
            )
            model.set_attribute("output.value", answer.model_dump_json())
            return answer

    with span("adder", "CHAIN"):
        first = ask()
        with span("tools", "CHAIN"), span("add", "TOOL", tool_name="add", input_value='{"a": 2, "b": 0}') as tool:
            tool.set_status(trace.StatusCode.ERROR, "b is zero")
        ask()
    lightning = provider.get_tracer("agentlightning.tracer.otel")
    emitted = [
        ("agentlightning.message", {"agentlightning.message.body": "I asked the model"}),
        ("agentlightning.object", {"agentlightning.object.type": "dict", "agentlightning.object.json": '{"n": 1}'}),
        ("agentlightning.annotation", {"note.score": 3, "agentlightning.tag.0": "good"}),
        (
            "agentlightning.annotation",
            {
                "agentlightning.reward.0.name": "primary",
                "agentlightning.reward.0.value": 0.25,
                "agentlightning.link.0.key_match": "gen_ai.response.id",
                "agentlightning.link.0.value_match": first.id,
            },
        ),
        (
            "agentlightning.annotation",
            {
                "agentlightning.reward.0.name": "task",
                "agentlightning.reward.0.value": 1.0,
                "agentlightning.reward.1.name": "speed",
                "agentlightning.reward.1.value": 0.5,
            },
        ),
    ]
    for name, text in emitted:
        lightning.start_span(name, attributes=text).end()
    provider.force_flush()


def calls_elsewhere(task):
    """Two calls in OpenTelemetry's words, as an instrumentation of the client records them: one to another model."""
    tracer = provider.get_tracer("opentelemetry.instrumentation.openai_v2")

    def span(model):
        return tracer.start_as_current_span(
            f"chat {model}", attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        )

    with span("policy") as call:
        answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "2+3?"}])
        call.set_attributes({"gen_ai.response.id": answer.id, "gen_ai.usage.input_tokens": 2})
    with span("gpt-4o-mini") as call:
        call.set_attributes({"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 20})
    provider.force_flush()
    return 1.0
