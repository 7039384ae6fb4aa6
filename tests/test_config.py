"""Options and configuration of `omq-server`, with the command as users run it."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest
from server_command import run_server, running_server

from omq.config import Config, ConfigError, check, load, parse_address
from omq.model import LONGEST_BODY, LONGEST_HELD_BODY, Delivery, Persistent, Sync, Transient
from omq_storage import fragments
from omq_storage.codec import describe
from omq_storage.plain import FRAME_HEADER, FRAMES_LIMIT

# -- a configuration that cannot be used --------------------------------------------------------------------

HASH = "$scrypt$ln=14,r=8,p=1$" + "c" * 22 + "$" + "K" * 43

BAD = [
    # An unknown key, and wrong types.
    ("pings = 3", "pings"),
    ('ping_seconds = "often"', "ping_seconds"),
    ('listen = "127.0.0.1:7730"', "listen"),
    ("store = 5", "store"),
    ('allow_undeclared = "yes"', "allow_undeclared"),
    ("max_topics = 1.5", "max_topics"),
    # Values out of bounds.
    ("ping_seconds = 0", "ping_seconds"),
    (
        f"max_topics = 1_0{'_9' * 4999}",
        f"max_topics: 10{'9' * 58}... is not allowed",
    ),
    (
        f"max_topics = 0x{'9' * 5000}",
        f"max_topics: 0x{'9' * 58}... is not allowed",
    ),
    ("ping_seconds = 51", "ping_seconds"),
    ("ping_seconds = nan", "ping_seconds"),
    ("missed_pings = -1", "missed_pings"),
    # Numbers with which the server could not compute.
    *(
        (f"{key} = {number}", key)
        for key in (
            "missed_pings",
            "max_connections",
            "max_subscriptions",
            "max_topics",
            "max_exchanges",
            "max_bindings",
            "max_leases",
            "max_dmp_connections",
            "max_credit",
            "max_line_bytes",
            "max_message_bytes",
            "memory_bytes",
            "disk_reserve_bytes",
            "spool_bytes",
            "retention_bytes",
        )
        for number in (1 << 60, 10**400)
    ),
    *(
        (f"{key} = {seconds}", key)
        for key in (
            "handshake_seconds",
            "stall_seconds",
            "spool_seconds",
            "lease_seconds",
            "weak_flush_seconds",
            "async_flush_seconds",
            "retention_seconds",
        )
        for seconds in ("1e11", "1e308", "nan")
    ),
    (f'clients = [{{name = "a", secret = "{HASH}", max_bytes_per_second = {1 << 60}}}]', "per_second"),
    ("handshake_seconds = 0", "handshake_seconds"),
    ("max_topics = 0", "max_topics"),
    ("client_share = 0", "client_share"),
    ("client_share = 1.01", "client_share"),
    ("client_share = nan", "client_share"),
    ("max_subscriptions = 0", "max_subscriptions"),
    ("max_topics = 2147483648", "max_topics"),
    ("max_line_bytes = 1023", "max_line_bytes"),
    ("max_message_bytes = 0", "max_message_bytes"),
    ("max_credit = 0", "max_credit"),
    ("memory_bytes = 1000000", "memory_bytes"),
    ("weak_flush_seconds = 0", "weak_flush_seconds"),
    ("async_flush_seconds = -1", "async_flush_seconds"),
    ("map_bytes = 1000", "map_bytes"),
    ("map_bytes = 9999999999999999999999", "map_bytes"),
    ("weak_flush_seconds = inf", "weak_flush_seconds"),
    ("disk_reserve_bytes = -1", "disk_reserve_bytes"),
    ("spool_bytes = -1", "spool_bytes"),
    ("spool_seconds = 0", "spool_seconds"),
    ("retention_bytes = 0", "retention_bytes"),
    ("retention_seconds = 0", "retention_seconds"),
    ('default_delivery = "Broadcast"', "default_delivery"),
    ('default_persistence = "durable"', "default_persistence"),
    ('store = ""', "store"),
    ('topics = [{name = "a", retention_seconds = inf}]', "topics[0].retention_seconds"),
    # Faults that only several keys together show.
    ("max_line_bytes = 100_000_000", "max_line_bytes"),
    ("max_message_bytes = 4_294_967_283", "32 bits"),
    ("fragment_octets = 65_536", "fragment_octets"),
    ("fragment_octets = 67_108_865", "fragment_octets"),
    ('max_topics = 1\ntopics = [{name = "a"}, {name = "b"}]', "max_topics"),
    # Addresses.
    ("listen = []", "listen"),
    ('listen = ["localhost"]', "listen"),
    ('listen = ["127.0.0.1:65536"]', "listen"),
    ('listen = ["::1:7730"]', "listen"),
    ('listen = ["127.0.0.1:00000000000000007730"]', "listen"),
    # Topics.
    ("[[topics]]", "name"),
    ('[[topics]]\nname = ""', "topics.name"),
    (f'[[topics]]\nname = "{"ü" * 128}"', "topics.name"),
    ('[[topics]]\nname = "a"\n[[topics]]\nname = "a"', "topics.name"),
    ('[[topics]]\nname = "a"\nkind = "weak"', "kind"),
    ('[[topics]]\nname = "a"\ndelivery = "all"', "topics[0].delivery"),
    ('[[topics]]\nname = "a"\n[[topics]]\nname = "b"\npersistence = "safe"', "topics[1].persistence"),
    ('[[topics]]\nname = "a"\nretention_bytes = 0', "topics[0].retention_bytes"),
    ('[[topics]]\nname = "a"\npersistence = "transient"\nretention_seconds = 5', "topics.retention_"),
    # Values that cannot be shown as they are, or are not possible.
    ('"a\\nb" = 1', r"a\nb: "),
    ('topics = [{"\\u001b[31m" = 1}]', r"\x1b[31m: "),
    ('store = "\\u0000"', "store"),
    ('listen = ["\\u0000:1"]', "listen"),
    # No configuration is like this, and the reader of TOML gives up in its own ways.
    (f"max_topics = {'9' * 5000}", "max_topics"),
    (f"ping_seconds = 0x{'9' * 5000}", "ping_seconds"),
    (f"store = {'[' * 5000}", "nested"),
    # Clients.
    ('clients = [{name = "a"}]', "secret"),
    ('clients = [{name = "a", secret = "sesame"}]', "clients.secret"),
    (f'clients = [{{name = "a", secret = ["{HASH}", "{HASH}"]}}]', "same hash twice"),
    (f'clients = [{{name = "", secret = "{HASH}"}}]', "clients.name"),
    (f'clients = [{{name = "a:b", secret = "{HASH}"}}]', "clients.name"),
    (f'clients = [{{name = "a", secret = "{HASH}"}}, {{name = "a", secret = "{HASH}"}}]', "clients.name"),
    (f'clients = [{{name = "a", secret = "{HASH}", publish = [""]}}]', "clients.publish"),
    (f'clients = [{{name = "a", secret = "{HASH}", max_connections = 0}}]', "max_connections"),
    (f'clients = [{{name = "a", secret = "{HASH}", certificate = "a.example"}}]', "tls_client_ca"),
    (f'clients = [{{name = "a", secret = "{HASH}", certificate = ""}}]', "clients.certificate"),
    (
        'tls_cert = "a"\ntls_key = "b"\ntls_client_ca = "c"\n'
        f'clients = [{{name = "a", secret = "{HASH}", certificate = "x"}},'
        f' {{name = "b", secret = "{HASH}", certificate = "x"}}]',
        "stands there twice",
    ),
    (f'clients = [{{name = "a", secret = "{HASH.replace("ln=14", "ln=40")}"}}]', "clients.secret"),
    ("max_connections = 0", "max_connections"),
    # Certificates, and who may come without.
    ('tls_cert = ""\ntls_key = "b"', "tls_cert: must name a file"),
    ('tls_cert = "a"\ntls_key = ""', "tls_key: must name a file"),
    ('tls_cert = "a"\ntls_key = "b"\ntls_client_ca = ""', "tls_client_ca: must name a file"),
    ('tls_cert = "a.pem"', "tls_key"),
    ('listen_tls = ["127.0.0.1:0"]', "listen_tls"),
    ('listen = ["127.0.0.1:7730", "127.0.0.1:7730"]', "listen: '127.0.0.1:7730' is there twice"),
    ('listen = ["[::1]:1"]\nlisten_http = ["[::1]:1"]', "listen_http: '[::1]:1' is there twice"),
    ('tls_client_ca = "a.pem"', "tls_client_ca"),
    ('listen = ["192.0.2.1:0"]', "insecure"),
    # No TOML at all.
    ("ping_seconds = \n", "line 1"),
]


@pytest.mark.parametrize(("text", "key"), BAD)
def test_a_bad_configuration_is_one_line_that_names_the_file_and_the_key(
    text: str, key: str, tmp_path: Path
) -> None:
    file = tmp_path / "omq.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    if key != "listen" or "[" not in text:  # an address is refused by its own words, tested below
        assert message.startswith(f"{file}: ")
    assert key in message


SECRET_WRONG = (
    "clients[0].secret: the value is not allowed: it must be text in quotes or a list of 1 to 2 elements in "
    "square brackets, each text in quotes"
)

SENTENCES = [
    ("ping_seconds = 51", "ping_seconds: 51 is not allowed: it must be a number above 0 and at most 50"),
    ("ping_seconds = []", "ping_seconds: a list is not allowed: it must be a number above 0 and at most 50"),
    (
        "max_topics = true",
        "max_topics: true is not allowed: it must be an integer of at least 1 and at most 2147483647",
    ),
    ("insecure = 1", "insecure: 1 is not allowed: it must be true or false"),
    (
        "retention_bytes = 0.5",
        "retention_bytes: 0.5 is not allowed: "
        "it must be an integer of at least 1 and at most 9007199254740991",
    ),
    (
        'retention_bytes = "10GiB"',
        'retention_bytes: "10GiB" is not allowed: '
        "it must be an integer of at least 1 and at most 9007199254740991; 10GiB is 10_737_418_240",
    ),
    (
        '[[topics]]\nname = "a"\nretention_seconds = "1.5h"',
        'topics[0].retention_seconds: "1.5h" is not allowed: '
        "it must be a number above 0 and at most 10000000000; 1.5h is 5_400",
    ),
    (
        'max_topics = "1k"',
        'max_topics: "1k" is not allowed: it must be an integer of at least 1 and at most 2147483647',
    ),
    ("store = {}", "store: a table is not allowed: it must be text in quotes"),
    ("listen = [5]", "listen[0]: 5 is not allowed: it must be text in quotes"),
    (
        f'listen = "{"x" * 99}"',
        f'listen: "{"x" * 59}... is not allowed: it must be a list in square brackets, each text in quotes',
    ),
    (
        'log_level = "loud\\n"',
        'log_level: "loud\\n" is not allowed: it must be "debug", "error", "info" or "warning"',
    ),
    ("log_levels = 1", "log_levels: 1 is not allowed: it must be a table"),
    (
        'log_levels = {server = "x"}',
        'log_levels: one of its values is not allowed: it must be "debug", "error", "info" or "warning"',
    ),
    (
        "topics = 1",
        "topics: 1 is not allowed: it must be tables, each below its heading in double square brackets",
    ),
    ('topics = [{name = "a"}, {name = 1}]', "topics[1].name: 1 is not allowed: it must be text in quotes"),
    ("[[topics]]", "topics[0].name: it is required"),
    ('[[topics]]\nname = "a"\nkind = "weak"', "topics[0].kind: there is no such key"),
    ("surplus = 1", "surplus: there is no such key"),
    ('listn = ["127.0.0.1:1"]', "listn: there is no such key; perhaps you mean listen"),
    (
        '[[topics]]\nname = "a"\npersistance = "weak"',
        "topics[0].persistance: there is no such key; perhaps you mean persistence",
    ),
    (
        '[[topics]]\nname = "a"\n\nmax_connections = 5',
        "topics[0].max_connections: there is no such key; "
        "max_connections stands above the first heading in square brackets",
    ),
    (
        'listn = []\nstore = "a"\nxyz = {a = {b = 1}}\n'
        '[[topics]]\nname = "a"\nkind = "weak"\n\n[[topics]]\nnam = "b"\nhttp = true',
        "listn: there is no such key; perhaps you mean listen; xyz: there is no such key; "
        "topics[0].kind: there is no such key; "
        "topics[1].nam: there is no such key; perhaps you mean name; "
        "topics[1].http: there is no such key; http stands above the first heading in square brackets",
    ),
    (
        "store = 5\nsurplus = 1\nother = 2",
        "store: 5 is not allowed: it must be text in quotes; "
        "surplus: there is no such key; other: there is no such key",
    ),
    (
        "\n".join(f"key{number} = 1" for number in range(13)),
        "; ".join([*(f"key{number}: there is no such key" for number in range(10)), "and there are 3 more"]),
    ),
    (
        'clients = [{name = "a", secret = 5}]',
        SECRET_WRONG,
    ),
    (
        'clients = [{name = "a", secret = []}]',
        SECRET_WRONG,
    ),
    (
        'clients = [{name = "a", secret = ["sesame", 5]}]',
        "clients[0].secret[1]: the value is not allowed: it must be text in quotes",
    ),
]


@pytest.mark.parametrize(("text", "said"), SENTENCES)
def test_a_wrong_value_is_named_with_the_allowed_ones(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: {said}"


def test_the_command_refuses_a_bad_configuration(tmp_path: Path) -> None:
    # One case of each kind; all of them take the same way to the exit.
    for text, key in (BAD[0], BAD[6], BAD[25], BAD[-1]):
        file = tmp_path / "omq.toml"
        file.write_text(text)
        done = run_server("--config", file, "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"omq-server: [^\n]*{re.escape(key)}[^\n]*\n", done.stderr), done.stderr
    assert not (tmp_path / "store").exists()


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    missing = run_server("--config", tmp_path / "missing.toml")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == f"omq-server: {tmp_path}/missing.toml: No such file or directory\n"
    (tmp_path / "latin.toml").write_bytes(b'store = "\xe9"')
    latin = run_server("--config", tmp_path / "latin.toml")
    assert (latin.returncode, latin.stdout) == (2, "")
    assert latin.stderr == f"omq-server: {tmp_path}/latin.toml: not UTF-8 text (octet 9)\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--listen", "nowhere"], "listen"),
        (["--listen", "127.0.0.1:http"], "listen"),
        (["--listen", ":7730"], "listen"),
        (["--listen", "127.0.0.1:"], "listen"),
        (["--store"], "--store"),
        (["--log-format", "xml"], "--log-format"),
        (["--log-level", "loud"], "--log-level"),
        (["--prot", "2"], "--prot"),
        (["surplus"], "surplus"),
    ],
)
def test_a_bad_option_is_named(options: list[str], named: str) -> None:
    done = run_server(*options)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("omq-server: ")
    assert named in last
    assert "Traceback" not in done.stderr


# -- a configuration that can be used -----------------------------------------------------------------------


def test_a_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text(
        """
        listen = ["127.0.0.1:0", "[::1]:0"]
        default_delivery = "round-robin"
        default_persistence = "transient"
        retention_bytes = 1000
        retention_seconds = 60

        [[topics]]
        name = "prices"
        persistence = "strong"
        retention_bytes = 5000
        """
    )
    config = load(file)
    assert config.listen == ["127.0.0.1:0", "[::1]:0"]
    assert config.default_types() == (Delivery.ROUND_ROBIN, Transient())
    assert config.topics[0].types() == (Delivery.BROADCAST, Persistent(Sync.STRONG))
    assert config.retentions() == {b"prices": (5000, 60)}
    assert config.retention() == (1000, 60)


def test_a_configuration_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text("ping_seconds = 7\n", encoding="utf-8-sig")
    assert load(file).ping_seconds == 7
    file.write_text("ping_seconds = 7\n\ufeff", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        load(file)


def test_without_a_file_everything_has_its_default() -> None:
    assert load(None) == Config()
    check(Config())


def test_a_secret_in_place_of_its_hash_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text('clients = [{name = "a", secret = "sesame"}]')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert "sesame" not in str(caught.value)
    assert "omq-server --hash-secret" in str(caught.value)


def test_addresses_for_tls_replace_the_default_address(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    files = 'tls_cert = "a.pem"\ntls_key = "a.key"\n'
    file.write_text(files + 'listen_tls = ["127.0.0.1:1"]')
    assert (load(file).listen, load(file).listen_tls) == ([], ["127.0.0.1:1"])
    file.write_text(files + 'listen_tls = ["127.0.0.1:1"]\nlisten = ["127.0.0.1:2"]')
    assert load(file).listen == ["127.0.0.1:2"]
    # Certificates of clients do for clients.
    file.write_text(files + 'tls_client_ca = "ca.pem"\nlisten_tls = ["192.0.2.1:1"]')
    assert load(file).listen_tls == ["192.0.2.1:1"]
    file.write_text(files + 'tls_client_ca = "ca.pem"\nlisten = ["192.0.2.1:1"]')
    with pytest.raises(ConfigError, match="insecure"):
        load(file)


def test_addresses() -> None:
    assert parse_address("localhost:0") == ("localhost", 0)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    for wrong in ("", ":", "localhost", "localhost:", ":1", "a:b", "a:-1", "a:65536", "::1:5", "a:٣"):
        with pytest.raises(ConfigError, match="listen: "):
            parse_address(wrong)


def test_options_have_precedence_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text(f'listen = ["127.0.0.1:1"]\nstore = "{tmp_path}/not-this-one"\n')
    store = tmp_path / "store"
    with running_server("--config", file, "--listen", "127.0.0.1:0", "--store", store) as server:
        assert server.port > 1
        assert server.stop()[0] == 0
    assert store.is_dir()
    assert not (tmp_path / "not-this-one").exists()


# -- the life of the command --------------------------------------------------------------------------------


def test_help() -> None:
    done = run_server("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--listen", "--store", "--config", "--log-format", "examples:", "exit status:"):
        assert word in done.stdout


def test_version() -> None:
    done = run_server("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"omq \d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_prints_when_it_is_ready_and_stops_for_a_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        assert re.fullmatch(r"omq-server listening on 127\.0\.0\.1:[1-9][0-9]*\n", server.ready)
        socket.create_connection(("127.0.0.1", server.port)).close()
        status, output, log = server.stop(number)
    assert (status, output) == (0, "")
    assert "Traceback" not in log
    assert describe() in log


def test_the_server_stops_while_clients_are_connected(tmp_path: Path) -> None:
    with (
        running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server,
        socket.create_connection(("127.0.0.1", server.port)),  # says nothing
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.sendall(b"\0\0\0\0\0\0\0\x01(Connect 1 someone)\n(Subscribe news From_current)\n")
        assert client.recv(8) == b"\0\0\0\0\0\0\0\x01"
        status, output, log = server.stop()
    assert (status, output) == (0, "")
    assert "Traceback" not in log


def test_two_addresses_are_two_lines(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0")
    with running_server(*options, "--store", tmp_path / "store") as server:
        assert server.process.stdout is not None
        second = server.process.stdout.readline()
        assert server.stop()[0] == 0
    assert re.fullmatch(r"omq-server listening on 127\.0\.0\.1:[0-9]+\n", second)
    assert second != server.ready


def test_a_second_server_on_the_same_store_is_refused(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options) as first:
        second = run_server(*options)
        assert (second.returncode, second.stdout) == (2, "")
        last = second.stderr.splitlines()[-1]
        assert last.startswith("omq-server: ")
        assert str(tmp_path / "store") in last
        # The first one does not notice, and the store is free again after it.
        socket.create_connection(("127.0.0.1", first.port)).close()
        assert first.stop()[0] == 0
    with running_server(*options) as third:
        assert third.stop()[0] == 0


def test_a_busy_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        done = run_server("--listen", address, "--store", tmp_path / "store")
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("omq-server: ")
    assert address in last
    assert "Traceback" not in done.stderr


def test_a_directory_of_something_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    done = run_server("--listen", "127.0.0.1:0", "--store", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(tmp_path) in done.stderr
    assert (tmp_path / "diary.txt").read_text() == "dear diary"


def test_configured_topics_keep_their_types(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    options = ("--config", file, "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    file.write_text('topics = [{name = "jobs", delivery = "round-robin", persistence = "strong"}]')
    with running_server(*options) as server:
        assert server.stop()[0] == 0
    file.write_text('topics = [{name = "jobs", delivery = "broadcast"}]')
    done = run_server(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "omq-server: topics: 'jobs', configured as Broadcast (Persistent Weak): "
        "the topic exists as Round_robin (Persistent Strong)"
    )


def test_logs_as_json_lines(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options, "--log-format", "json") as server:
        status, _, log = server.stop()
    assert status == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert lines
    for line in lines:
        assert {"asctime", "levelname", "name", "message"} <= set(line)


def test_logs_as_text_and_their_level(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options) as server:
        log = server.stop()[2]
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO .*SIGTERM: stopping$", log, re.MULTILINE)
    with running_server(*options, "--log-level", "warning") as server:
        assert server.stop()[2] == ""


def test_the_longest_message_that_may_be_configured_fits_into_a_frame() -> None:
    assert LONGEST_BODY == fragments.LONGEST_BODY
    assert LONGEST_HELD_BODY + FRAME_HEADER == FRAMES_LIMIT - 1
    check(Config(max_message_bytes=LONGEST_BODY))  # however little memory there is
