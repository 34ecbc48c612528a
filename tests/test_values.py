"""Values: what is read, what is refused, and that a fault never quotes what may be secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from bridge.values import (
    Address,
    expand,
    is_loopback,
    parse_authority,
    parse_base_url,
    parse_command,
    parse_duration,
    parse_header,
    parse_header_file,
    parse_header_value,
    parse_host,
    parse_limit,
    parse_mode,
    parse_origin,
    parse_path,
    parse_pattern,
    parse_size,
    parse_token,
    parse_url,
    parse_variable,
    spell_duration,
    spell_size,
)

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("5m", 300), ("1h", 3600), ("250ms", 0.25), ("1h30m", 5400), ("1m30s500ms", 90.5),
        ("1.5h", 5400), ("12", 12), ("0.5", 0.5), ("1e9", 1e9), ("1000000000s", 1e9), (" 30S ", 30),
    ],
)  # fmt: skip
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "-5s", "nan", "inf", "1e999", "5 m", "s", "30m1h", "1m1m", "5x", "1d", "0x10", "٣s"]
)
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)
    with pytest.raises(ValueError, match="duration"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["off", "none", "NONE", "0", "0s", "0.0", "0h0m"])
def test_no_limit_is_read_where_there_may_be_none(text: str) -> None:
    assert parse_limit(text) is None
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_duration_is_read_as_it_is_spelled(seconds: float) -> None:
    assert (parse_limit(f"{seconds:.3f}s") or 0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "off"), (1800, "30m"), (60, "1m"), (90, "90s"), (0.25, "0.25s")]
)
def test_default_duration_is_spelled_shortly_and_read_back(seconds: float | None, text: str) -> None:
    assert spell_duration(seconds) == text
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8MiB", 8 << 20), ("500KB", 500_000), ("1GiB", 1 << 30), ("1gb", 10**9), ("64 KiB", 65536),
        ("1.5MiB", 3 << 19), ("4096", 4096), ("4096B", 4096), ("2MB", 2_000_000),
    ],
)  # fmt: skip
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "0MiB", "8M", "8 bytes", "nan", "1e6", "9" * 5000, "0.1"])
def test_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(1, 1 << 40))
def test_size_is_read_as_it_is_spelled(size: int) -> None:
    assert parse_size(spell_size(size)) == size


@pytest.mark.parametrize(("text", "mode"), [("600", 0o600), ("0660", 0o660), ("0o777", 0o777)])
def test_file_mode_is_octal(text: str, mode: int) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["", "6", "888", "rw-", "-600", "4755"])
def test_file_mode_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="file mode"):
        parse_mode(text)


@pytest.mark.case("CP-09")
@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("npx -y server", ("npx", "-y", "server")),
        ("'/tmp/a b (x)/srv.py' \"it's\"", ("/tmp/a b (x)/srv.py", "it's")),
        (
            "srv $HOME ; rm * | cat > x && y",
            ("srv", "$HOME", ";", "rm", "*", "|", "cat", ">", "x", "&&", "y"),
        ),
        ("srv '' ``", ("srv", "", "``")),
        ("srv \\$X a\\ b", ("srv", "$X", "a b")),
        ("srv # no comment", ("srv", "#", "no", "comment")),
        ("srv 工具\nnext", ("srv", "工具", "next")),
    ],
)
def test_command_is_split_as_a_shell_splits_and_nothing_is_expanded(text: str, argv: Sequence[str]) -> None:
    assert parse_command(text) == argv


@pytest.mark.case("CP-09")
@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("K=V", ("K", "V")), ("K=", ("K", "")), ("K=a=b==", ("K", "a=b==")),
        ('K="quoted"', ("K", '"quoted"')), ('K={"a": [1, "b"]}', ("K", '{"a": [1, "b"]}')),
    ],
)  # fmt: skip
def test_variable_is_split_at_its_first_equals_sign_only(text: str, pair: tuple[str, str]) -> None:
    assert parse_variable(text) == pair


@pytest.mark.parametrize("text", ["sk-verysecret", "=verysecret", ""])
def test_variable_without_a_name_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError, match="K=V") as raised:
        parse_variable(text)
    assert "verysecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"), ("x${A}y${B_2}", "x1y$2"), ("$A $ $$ {A}", "$A $ $$ {A}"), ("$${A}", "${A}"),
        ("$$${A}", "$${A}"), ("${EMPTY}", ""), ("", ""),
    ],
)  # fmt: skip
def test_variables_are_expanded_once(text: str, value: str) -> None:
    assert expand(text, {"A": "1", "B_2": "$2", "EMPTY": ""}) == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [("${NOPE}", "${NOPE} is not set"), ("${A:-x}", "write $${"), ("${A", "write $${"), ("${}", "write $${")],
)
def test_what_cannot_be_expanded_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        expand(text, {"A": "1"})


@given(st.text())
def test_escaped_text_expands_to_itself(text: str) -> None:
    assert expand(text.replace("${", "$${"), {}) == text


@pytest.mark.parametrize("text", ["", " ", "A=B"])
def test_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GITHUB_"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "path"), [("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/", "/"), ("/a/b.c", "/a/b.c")]
)
def test_path_is_read(text: str, path: str) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    ["mcp", "", "/healthz", "/readyz/", "/a?b", "/a#b", "/a b", "//a", "/a/../b", "/.", "/{x}", "/é", "/a\n"],
)
def test_path_that_cannot_be_served_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_path(text)


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::", "::"), ("localhost", "localhost")])
def test_host_is_read(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text", ["", " ", "127.0.0.1:8080", "http://localhost", "a/b", "[::1", "[localhost]"]
)
def test_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--port"):
        parse_host(text)


@pytest.mark.parametrize(
    "text", ["mcp.example.com", "mcp.example.com:8443", "*.example.com", "[fd00::1]:80", "*"]
)
def test_allowed_host_is_read(text: str) -> None:
    assert parse_authority(text.upper()) == text


@pytest.mark.parametrize("text", ["", "https://a", "a/b", "a:b", "a b", "b*", "::1"])
def test_allowed_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a host"):
        parse_authority(text)


@pytest.mark.parametrize(
    ("text", "origin"),
    [("https://App.example.com", "https://app.example.com"), ("http://a:3000/", "http://a:3000"), ("*", "*")],
)
def test_allowed_origin_is_read(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize("text", ["", "null", "app.example.com", "https://a/b", "https://*.a", "https://u@a"])
def test_allowed_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        parse_origin(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example.com", False),
        ("::ffff:127.0.0.1", False), ("128.0.0.1", False),
    ],
)  # fmt: skip
def test_loopback_is_known_from_what_others_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


# -- header fields


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("Authorization: Bearer x:y z", ("Authorization", "Bearer x:y z")),
        ("X-Key:${KEY}", ("X-Key", "${KEY}")),
        ("x!#$%&'*+.^_`|~-1:\t a \t", ("x!#$%&'*+.^_`|~-1", "a")),
    ],
)
def test_header_is_split_at_its_first_colon(text: str, field: tuple[str, str]) -> None:
    assert parse_header(text) == field
    assert parse_header_file(text) == (field[0], Path(field[1]))


@pytest.mark.parametrize(
    "text",
    [
        "", SECRET, f"Bearer {SECRET}", f": {SECRET}", f"X Y: {SECRET}", f"X\r\nY: {SECRET}", f"X : {SECRET}",
        f"\N{LATIN SMALL LETTER E WITH ACUTE}: {SECRET}",
    ],
)  # fmt: skip
def test_header_without_a_proper_name_is_refused_without_quoting_it(text: str) -> None:
    for parse, form in ((parse_header, "K: V"), (parse_header_file, "K: PATH")):
        with pytest.raises(ValueError, match=f"{form} expected") as raised:
            parse(text)
        assert SECRET not in str(raised.value)


@pytest.mark.parametrize("text", ["X:", "X: ", "X: \t"])
def test_header_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="X: nothing follows the colon"):
        parse_header(text)


@pytest.mark.parametrize(("text", "value"), [("a", "a"), (" a\tb ", "a\tb"), ("!~", "!~")])
def test_header_value_is_read(text: str, value: str) -> None:
    assert parse_header_value(text) == value


@pytest.mark.parametrize(
    "bad", ["\r", "\n", "\r\nX: y", "\0", "\x7f", "\x85", "\u2028", "\udcff", "\N{EURO SIGN}"]
)
def test_header_value_that_could_not_be_sent_is_refused_untold(bad: str) -> None:
    for text in (f"{SECRET}{bad}", f"{SECRET}{bad}x"):
        with pytest.raises(ValueError, match="printable ASCII") as raised:
            parse_header_value(text)
        assert SECRET not in str(raised.value)


def test_empty_header_value_is_refused() -> None:
    with pytest.raises(ValueError, match="the value is empty"):
        parse_header_value(" ")


def test_token_loses_the_line_break_at_its_end_only() -> None:
    assert parse_token("abcdefghij0123456789==\r\n") == "abcdefghij0123456789=="
    with pytest.raises(ValueError, match="only letters"):
        parse_token("abcdefghij 0123456789")


# -- servers


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://mcp.example.com/mcp?a=b#c", Address("https://mcp.example.com/mcp?a=b")),
        (" HTTP://my_server:8000 ", Address("http://my_server:8000")),
        ("http://[::1]:8000/mcp", Address("http://[::1]:8000/mcp")),
        ("https://m\u00fcller.example/\u00e4", Address("https://m\u00fcller.example/\u00e4")),
        ("unix:/run/mcp.sock:/mcp", Address("http://localhost/mcp", Path("/run/mcp.sock"))),
        ("unix:/run/a:b.sock:/x/mcp?y=1#z", Address("http://localhost/x/mcp?y=1", Path("/run/a:b.sock"))),
    ],
)
def test_url_is_read(text: str, address: Address) -> None:
    assert parse_url(text) == address


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "must begin with"), (f"mcp.example.com/{SECRET}", "must begin with"),
        (f"localhost:8000/{SECRET}", "must begin with"), (f"ftp://a/{SECRET}", "must begin with"),
        (f"http:///{SECRET}", "malformed"), (f"http://a:x/{SECRET}", "malformed"),
        (f"http://a:0/{SECRET}", "malformed"), (f"http://a:65536/{SECRET}", "malformed"),
        (f"http://[::1/{SECRET}", "malformed"), (f"http://[::1]a/{SECRET}", "malformed"),
        (f"http://[a]/{SECRET}", "malformed"), (f"http://::1/{SECRET}", "malformed"),
        (f"http://a..b/{SECRET}", "malformed"), (f"http://{'a' * 64}/{SECRET}", "malformed"),
        (f"http://a<b/{SECRET}", "malformed"), (f"http://a%20b/{SECRET}", "malformed"),
        (f"https://user:{SECRET}@a/mcp", "put credentials into --header"),
        (f"https://{SECRET}@a/mcp", "put credentials into --header"),
        (f"http://a/b {SECRET}", "a blank or a control character"),
        (f"http://a/\n{SECRET}", "a blank or a control character"),
        (f"http://a/\udcff{SECRET}", "a blank or a control character"),
        (f"unix:/run/{SECRET}", "unix:SOCKET:PATH expected"),
        (f"unix:run/x:/{SECRET}", "unix:SOCKET:PATH expected"),
    ],
)  # fmt: skip
def test_url_that_is_none_is_refused_without_quoting_it(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)) as raised:
        parse_url(text)
    assert SECRET not in str(raised.value)


_AFTER = r"(:[0-9]{0,5})?(/[^?#\s]{0,10})?(\?\S{0,10})?"


@given(
    st.one_of(
        st.from_regex(rf"https?://[^/?#\s]{{1,20}}{_AFTER}", fullmatch=True),
        st.from_regex(rf"https?://[\w.-]{{1,20}}{_AFTER}", fullmatch=True),
    )
)
def test_url_that_is_read_can_be_asked(text: str) -> None:
    try:
        url = parse_url(text).url
    except ValueError:
        return
    assert URL(url).host


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://mcp.example.com/", "https://mcp.example.com"),
        ("http://a:8443/x/y/#z", "http://a:8443/x/y"),
    ],
)
def test_base_url_is_read(text: str, url: str) -> None:
    assert parse_base_url(text) == url


@pytest.mark.parametrize("text", ["", "a/b", "https://a/?b=c", "unix:/a:/b", "https://u@a"])
def test_base_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_base_url(text)
