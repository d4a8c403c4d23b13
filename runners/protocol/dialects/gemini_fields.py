"""Every field of Google's Gemini API and its treatment, as `request_fields` decides on the other APIs. Pure.

Source: https://ai.google.dev/api/generate-content. Google takes names in camelCase and in snake_case.
"""

import re
from typing import Any

from lightningbus.runners.protocol.request_fields import (
    ONE_ANSWER,
    VENDOR_RECORDS,
    VENDOR_SERVING,
    VENDOR_TOOLS,
    FieldRefusal,
    FieldTable,
)

KEPT_STATE = FieldRefusal("needs a service that keeps state; send the whole contents instead")
TEXT_ONLY = FieldRefusal("is not served: the model answers in text")
OF_MEDIA = "the model's own processor reads images; a note stands for other media"
OF_ANSWERS = "answers of the vendor's models have it, and no model here reads it"
OF_LIVE_API = FieldRefusal("is not served: it belongs to the Live API; leave it out")
VENDOR_ROUTING = FieldRefusal("is not served: the model's name says which model answers")

GEMINI = FieldTable(
    "",
    frozenset({"contents", "generationConfig", "model", "systemInstruction", "toolConfig", "tools"}),
    {
        "labels": VENDOR_RECORDS,
        "safetySettings": "no model here declines for a policy of the vendor's",
        "serviceTier": VENDOR_SERVING,
        "store": VENDOR_RECORDS,
    },
    {
        **{name: refusal for name, refusal in ONE_ANSWER.items() if name != "n"},
        "cachedContent": KEPT_STATE,
        "continuationToken": KEPT_STATE,
        "messages": FieldRefusal("is not served: use contents"),
        "n": FieldRefusal("is not served: use candidateCount of generationConfig", (1,)),
        "stream": FieldRefusal("is not served: the route says whether an answer is streamed"),
        "stream_options": FieldRefusal("is not served: a stream of this API says its usage at its end"),
    },
)
GENERATION_CONFIG = FieldTable(
    "generationConfig.",
    frozenset({
        "candidateCount", "frequencyPenalty", "maxOutputTokens", "presencePenalty", "responseJsonSchema",
        "responseMimeType", "responseSchema", "seed", "stopSequences", "temperature", "thinkingConfig", "topK", "topP",
    }),
    {},
    {
        "audioTimestamp": FieldRefusal("is not served: no model here hears audio; leave it out"),
        "audioTranscriptionConfig": FieldRefusal("is not served: no model here hears audio; leave it out"),
        "enableAffectiveDialog": OF_LIVE_API,
        "enableEnhancedCivicAnswers": FieldRefusal("is not served: say in the prompt how to answer"),
        "imageConfig": TEXT_ONLY,
        "logprobs": ONE_ANSWER["logprobs"],
        "mediaResolution": FieldRefusal(
            "is not served: the model's own processor decides on it; leave it out", ("MEDIA_RESOLUTION_UNSPECIFIED",)
        ),
        "modelSelectionConfig": VENDOR_ROUTING,
        "responseFormat": FieldRefusal("is not served: use responseMimeType and responseJsonSchema"),
        "responseLogprobs": ONE_ANSWER["logprobs"],
        "responseModalities": FieldRefusal(TEXT_ONLY.reason, (["TEXT"], ["text"], ["Text"])),
        "routingConfig": VENDOR_ROUTING,
        "speechConfig": TEXT_ONLY,
        "translationConfig": OF_LIVE_API,
    },
)  # fmt: skip
THINKING_CONFIG = FieldTable(
    "generationConfig.thinkingConfig.", frozenset({"includeThoughts", "thinkingBudget", "thinkingLevel"})
)
CONTENT = FieldTable("contents.", frozenset({"parts", "role"}))
SYSTEM_INSTRUCTION = FieldTable("systemInstruction.", frozenset({"parts"}), {"role": "it is the system's"})
VENDOR_PARTS = frozenset({"codeExecutionResult", "executableCode", "toolCall", "toolResponse"})
"""Parts that the vendor's own tools left in an answer: no model here made or reads them."""
PART = FieldTable(
    "contents.parts.",
    frozenset({"fileData", "functionCall", "functionResponse", "inlineData", "text", "thought", "thoughtSignature"}),
    {
        **dict.fromkeys(VENDOR_PARTS, OF_ANSWERS),
        "audioMetadata": OF_MEDIA,
        "audioTranscription": OF_ANSWERS,
        "documentMetadata": OF_MEDIA,
        "mediaProcessing": OF_MEDIA,
        "partMetadata": VENDOR_RECORDS,
        "speechMetadata": OF_ANSWERS,
        "spreadsheetMetadata": OF_MEDIA,
        "videoMetadata": OF_MEDIA,
    },
    {"mediaResolution": GENERATION_CONFIG.refused["mediaResolution"]},
)
BLOB = FieldTable("inlineData.", frozenset({"data", "displayName", "mimeType"}))
FILE_DATA = FieldTable("fileData.", frozenset({"displayName", "fileUri", "mimeType"}))
FUNCTION_CALL = FieldTable(
    "functionCall.",
    frozenset({"args", "id", "name"}),
    {},
    {
        "partialArgs": FieldRefusal("is not served: send a call's whole args"),
        "willContinue": FieldRefusal("is not served: send a call's whole args"),
    },
)
FUNCTION_RESPONSE = FieldTable(
    "functionResponse.",
    frozenset({"id", "name", "parts", "response"}),
    {"scheduling": "it says when the model reads a result in the Live API; here it reads all of them"},
    {"willContinue": FieldRefusal("is not served: send a function's whole response")},
)
TOOL = FieldTable("tools.", frozenset({"functionDeclarations"}))
"""Any other field is a tool that runs at the vendor."""
FUNCTION_DECLARATION = FieldTable(
    "functionDeclarations.",
    frozenset({"description", "name", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"}),
    {},
    {"behavior": FieldRefusal(OF_LIVE_API.reason, ("BLOCKING", "UNSPECIFIED"))},
)
TOOL_CONFIG = FieldTable(
    "toolConfig.",
    frozenset({"functionCallingConfig"}),
    {"includeServerSideToolInvocations": VENDOR_TOOLS, "retrievalConfig": VENDOR_TOOLS},
)
FUNCTION_CALLING_CONFIG = FieldTable(
    "functionCallingConfig.",
    frozenset({"allowedFunctionNames", "mode"}),
    {"streamFunctionCallArguments": "a call comes once its arguments are whole"},
)


def read_object(value: Any, table: FieldTable) -> dict[str, Any]:
    """Return an object's fields by their names in camelCase, without those that are null; {} for None.

    Raises ValueError with a sentence for the agent.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{table.place.rstrip('.')} is a JSON object")
    fields = {to_camel(name): field for name, field in value.items() if field is not None}
    table.check_known(fields)
    return fields


def read_list(value: Any) -> list[Any]:
    """Return a repeated field as a list; Google takes one object for a list of it."""
    return value if isinstance(value, list) else [] if value is None else [value]


def to_camel(name: str) -> str:
    """Write a name of a field in camelCase."""
    return re.sub(r"(?<=[a-z])_([a-z])", lambda match: match[1].upper(), name)
