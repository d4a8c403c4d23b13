"""Google's `Schema`, a part of OpenAPI 3.0, as a JSON schema. Pure.

Source: https://ai.google.dev/api/caching#Schema.
"""

from typing import Any

from lightningbus.runners.protocol.dialects.gemini_fields import read_list, to_camel

COUNTS = frozenset({
    "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"
})  # fmt: skip
"""64-bit integers, which Google's JSON writes as strings."""
NAMES = {"defs": "$defs", "ref": "$ref"}
MAPS, LISTS = ("$defs", "defs", "patternProperties", "properties"), ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMAS = ("additionalProperties", "items", "not")
"""Fields that have schemas by name, as a list, and as one."""
VALUES = ("const", "default")
"""Fields in which null is a value."""
UNSPECIFIED = "TYPE_UNSPECIFIED"


def to_json_schema(schema: Any) -> Any:
    """Convert a schema, or a JSON schema with Google's names of types; a right JSON schema keeps its meaning."""
    if not isinstance(schema, dict):
        return schema
    fields = {to_camel(name): value for name, value in schema.items() if value is not None or name in VALUES}
    is_nullable, order = fields.pop("nullable", False), fields.pop("propertyOrdering", None)
    if fields.get("type") == UNSPECIFIED:
        del fields["type"]
    if fields.get("format") == "enum":
        del fields["format"]
    if "example" in fields:
        fields["examples"] = [fields.pop("example")]
    converted = {NAMES.get(name, name): _convert(name, value) for name, value in fields.items()}
    if isinstance(order, list) and isinstance(properties := converted.get("properties"), dict):
        names = [*(name for name in order if name in properties), *(name for name in properties if name not in order)]
        converted["properties"] = {name: properties[name] for name in names}
    return _allow_null(converted) if is_nullable else converted


def _convert(name: str, value: Any) -> Any:
    if name == "type":
        return [str(kind).lower() for kind in value] if isinstance(value, list) else str(value).lower()
    if name in MAPS and isinstance(value, dict):
        return {key: to_json_schema(member) for key, member in value.items()}
    if name in LISTS:
        return [to_json_schema(member) for member in read_list(value)]
    if name in SCHEMAS:
        return to_json_schema(value)
    if name == "ref" and isinstance(value, str):
        return value.replace("#/defs/", "#/$defs/")
    if name in COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    return value


def _allow_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    null: dict[str, Any] = {}
    if "type" in schema:
        null["type"] = list(dict.fromkeys([*read_list(schema["type"]), "null"]))
    if "enum" in schema:
        null["enum"] = [*schema["enum"], None]
    return {**schema, **null}
