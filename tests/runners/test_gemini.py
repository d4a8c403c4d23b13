"""Google's Gemini API on the wire, as google-genai and Gemini CLI speak it: requests, answers, streams and errors."""

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.dialects import gemini_fields
from lightningbus.runners.protocol.dialects.gemini import GeminiDialect, GeminiEncoder
from lightningbus.runners.protocol.dialects.gemini_contents import Conversation
from lightningbus.runners.protocol.dialects.gemini_request import chat
from lightningbus.runners.protocol.dialects.gemini_schema import to_json_schema
from lightningbus.runners.protocol.dialects.gemini_signature import sign, unsign
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.chat_templates import STRICT, RenderingEngine
from tests.runners.conftest import PROMPT, ScriptedEngine
from tests.runners.test_dialects import CALLING, SAYING, TOOL, Desk, opened, recorded

QUESTION = {"role": "user", "parts": [{"text": "1+1?"}]}
FUNCTIONS = [{"functionDeclarations": [{"name": name, "parametersJsonSchema": TOOL} for name in ("add", "sub")]}]
SHOWN = {"thinkingConfig": {"includeThoughts": True}}
RESULTS = [{"functionResponse": {"id": f"call_{n}", "name": name, "response": {"result": str(n)}}}
           for n, name in ((1, "add"), (2, "sub"))]  # fmt: skip


@pytest.fixture
async def desk(bus: Bus, engine: ScriptedEngine) -> AsyncIterator[Desk]:
    engine.script = CALLING
    async with opened(bus) as desk:
        yield desk


async def ask(
    desk: Desk, body: Any, method: str = "generateContent", model: str = "policy", version: str = "v1beta"
) -> tuple[int, Any]:
    """Status and answer of a call with the headers and the query of the client; of a stream all its events."""
    query = {"alt": "sse"} if method == "streamGenerateContent" else {}
    async with (
        aiohttp.ClientSession(headers={"x-goog-api-key": desk.key}) as http,
        http.post(f"{desk.url}/{version}/models/{model}:{method}", json=body, params=query) as answer,
    ):
        if answer.content_type != "text/event-stream":
            return answer.status, await answer.json()
        return answer.status, read_events(await answer.text())


def read_events(text: str) -> list[Any]:
    """Events as both clients split them: data in one line each, then an empty one; anything else is an error."""
    return [json.loads(event.strip().removeprefix("data: ")) for event in text.split("\n\n") if event.strip()]


async def ask_for_parts(desk: Desk, body: Any, streamed: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The parts of an answer, and what ended it, as clients collect them."""
    status, answer = await ask(desk, body, "streamGenerateContent" if streamed else "generateContent")
    assert status == 200, answer
    events = answer if streamed else [answer]
    parts = [part for event in events for each in event["candidates"] for part in each["content"]["parts"]]
    return parts, events[-1]


@pytest.mark.parametrize("version", ["v1", "v1beta"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_contents_of_thoughts_text_and_calls(
    desk: Desk, engine: ScriptedEngine, streamed: bool, version: str
) -> None:
    body = {
        "contents": [QUESTION],
        "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
        "tools": FUNCTIONS,
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {
            "temperature": 0.5, "topP": 0.9, "topK": 40.0, "maxOutputTokens": 50, "stopSequences": ["END"], "seed": 7,
            "presencePenalty": 0.1, "frequencyPenalty": 0.2, **SHOWN,
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }  # fmt: skip
    method = "streamGenerateContent" if streamed else "generateContent"
    status, answer = await ask(desk, body, method, "policy:writer", version)
    assert status == 200, answer
    events = answer if streamed else [answer]
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts if part.get("thought")) == "I must count."
    assert "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == "Let me see."
    assert [part["functionCall"] for part in parts if "functionCall" in part] == [
        {"id": "call_1", "name": "add", "args": {"a": 1}}, {"id": "call_2", "name": "sub", "args": {}}
    ]  # fmt: skip
    last = events[-1]
    assert (last["candidates"][0]["finishReason"], last["modelVersion"]) == ("STOP", "policy:writer")
    assert last["usageMetadata"] == {
        "promptTokenCount": len(PROMPT), "candidatesTokenCount": len(CALLING),
        "totalTokenCount": len(PROMPT) + len(CALLING),
    }  # fmt: skip
    (request,) = engine.requests
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert request["tools"][0]["function"] == {"name": "add", "parameters": TOOL}
    sent = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty")
    assert [request[name] for name in sent] == [0.5, 0.9, 40, 50, ["END"], 7, 0.1, 0.2]
    assert request["tool_choice"] == "required" and request["model"] == "policy"
    (call,) = desk.calls
    recorded(call, CALLING)
    assert call.role == "writer"


def as_collected(parts: list[dict[str, Any]]) -> list[Any]:
    return [{"role": "model", "parts": parts}]


def as_streamed(parts: list[dict[str, Any]]) -> list[Any]:
    """As the chats of google-genai keep a stream: one content for each event."""
    return [{"role": "model", "parts": [part]} for part in parts]


def without_thoughts(parts: list[dict[str, Any]]) -> list[Any]:
    """As Gemini CLI keeps an answer."""
    return as_collected([part for part in parts if not part.get("thought")])


def without_signatures(parts: list[dict[str, Any]]) -> list[Any]:
    kept = [{name: value for name, value in part.items() if name != "thoughtSignature"} for part in parts]
    kept[-1]["thoughtSignature"] = "skip_thought_signature_validator"
    return as_collected(kept)


def for_urls(parts: list[dict[str, Any]]) -> list[Any]:
    """As google-genai writes bytes: in the alphabet of URLs."""
    return [json.loads(json.dumps(content).replace("+", "-").replace("/", "_")) for content in as_collected(parts)]


def without_ids(parts: list[dict[str, Any]]) -> list[Any]:
    """As clients that take a call by its name alone."""
    calls = [{**part, "functionCall": {**part["functionCall"], "id": None}} for part in parts if "functionCall" in part]
    return as_collected([*(part for part in parts if "functionCall" not in part), *calls])


@pytest.mark.parametrize(
    "keep", [as_collected, as_streamed, without_thoughts, without_signatures, for_urls, without_ids]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_comes_back_as_it_was_sampled(
    desk: Desk, engine: ScriptedEngine, streamed: bool, keep: Any
) -> None:
    more = {"tools": FUNCTIONS, "generationConfig": SHOWN}
    parts, _ = await ask_for_parts(desk, {"contents": [QUESTION], **more}, streamed)
    results = json.loads(json.dumps(RESULTS))
    if keep is without_ids:
        for part in results:
            del part["functionResponse"]["id"]
    contents = [QUESTION, *keep(parts), {"role": "user", "parts": results}]
    await ask_for_parts(desk, {"contents": contents, **more}, streamed)
    first, second = engine.requests
    recorded_answer = json.loads(desk.calls[0].response)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool", "tool"]
    answer = second["messages"][1]
    assert (answer["reasoning"], answer["content"]) == ("I must count.", "Let me see.")
    assert answer["tool_calls"] == recorded_answer["tool_calls"], "arguments and ids as they were sampled"
    results_of = [(message["tool_call_id"], message["content"]) for message in second["messages"][2:]]
    assert results_of == [("call_1", "1"), ("call_2", "2")] and first["messages"] == second["messages"][:1]


@pytest.mark.parametrize("thinking", [{}, {"thinkingConfig": {"includeThoughts": False}}])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_thought_that_is_not_asked_for_is_a_signature_only(
    desk: Desk, engine: ScriptedEngine, streamed: bool, thinking: Any
) -> None:
    parts, _ = await ask_for_parts(desk, {"contents": [QUESTION], "generationConfig": thinking}, streamed)
    assert not any(part.get("thought") for part in parts)
    assert unsign(parts[0]["thoughtSignature"]) == "I must count."
    await ask_for_parts(desk, {"contents": [QUESTION, *as_collected(parts), QUESTION]}, streamed)
    assert engine.requests[1]["messages"][1]["reasoning"] == "I must count."


async def test_a_length_and_an_empty_answer_say_so(desk: Desk, engine: ScriptedEngine) -> None:
    for reason, name in (("length", "MAX_TOKENS"), ("stop", "STOP"), ("content_filter", "SAFETY")):
        for streamed in (False, True):
            engine.script = [{"content": "", "finish_reason": reason}]
            parts, last = await ask_for_parts(desk, {"contents": [QUESTION]}, streamed)
            assert (parts, last["candidates"][0]["finishReason"]) == ([{"text": ""}], name)


async def test_several_candidates_are_asked_for_and_given(desk: Desk, engine: ScriptedEngine) -> None:
    engine.script, engine.choices = [], 2
    for streamed in (False, True):
        _, answer = await ask(
            desk,
            {"contents": [QUESTION], "generationConfig": {"candidateCount": 2}},
            "streamGenerateContent" if streamed else "generateContent",
        )
        last = answer[-1] if streamed else answer
        assert [(each["index"], each["finishReason"]) for each in last["candidates"]] == [(0, "STOP"), (1, "STOP")]
    assert [request["n"] for request in engine.requests] == [2, 2]


async def test_tokens_are_counted_of_contents_and_of_a_whole_request(bus: Bus) -> None:
    async with RenderingEngine(STRICT).serving(bus), opened(bus) as desk:
        whole = {"model": "models/policy", "contents": [QUESTION], "systemInstruction": {"parts": [{"text": "Brief."}]}}
        counts = []
        for version in ("v1", "v1beta"):
            for body in ({"contents": [QUESTION]}, {"generateContentRequest": whole}):
                status, answer = await ask(desk, body, "countTokens", version=version)
                assert status == 200 and answer.keys() == {"totalTokens"}, answer
                counts.append(answer["totalTokens"])
    assert counts[0] == counts[2] < counts[1] == counts[3]


async def test_a_name_of_any_form_in_the_path_is_a_models(bus: Bus, engine: ScriptedEngine) -> None:
    engine.script = SAYING
    async with opened(bus, model_aliases={"google/gemini-*": "policy:small", "gemini-*": "policy"}) as desk:
        for name in ("google/gemini-3", "gemini-3-pro:low", "gemini-3", "policy", "auto"):
            status, answer = await ask(desk, {"contents": [QUESTION]}, model=name)
            assert (status, answer.get("modelVersion")) == (200, name), answer
    assert {request["model"] for request in engine.requests} == {"policy"}


async def test_errors_have_googles_form(desk: Desk, engine: ScriptedEngine) -> None:
    hello = {"contents": [QUESTION]}
    status, answer = await ask(desk, hello, model="other")
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (404, 404, "NOT_FOUND")
    assert "model 'other' is not served" in answer["error"]["message"]
    for method in ("generateContent", "streamGenerateContent"):
        engine.faults = ["400"]
        status, answer = await ask(desk, hello, method)
        assert (status, answer) == (400, {"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}})
    status, answer = await ask(desk, hello, "countTokens")
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT"), "the scripted engine renders no prompt"
    status, answer = await ask(desk, hello, "embedContent")
    assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")
    assert "embedContent is not served: of this API generateContent" in answer["error"]["message"]
    async with aiohttp.ClientSession() as http:
        url = f"{desk.url}/v1/models/policy:generateContent"
        async with http.post(url, json=hello, headers={"x-goog-api-key": "other"}) as refused:
            assert (refused.status, (await refused.json())["error"]["status"]) == (401, "UNAUTHENTICATED")
        for key in ({"headers": {"x-goog-api-key": desk.key}}, {"params": {"key": desk.key}}):
            async with http.post(url, json=hello, **key) as taken:  # type: ignore[arg-type]
                assert taken.status == 200
        url = f"{desk.url}/v1beta/models/policy:streamGenerateContent"
        async with http.post(url, json=hello, headers={"x-goog-api-key": desk.key}) as array:
            assert array.status == 400 and "add alt=sse" in (await array.json())["error"]["message"]


async def test_models_are_listed_in_googles_form(bus: Bus) -> None:
    async with (
        RenderingEngine(STRICT, max_model_len=4096).serving(bus),
        opened(bus) as desk,
        aiohttp.ClientSession(f"{desk.url}/", headers={"x-goog-api-key": desk.key}) as http,
    ):

        async def get(path: str) -> tuple[int, Any]:
            async with http.get(f"v1beta/{path}") as answer:
                return answer.status, await answer.json()

        status, model = await get("models/policy")
        assert (status, model["name"]) == (200, "models/policy")
        assert model["inputTokenLimit"] == model["outputTokenLimit"] == 4096
        assert set(model["supportedGenerationMethods"]) == {"generateContent", "countTokens"}
        assert await get("models?pageSize=50") == (200, {"models": [model]})
        in_role = {**model, "name": "models/policy:writer", "displayName": "policy:writer"}
        assert await get("models/policy:writer") == (200, in_role)
        status, refused = await get("models/other")
        assert (status, refused["error"]["status"]) == (404, "NOT_FOUND")
        assert "model 'other' is not served" in refused["error"]["message"]


def test_a_stream_has_nothing_that_googles_clients_take_for_an_answer() -> None:
    encoder = GeminiEncoder("policy", False)
    text = encoder.on_chunk({"id": "c", "choices": [{"index": 0, "delta": {"content": "x\u2028"}}]})
    assert encoder.ping().isspace() and not encoder.on_chunk({"choices": [{"delta": {"role": "assistant"}}]})
    assert text.count(b"\n") == 2 and text.endswith(b"\n\n")
    failed = json.loads(encoder.fail("away", 503))
    assert failed == {"error": {"code": 503, "message": "away", "status": "UNAVAILABLE"}}


def test_signatures_are_base64_and_those_of_a_vendor_are_no_thought() -> None:
    thought = "I must add. \ud800 ✓"
    assert unsign(sign(thought)) == thought
    assert unsign(sign(thought).translate(str.maketrans("+/", "-_")).rstrip("=")) == thought
    others: list[Any] = ["", None, 5, "gAAAA", "skip_thought_signature_validator", "é", "x"]
    assert [unsign(other) for other in others] == [""] * len(others)


def request_of(**fields: Any) -> dict[str, Any]:
    """The chat that a request becomes."""
    return chat({"model": "policy", "contents": [QUESTION], **fields}, Conversation(TokenHistory()), stream=False)


def config(**fields: Any) -> dict[str, Any]:
    return request_of(generationConfig=fields)


def calling(**fields: Any) -> dict[str, Any]:
    return request_of(tools=FUNCTIONS, toolConfig={"functionCallingConfig": fields})


def test_names_are_taken_in_snake_case_and_one_object_for_a_list() -> None:
    camel = request_of(
        systemInstruction={"parts": [{"text": "Be brief."}]},
        tools=FUNCTIONS,
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        generationConfig={"maxOutputTokens": 5, "thinkingConfig": {"thinkingLevel": "LOW"}},
    )
    snake = request_of(
        contents=QUESTION | {"parts": QUESTION["parts"][0]},  # type: ignore[index]
        system_instruction={"parts": {"text": "Be brief."}},
        tools={"function_declarations": [{"name": name, "parameters_json_schema": TOOL} for name in ("add", "sub")]},
        tool_config={"function_calling_config": {"mode": "any", "allowed_function_names": "add"}},
        generation_config={"max_output_tokens": 5, "thinking_config": {"thinking_level": "low"}},
    )
    assert camel == snake


def test_modes_of_calling() -> None:
    assert "tool_choice" not in calling() and "tool_choice" not in calling(mode="AUTO")
    assert "tool_choice" not in calling(mode="MODE_UNSPECIFIED")
    assert calling(mode="NONE")["tool_choice"] == "none"
    assert calling(mode="ANY")["tool_choice"] == "required"
    chosen = calling(mode="ANY", allowedFunctionNames=["sub"])
    assert [tool["function"]["name"] for tool in chosen["tools"]] == ["sub"] and chosen["tool_choice"] == "required"
    validated = calling(mode="VALIDATED")
    assert all(tool["function"]["strict"] for tool in validated["tools"]) and "tool_choice" not in validated
    assert "tools" not in request_of(toolConfig={"functionCallingConfig": {"mode": "AUTO"}})


def test_forms_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    of_google = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}
    for fields in ({"responseJsonSchema": schema}, {"responseSchema": of_google}, {"responseJsonSchema": of_google}):
        form = config(responseMimeType="application/json", **fields)["response_format"]
        assert form == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert config(responseMimeType="application/json")["response_format"] == {"type": "json_object"}
    assert "response_format" not in config(responseMimeType="text/plain")
    choice = config(responseMimeType="text/x.enum", responseSchema={"type": "STRING", "enum": ["yes", "no"]})
    assert choice["structured_outputs"] == {"choice": ["yes", "no"]}


def test_how_much_to_think() -> None:
    for fields, effort in (
        ({"thinkingBudget": 0}, "none"), ({"thinkingBudget": -1}, None), ({"thinkingBudget": 8192}, None),
        ({"thinkingLevel": "MINIMAL"}, "minimal"), ({"thinkingLevel": "high"}, "high"),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None),
    ):  # fmt: skip
        assert config(thinkingConfig=fields).get("reasoning_effort") == effort


def test_a_schema_of_google_is_a_json_schema() -> None:
    schema = {
        "type": "OBJECT", "nullable": True, "required": ["b"], "property_ordering": ["b", "any_of"],
        "properties": {
            "any_of": {"anyOf": [{"type": "STRING"}, {"type": "NUMBER"}], "nullable": True},
            "b": {"type": "ARRAY", "items": {"type": "STRING", "format": "enum", "enum": ["x"], "nullable": True},
                  "minItems": "1", "maxItems": 3, "example": ["x"]},
            "c": {"type": "TYPE_UNSPECIFIED", "additionalProperties": {"type": "BOOLEAN"}},
        },
    }  # fmt: skip
    converted = to_json_schema(schema)
    assert list(converted["properties"]) == ["b", "any_of", "c"]
    assert converted == {
        "type": ["object", "null"], "required": ["b"],
        "properties": {
            "any_of": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
            "b": {"type": "array", "items": {"type": ["string", "null"], "enum": ["x", None]}, "minItems": 1,
                  "maxItems": 3, "examples": [["x"]]},
            "c": {"additionalProperties": {"type": "boolean"}},
        },
    }  # fmt: skip
    plain = {"type": "object", "properties": {"type": {"type": "string"}}, "$defs": {"X": {"type": "null"}}}
    assert to_json_schema(plain) == plain
    pets = {"defs": {"Pet": {"type": "STRING"}}, "type": "ARRAY", "items": {"ref": "#/defs/Pet"}}
    assert to_json_schema(pets) == {
        "$defs": {"Pet": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/Pet"}
    }  # fmt: skip


def test_a_json_schema_is_taken_with_the_types_of_google_too() -> None:
    """Gemini CLI writes such schemas."""
    schema = {
        "type": "OBJECT",
        "properties": {"a": {"oneOf": [{"type": "STRING"}, {"const": None}], "default": None}, "b_c": True},
        "patternProperties": {"x_y": {"type": "INTEGER"}},
    }
    expected = {
        "type": "object",
        "properties": {"a": {"oneOf": [{"type": "string"}, {"const": None}], "default": None}, "b_c": True},
        "patternProperties": {"x_y": {"type": "integer"}},
    }
    (tool,) = request_of(tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": schema}]}])["tools"]
    assert tool["function"]["parameters"] == expected


def test_a_function_says_what_it_returns() -> None:
    declaration = {"name": "add", "description": "Adds.", "response": {"type": "INTEGER"}}
    (tool,) = request_of(tools=[{"functionDeclarations": [declaration]}])["tools"]
    assert tool["function"] == {
        "name": "add", "description": 'Adds.\n\nReturns JSON of this schema: {"type": "integer"}',
        "parameters": {"type": "object", "properties": {}},
    }  # fmt: skip


def user(*parts: Any) -> Any:
    return request_of(contents=[{"parts": list(parts)}])["messages"][-1]["content"]


def test_media_are_images_text_or_a_note() -> None:
    data = bytes(range(248, 256))
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(data).decode()}"}}
    for encode in (b64encode, urlsafe_b64encode):
        blob = {"mimeType": "image/png", "data": encode(data).decode()}
        assert user({"text": "Look:"}, {"inlineData": blob}) == [{"type": "text", "text": "Look:"}, image]
    assert user({"inlineData": {"mimeType": "text/csv", "data": b64encode("a,ü".encode()).decode()}}) == "a,ü"
    report = {"mimeType": "application/pdf", "displayName": "report.pdf", "data": "AAAA"}
    assert user({"inlineData": report}) == "[application/pdf report.pdf left out: this model reads text only]"
    (part,) = user({"fileData": {"fileUri": "https://example.com/a.png"}})
    assert part["image_url"]["url"] == "https://example.com/a.png"
    assert "video/mp4" in user({"fileData": {"fileUri": "gs://b/a", "mimeType": "video/mp4"}, "videoMetadata": {}})


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "four"}, "four"), ({"result": "four"}, "four"), ({"error": "no file"}, "Error: no file"),
        ({"error": "Error: no file"}, "Error: no file"), ({"result": 4}, '{"result": 4}'), ({}, "{}"), (None, "{}"),
        ({"output": "x", "status": 1}, '{"output": "x", "status": 1}'),
    ],
)  # fmt: skip
def test_results_of_functions_are_text(response: Any, text: str) -> None:
    (message,) = request_of(
        contents=[{"role": "function", "parts": [{"functionResponse": {"name": "f", "response": response}}]}]
    )["messages"]
    assert message == {"role": "tool", "tool_call_id": "f", "content": text}


def test_results_without_ids_are_of_the_calls_in_their_order() -> None:
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("f", "g", "f")]
    results = [{"functionResponse": {"name": name, "response": {"output": name}}} for name in ("g", "f", "f")]
    messages = request_of(contents=[{"role": "model", "parts": calls}, {"parts": results}])["messages"]
    ids = [call["id"] for call in messages[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in messages[1:]] == [ids[1], ids[0], ids[2]]


def test_a_content_begun_for_the_model_is_gone_on_with() -> None:
    begun = request_of(contents=[QUESTION, {"role": "model", "parts": [{"text": "{"}]}])
    assert (begun["add_generation_prompt"], begun["continue_final_message"]) == (False, True)


ODD: list[tuple[dict[str, Any], str]] = [
    ({"contents": []}, "no contents"),
    ({"contents": 5}, "contents is a JSON object"),
    ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "the role user or model"),
    ({"contents": [{"role": "user", "parts": []}]}, "has no parts"),
    ({"contents": [{"text": "x"}]}, "contents.text is not known here"),
    ({"contents": [{"parts": [{}]}]}, "a part with nothing"),
    ({"contents": [{"parts": [{"unheard_of": 1}]}]}, "contents.parts.unheardOf is not known here"),
    ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "a part with functionCall"),
    ({"contents": [{"parts": [{"toolCall": {}}]}]}, "a part with toolCall"),
    ({"contents": [{"role": "model", "parts": [{"inlineData": {}}]}]}, "a part of the model has text"),
    ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "willContinue": True}}]}]}, "whole args"),
    ({"contents": [{"parts": [{"text": "x", "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}}]}]}, "mediaResol"),
    ({"contents": [{"parts": [{"inlineData": {"mimeType": "text/plain", "data": "%"}}]}]}, "text in UTF-8 as base64"),
    ({"contents": [{"parts": [{"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a"}}]}]}, "as inlineData"),
    ({"systemInstruction": {"parts": [{"inlineData": {"mimeType": "image/png"}}]}}, "systemInstruction is text"),
    ({"cachedContent": "cachedContents/1"}, "cachedContent needs a service that keeps state"),
    ({"tools": [{"googleSearch": {}}]}, "tools.googleSearch runs at the vendor"),
    ({"tools": [{"code_execution": {}}]}, "tools.code_execution runs at the vendor"),
    ({"tools": [5]}, "tools is a JSON object"),
    ({"tools": [{"functionDeclarations": [{}]}]}, "without a name"),
    ({"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]}, "behavior is not served"),
    ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "needs functions"),
    ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "mode 'SOME' is not known here"),
    (
        {"tools": FUNCTIONS, "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["add"]}}},
        "needs the mode",
    ),
    ({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}}, "no such function"),
    ({"generationConfig": 5}, "generationConfig is a JSON object"),
    ({"generationConfig": {"maxTokens": 5}}, "generationConfig.maxTokens is not known here"),
    ({"generationConfig": {"responseLogprobs": True}}, "responseLogprobs is not served"),
    ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities is not served"),
    ({"generationConfig": {"responseMimeType": "text/xml"}}, "responseMimeType 'text/xml' is not known here"),
    ({"generationConfig": {"responseSchema": {}}}, "needs the responseMimeType"),
    ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "with an enum"),
    ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "DEEP"}}}, "thinkingLevel 'DEEP' is not known here"),
    ({"generationConfig": {"maxOutputTokens": "many"}}, "max_tokens is a whole number"),
]


@pytest.mark.parametrize(("fields", "sentence"), ODD)
def test_a_request_that_cannot_be_served_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GeminiDialect({"model": "policy", "contents": [QUESTION], **fields}, Conversation(TokenHistory()), stream=False)


FIELDS_OF_THE_CLIENT = {
    "GEMINI": "cachedContent contents continuationToken generationConfig labels model safetySettings serviceTier store "
    "systemInstruction toolConfig tools",
    "GENERATION_CONFIG": "audioTimestamp audioTranscriptionConfig candidateCount enableAffectiveDialog "
    "enableEnhancedCivicAnswers frequencyPenalty imageConfig logprobs maxOutputTokens mediaResolution "
    "modelSelectionConfig presencePenalty responseFormat responseJsonSchema responseLogprobs responseMimeType "
    "responseModalities responseSchema routingConfig seed speechConfig stopSequences temperature thinkingConfig topK "
    "topP translationConfig",
    "PART": "audioMetadata audioTranscription codeExecutionResult documentMetadata executableCode fileData "
    "functionCall functionResponse inlineData mediaProcessing mediaResolution partMetadata speechMetadata "
    "spreadsheetMetadata text thought thoughtSignature toolCall toolResponse videoMetadata",
    "FUNCTION_CALL": "args id name partialArgs willContinue",
    "FUNCTION_RESPONSE": "id name parts response scheduling willContinue",
    "FUNCTION_DECLARATION": "behavior description name parameters parametersJsonSchema response responseJsonSchema",
    "TOOL_CONFIG": "functionCallingConfig includeServerSideToolInvocations retrievalConfig",
    "FUNCTION_CALLING_CONFIG": "allowedFunctionNames mode streamFunctionCallArguments",
    "THINKING_CONFIG": "includeThoughts thinkingBudget thinkingLevel",
    "BLOB": "data displayName mimeType",
    "FILE_DATA": "displayName fileUri mimeType",
}
"""Of google-genai 3.6.1, by the table that decides on them."""


@pytest.mark.parametrize("table", FIELDS_OF_THE_CLIENT)
def test_every_field_of_the_client_is_decided(table: str) -> None:
    assert set(FIELDS_OF_THE_CLIENT[table].split()) - getattr(gemini_fields, table).names == set()
