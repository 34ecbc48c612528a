"""The JSON Schema of the configuration file, for editors: made of the same keys that the file is read by.

It says less than the reading does: whether a duration or a URL is one, is found out by `config check`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from bridge import __version__
from bridge.settings.entry import PLACE
from bridge.settings.keys import DEFAULTS, PROCESS, SERVER_TABLE, Form, Key, Spec

Schema = dict[str, Any]
_REFERENCE: Final[Schema] = {"type": "string", "pattern": r"\$\{"}
"""What holds a reference may become anything."""
_SERVER_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_TABLES: Final = {
    "listen": "Where clients speak HTTP to all servers of this file.",
    "access": "Who may.",
    "replicas": "Several bridges behind one load balancer.",
    "admin": "Where an operator is served.",
    "audit": "The record of who did what.",
    "record": "Traffic as JSON lines, for mcp-bridge replay.",
    "tracing": "OpenTelemetry.",
    "log": "What is logged on stderr.",
    "defaults": "What servers have that do not say otherwise.",
    "servers": f"The servers, by name; each is at {PLACE.format('NAME')}.",
    "policy": "What clients may see and use.",
    "quota": "What one caller may have.",
}


def schema() -> Schema:
    """Draft 2020-12."""
    properties = _table(PROCESS)["properties"]
    properties["defaults"] = {"description": _TABLES["defaults"], **_table(DEFAULTS)}
    properties["servers"] = {
        "description": _TABLES["servers"],
        "type": "object",
        "propertyNames": {"pattern": _SERVER_NAME},
        "additionalProperties": {"$ref": "#/$defs/server"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Configuration of mcp-bridge {__version__}",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": {"server": _server()},
    }


def as_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False)


def _server() -> Schema:
    """A server is one thing: a program, a command line, or a URL."""
    ways = [{"required": [name]} for name in ("command", "cmd", "url")]
    disabled = {"required": ["disabled"], "properties": {"disabled": {"const": True}}}
    return {**_table(SERVER_TABLE), "if": disabled, "else": {"oneOf": ways}}


def _table(spec: Spec) -> Schema:
    properties: Schema = {}
    for name, inner in spec.items():
        if isinstance(inner, Key):
            properties[name] = _described(inner)
        elif isinstance(inner, Mapping):
            about = {"description": _TABLES[name]} if name in _TABLES else {}
            properties[name] = {**about, **_table(inner)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _described(key: Key) -> Schema:
    about: Schema = {"description": " ".join((key.option.help or "").removesuffix(" Repeatable.").split())}
    if key.option.show_default:
        about["default"] = key.option.default
    return about | _kind(key)


def _kind(key: Key) -> Schema:
    one = _one(key)
    match key.form:
        case Form.ONE:
            return one
        case Form.LIST:
            return {"type": "array", "items": one}
        case Form.TABLE:
            return {"type": "object", "additionalProperties": one}
        case Form.WORDS:
            return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
        case Form.RATE:
            parts: Schema = {
                "each": {"type": ["string", "number"]},
                "burst": {"type": "integer", "minimum": 1},
            }
            table = {
                "type": "object", "additionalProperties": False, "properties": parts, "required": ["each"],
            }  # fmt: skip
            return {"anyOf": [one, table]}


def _one(key: Key) -> Schema:
    read = key.option.read
    if isinstance(read, click.Choice):
        return {"anyOf": [{"enum": list(read.choices)}, _REFERENCE]}
    if isinstance(read, click.IntRange):
        bounds = {"minimum": read.min, "maximum": read.max}
        known = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"anyOf": [{"type": "integer", **known}, _REFERENCE]}
    if read is click.BOOL:
        return {"anyOf": [{"type": "boolean"}, _REFERENCE]}
    if float in key.numbers:
        return {"type": ["string", "number"]}
    return {"type": ["string", "integer"]} if key.numbers else {"type": "string"}
