"""OTLP's protobuf from exporters whose texts are not UTF-8, such as one cut inside a character. Pure."""

from functools import cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from lightningbus.runners.recording.otlp_limits import ConversionBudget

FILES = (common_pb2, resource_pb2, trace_pb2, logs_pb2, trace_service_pb2, logs_service_pb2)
"""The protocol's files, each after those it imports."""


def parse_protobuf(request: Message, body: bytes) -> None:
    """Read a request; in texts that are not UTF-8 the wrong bytes are replaced. Raises what protobuf raises."""
    try:
        request.ParseFromString(body)
    except DecodeError:
        lenient = _lenient_class(request.DESCRIPTOR.full_name)()
        lenient.ParseFromString(body)
        _repair(lenient, _text_fields(), ConversionBudget())
        request.ParseFromString(lenient.SerializeToString())


def _repair(message: Any, text_fields: frozenset[str], budget: ConversionBudget) -> None:
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            budget.spend(len(value) if field.is_repeated else 0)
            for inner in values:
                _repair(inner, text_fields, budget)
        elif field.full_name in text_fields:
            texts = [text.decode(errors="replace").encode() for text in values]
            if field.is_repeated:
                value[:] = texts
            else:
                setattr(message, field.name, texts[0])


@cache
def _lenient_class(name: str) -> Any:
    """Return a message class of the protocol whose texts are bytes: the same on the wire, but not checked."""
    return message_factory.GetMessageClass(_lenient_pool()[0].FindMessageTypeByName(name))


def _text_fields() -> frozenset[str]:
    return _lenient_pool()[1]


@cache
def _lenient_pool() -> tuple[DescriptorPool, frozenset[str]]:
    """Build the protocol's messages with bytes for texts, and the full names of those fields."""
    pool, names = DescriptorPool(), set[str]()
    for file in FILES:
        copy = FileDescriptorProto()
        file.DESCRIPTOR.CopyToProto(copy)
        for message in copy.message_type:
            names |= _texts_to_bytes(message, f"{copy.package}.{message.name}")
        pool.Add(copy)
    return pool, frozenset(names)


def _texts_to_bytes(message: DescriptorProto, name: str) -> set[str]:
    names = set()
    for field in message.field:
        if field.type == FieldDescriptorProto.TYPE_STRING:
            field.type = FieldDescriptorProto.TYPE_BYTES
            names.add(f"{name}.{field.name}")
    return names.union(*(_texts_to_bytes(inner, f"{name}.{inner.name}") for inner in message.nested_type))
