"""A configuration as it may be shown: resolved, with what servers have by default, without secrets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from bridge import telemetry
from bridge.config import Command, Config, Remote
from bridge.settings.keys import IDENTITY, REACHED, STARTED
from bridge.settings.reading import HIDDEN, Shown

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_UNFIT: Final = str.maketrans({"\x7f": "\\u007f"})


def shown_server(config: Config, own: Shown, defaults: Shown) -> Shown:
    """A server: what it is, then what was said of it, by itself or by default."""
    match config.upstream:
        case Command() as command:
            # A word after the name of a secret is hidden, and whatever looks like one.
            identity: Shown = {"command": shlex.split(telemetry.spell_command(_words(command, own)))}
            foreign = REACHED
        case Remote() as remote:
            identity = {"url": shown_url(remote)}
            foreign = STARTED
    above = {name: value for name, value in defaults.items() if name not in foreign}
    return identity | _over(above, {name: value for name, value in own.items() if name not in IDENTITY})


def _words(command: Command, own: Shown) -> list[str]:
    """The command, less what was read from files."""
    args, first = own.get("args", []), own.get("command")
    if first is None:
        words = command.argv[: len(command.argv) - len(args)]
        return [*((HIDDEN,) if own.get("cmd") == HIDDEN else words), *args]
    return [*(first if isinstance(first, list) else (first,)), *args]


def shown_url(remote: Remote) -> str:
    """Path and query stay out, for there are services that put the key there."""
    if remote.socket is not None:
        return f"unix:{remote.socket}:/{HIDDEN}"
    url = urlsplit(remote.url)
    plain = url.path in ("", "/") and not url.query
    return f"{url.scheme}://{url.netloc}{url.path if plain else f'/{HIDDEN}'}"


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Shown:
    """Tables merged, key by key."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        both = isinstance(under, Mapping) and isinstance(value, Mapping) and name not in ("rate", "starts")
        merged[name] = _over(under, value) if both and isinstance(under, Mapping) else value
    return merged


def as_toml(shown: Shown) -> str:
    """The file that would say the same, but for what is hidden."""
    return "\n".join(_table((), shown)).strip("\n") + "\n"


def as_json(shown: Shown) -> str:
    return json.dumps(shown, indent=2, ensure_ascii=False)


def _table(keys: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    plain = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    if keys and (plain or not table):
        yield ""
        yield f"[{'.'.join(map(_key, keys))}]"
    for name, value in plain.items():
        yield f"{_key(name)} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _table((*keys, name), value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False).translate(_UNFIT)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value.replace("${", "$${"), ensure_ascii=False).translate(_UNFIT)
    return json.dumps(value)
