"""What is wrong with a configuration file: every fault at once, each with file, line and key, none with a
secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bridge import settings
from bridge.core.headers import PROTECTED
from bridge.errors import UsageFault
from bridge.settings import tree
from bridge.settings.keys import PROCESS as PROCESS_TABLES
from bridge.settings.keys import SERVER_TABLE, walk
from bridge.settings.tree import read

TOKEN = "abcdefghij0123456789"
SECRET = "s3cr3t-value"
ONE = '[servers.one]\ncommand = "one"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bridge.toml"


@pytest.fixture
def faults(file: Path) -> Callable[..., list[str]]:
    """The lines that a file is refused with, without its name."""

    def faults(text: str, **environ: str) -> list[str]:
        file.write_text(text)
        with pytest.raises(UsageFault) as raised:
            settings.load(file, environ)
        assert SECRET not in str(raised.value)
        return [line.removeprefix(f"{file}:") for line in str(raised.value).splitlines()]

    return faults


def test_all_faults_are_told_at_once_each_in_its_place(faults: Callable[..., list[str]]) -> None:
    text = """\
defualt = "x"
port = 9
[listen]
prot = 1
host = "0.0.0.0"
uds_mode = 600
[servers.a]
command = 5
[servers.b]
url = "https://me:s3cr3t-value@x"
warm = 2
[servers."c d"]
cmd = "a 'b"
env = {X = "${NOPE}", Y = true}
[servers.d]
command = "x"
cmd = "y"
headers = {a = "s3cr3t-value"}
quota.rate = "fast"
[servers.f]
[[servers.g]]
[access]
auth_token = "s3cr3t-value"
"""
    assert faults(text) == [
        "1: defualt: unknown key; did you mean default?",
        "2: port: unknown key; did you mean listen.port?",
        "4: listen.prot: unknown key; did you mean port?",
        '6: listen.uds_mode: a string of octal digits such as "027" expected',
        "8: servers.a.command: a string, or an array of strings, expected",
        "10: servers.b.url: user and password have no place in it; put credentials into headers",
        "11: servers.b.warm: is for servers that are programs, and this one is at a url",
        (
            "12: servers.\"c d\": 'c d' is no name: letters, digits, '.', '_' and '-', at most 64, "
            "a letter or digit first"
        ),
        '13: servers."c d".cmd: cannot be split into words: no closing quotation',
        '14: servers."c d".env.X: ${NOPE} is not set in the environment of the bridge',
        '14: servers."c d".env.Y: a string expected',
        "17: servers.d.cmd: command and cmd exclude each other; give one",
        "18: servers.d.headers: is for servers at a url, and this one is a program",
        "19: servers.d.quota.rate: 'fast' is not a rate such as 10/s, 30/min or 100/h:20",
        "20: servers.f: no server: give command, cmd or url",
        "21: servers.g: a table expected",
        "23: access.auth_token: the token must have 16 to 4096 characters",
    ]


PROCESS = [
    (
        '[listen]\nhost = "0.0.0.0"\n',
        "2: listen.host: 0.0.0.0 can be reached from other machines, and no token",
    ),
    ('[listen]\nuds = "s"\nport = 1\n', "3: listen.port: listen.uds and listen.port exclude each other"),
    (
        '[listen]\nbase_url = "https://a"\n',
        "2: listen.base_url: is told to old clients only; give listen.legacy_sse",
    ),
    ('[listen]\npath = "/servers/one"\n', "2: listen.path: what begins with /servers/ is for the servers"),
    ('[listen]\nport = "http"\n', "2: listen.port: 'http' is not a valid integer range."),
    ("[listen]\nport = true\n", "2: listen.port: a number expected"),
    ("[listen]\nport = 65536\n", "2: listen.port: 65536 is not in the range 0<=x<=65535."),
    ("[listen]\nlegacy_sse = 1\n", "2: listen.legacy_sse: true or false expected"),
    ("listen = 1\n", "1: listen: a table expected"),
    (
        '[access]\nauth_token = "${T}"\ninsecure_no_auth = true\n',
        "3: access.insecure_no_auth: contradicts the token that is given; drop one of them",
    ),
    (
        '[access]\nauth_token = "${T}"\nauth_token_env = "T"\n',
        "3: access.auth_token_env: access.auth_token and access.auth_token_env exclude each other",
    ),
    ('[access]\nauth_token_env = "NO"\n', "2: access.auth_token_env: the variable 'NO' is not set"),
    ('[access]\nauth_token_file = "no"\n', "2: access.auth_token_file: File '{base}/no' does not exist."),
    (
        '[access.callers]\nlocal = "${T}"\n',
        "2: access.callers.local: local stands for callers without a name",
    ),
    (
        '[access.callers]\na = "s3cr3t-value"\n',
        "2: access.callers.a: the token must have 16 to 4096 characters",
    ),
    ('[access.callers]\na = "${T}"\nb = "${T}"\n', "3: access.callers.b: has the same token as a"),
    (
        '[access]\nauth_token = "${T}"\ncallers.a = "${T}"\n',
        "3: access.callers.a: has the token of everybody",
    ),
    ('[access]\nallowed_host = "a"\n', "2: access.allowed_host: an array expected"),
    ('[access]\nallowed_host = ["a", 5]\n', "2: access.allowed_host[1]: a string expected"),
    (
        '[replicas]\npeers = {b = "http://b"}\n',
        "2: replicas.peers: peers need names (replicas.name) and common keys",
    ),
    ('[replicas]\npeers.b = "b"\n', "2: replicas.peers.b: it must begin with https:// or http://"),
    (
        '[admin]\nlisten = "0.0.0.0:1"\n',
        "2: admin.listen: 0.0.0.0 can be reached from other machines, and no token",
    ),
    (
        '[admin]\ntoken = "${T}"\n',
        "2: admin.token: is for the operator's listener; give admin.listen LISTEN too",
    ),
    ('[admin]\nlisten = "1"\nuds_mode = "600"\n', "3: admin.uds_mode: has no socket to apply to"),
    (
        '[audit]\narguments = ["a.b"]\n',
        "2: audit.arguments: has no log to be written to; give audit.log FILE",
    ),
    ('[audit]\nlog = "x"\narguments = ["a"]\n', "3: audit.arguments[0]: 'a' is not TOOL.ARGUMENT"),
    ("[record]\nsecrets = true\n", "2: record.secrets: is said of a recording; give record.file FILE too"),
    ('[log]\nlevel = "loud"\n', "2: log.level: 'loud' is not one of 'debug', 'info', 'warning', 'error'."),
    (
        '[admin]\nuds_mode = "600"\n',
        "2: admin.uds_mode: has no socket to apply to; give admin.listen unix:PATH too",
    ),
    ('default = "two"\n', "1: default: there is no server two"),
    ('drain_timeout = "0"\n', "1: drain_timeout: must be longer than 0"),
    ('allowed_commands = ["two"]\n', "3: servers.one.command: one is not among the allowed_commands"),
]


@pytest.mark.parametrize(("text", "fault"), PROCESS)
def test_fault_of_the_process_is_told_with_its_key(
    faults: Callable[..., list[str]], tmp_path: Path, text: str, fault: str
) -> None:
    (told,) = faults(text + ONE, T=TOKEN)
    assert told.startswith(fault.replace("{base}", str(tmp_path)))


SERVER = [
    ("command = []", "2: servers.x.command: names no program"),
    ('cmd = " "', "2: servers.x.cmd: names no program"),
    ('command = "x"\nenv = {"A=B" = "1"}', '3: servers.x.env."A=B": is no name'),
    ('command = "x"\nenv = {"A\\u0000" = "1"}', '3: servers.x.env."A\\u0000": is no name'),
    ('command = "x"\nenv = {A = "\\u0000"}', "3: servers.x.env.A: holds what is no text"),
    ('command = "x"\nenv = ["A=1"]', "3: servers.x.env: a table expected"),
    (
        'command = "x"\nrlimits = {files = 1}',
        "3: servers.x.rlimits.files: 'files' is no limit of this system",
    ),
    ('command = "x"\nrlimits = {nofile = true}', "3: servers.x.rlimits.nofile: a string expected"),
    ('command = "x"\ncwd = "no"', "3: servers.x.cwd: Directory '"),
    ('command = "x"\nisolation = "request"', "3: servers.x.isolation: request is for servers at a URL"),
    ('command = "x"\nallowed-host = []', "3: servers.x.allowed-host: unknown key"),
    (
        'command = "x"\nrequest-timeout = 1',
        "3: servers.x.request-timeout: unknown key; did you mean request_timeout",
    ),
    ('command = "x"\npolicy.tool.allow = []', "3: servers.x.policy.tool: unknown key; did you mean tools?"),
    ('command = "x"\npolicy = 1', "3: servers.x.policy: a table expected"),
    (
        'command = "x"\nquota.rate = {each = "1/s", bust = 1}',
        "3: servers.x.quota.rate.bust: unknown key; did you mean burst",
    ),
    ('command = "x"\nquota.rate = {burst = 1}', '3: servers.x.quota.rate: each = "10/s" expected'),
    (
        'command = "x"\nquota.rate = {each = 1, burst = 0}',
        "3: servers.x.quota.rate.burst: a number of at least 1",
    ),
    ('url = "http://x"\nargs = []', "3: servers.x.args: is for servers that are programs"),
    ('url = "${file:secret}"', "2: servers.x.url: it must begin with https:// or http://"),
    (
        'url = "http://x"\nheaders = {X = "a\\nb"}',
        "3: servers.x.headers.X: the value may hold only printable",
    ),
    ('url = "http://x"\nheaders = {X = ""}', "3: servers.x.headers.X: X: nothing follows the colon"),
    ('url = "http://x"\nheaders = {"X Y" = "s3cr3t-value"}', '3: servers.x.headers."X Y": K: V expected'),
    ('url = "http://x"\nheaders = {X = "a", x = "b"}', "3: servers.x.headers: x is given twice"),
    ('url = "http://x"\nheader_files = {X = "no"}', "3: servers.x.header_files.X: No such file"),
    (
        'url = "http://x"\ntransport = "${file:secret}"',
        "3: servers.x.transport: what the file holds cannot be used",
    ),
    ('url = "http://x"\nca_file = "pipe"', "3: servers.x.ca_file: '{base}/pipe' is no regular file"),
]


@pytest.mark.parametrize(("keys", "fault"), SERVER)
def test_fault_of_a_server_is_told_with_its_key(
    faults: Callable[..., list[str]], tmp_path: Path, keys: str, fault: str
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    os.mkfifo(tmp_path / "pipe")
    (told,) = faults(f"[servers.x]\n{keys}\n")
    assert told.startswith(fault.replace("{base}", str(tmp_path)))


@pytest.mark.parametrize("name", [*sorted(PROTECTED), "MCP-PARAM-Region"])
def test_header_of_the_protocol_cannot_be_set(faults: Callable[..., list[str]], name: str) -> None:
    (told,) = faults(f'[servers.x]\nurl = "http://x"\nheaders = {{{name} = "{SECRET}"}}\n')
    assert told == f"3: servers.x.headers: {name} is the protocol's own, and set by the bridge"


def test_fault_of_one_server_hides_no_fault_of_another(faults: Callable[..., list[str]]) -> None:
    text = "".join(f'[servers.{x}]\nurl = "http://{x}"\nheaders.Host = "x"\n' for x in "ab")
    assert [line.partition(":")[0] for line in faults(text)] == ["3", "6"]


def test_servers_that_are_no_tables_are_refused(faults: Callable[..., list[str]]) -> None:
    assert faults("servers = 5") == ["1: servers: tables [servers.NAME] expected"]


def test_servers_and_included_files_are_bounded(
    faults: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MOST_SERVERS", 1)
    monkeypatch.setattr(tree, "MOST_FILES", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.conf").touch()
    assert faults('include = ["*.conf"]\n' + ONE + ONE.replace("one", "two")) == [
        "1: include[0]: more than 1 files",
        "4: servers.two: more than 1 servers",
    ]


def test_program_in_a_line_is_held_against_the_list_too(faults: Callable[..., list[str]]) -> None:
    text = 'allowed_commands = ["good"]\n[servers.x]\ncmd = "evil -x"\n'
    assert faults(text) == ["3: servers.x.cmd: evil is not among the allowed_commands"]


def test_more_faults_than_anybody_reads_are_counted(faults: Callable[..., list[str]]) -> None:
    lines = faults("".join(f"x{number} = 1\n" for number in range(150)) + ONE)
    assert (len(lines), lines[-1]) == (101, "and 50 more")


def test_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"no\.toml: No such file or directory$"):
        settings.load(tmp_path / "no.toml", {})


def test_header_file_that_everybody_can_read_is_warned_of(file: Path, tmp_path: Path) -> None:
    (tmp_path / "h").write_text("x")
    (tmp_path / "h").chmod(0o644)
    file.write_text('[servers.x]\nurl = "http://x"\nheader_files.X = "h"\n')
    assert read(file, {}).warnings == (
        f"{file}: warning: every user of this machine can read the file of header_files X",
    )


def test_program_with_a_blank_in_its_name_is_warned_of(file: Path) -> None:
    file.write_text('[servers.x]\ncommand = "npx -y server"\n')
    (warning,) = read(file, {}).warnings
    assert "servers.x: the name of the program holds a blank; cmd is split into words" in warning


def test_fault_of_a_default_is_told_where_it_is(faults: Callable[..., list[str]]) -> None:
    text = '[defaults]\nheaders.Host = "x"\n[servers.x]\nurl = "http://x"\n'
    assert faults(text) == ["2: defaults.headers: Host is the protocol's own, and set by the bridge"]
    assert faults("[defaults]\nwarm = -1\n" + ONE) == ["2: defaults.warm: -1 is not in the range x>=0."]
    assert faults('[defaults]\nurl = "http://x"\n' + ONE) == [
        "2: defaults.url: unknown key; did you mean servers.NAME.url?"
    ]


def test_faults_of_included_files_are_told_with_their_own_names(file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('default = "one"\n[servers.one]\ncommand = "x"\n')
    (tmp_path / "b.toml").write_text("[servers.b]\n")
    (tmp_path / "c.toml").write_text("[")
    (tmp_path / "d.json").write_text('{"mcpServers": {}}')
    file.write_text('include = ["?.*", "none.toml"]\n' + ONE)
    with pytest.raises(UsageFault) as raised:
        settings.load(file, {})
    assert str(raised.value).splitlines() == [
        f"{file}:1: include[1]: there is no file none.toml",
        f"{tmp_path}/a.toml:1: default: only [servers.NAME] tables have a place in an included file",
        f"{tmp_path}/a.toml:2: servers.one: is there twice; the other is at {file}:2",
        f"{tmp_path}/b.toml:1: servers.b: no server: give command, cmd or url",
        f"{tmp_path}/c.toml:1: not TOML: invalid initial character for a key part",
        f"{tmp_path}/d.json: only TOML can be included",
    ]


ODD = (
    "5", "-1", "true", '""', '"x"', "[]", "[[]]", "{}", "{a = 1}", '{a = "b"}', '["a"]', "1.5", "nan", "-inf",
    "2020-01-01", '"\\u0000"', '"${file:.}"', '"a\\nb"',
)  # fmt: skip
WAYS = [
    *(".".join(way) for way, _ in walk(PROCESS_TABLES)),
    *(f"{table}.{'.'.join(way)}" for way, _ in walk(SERVER_TABLE) for table in ("servers.x", "defaults")),
]


@pytest.mark.parametrize("way", WAYS)
def test_no_value_of_any_key_is_more_than_a_fault(file: Path, way: str) -> None:
    for value in ODD:
        file.write_text(f"{way} = {value}\n{'' if way.startswith('servers.') else ONE}")
        with suppress(UsageFault):
            settings.load(file, {})
