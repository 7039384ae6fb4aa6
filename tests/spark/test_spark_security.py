"""Spark and replays at servers with TLS and clients of their own (docs/SECURITY.md)."""

import os
import pickle
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from certificates import Authority, CertificateFiles
from made_stores import Topic, make_store
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from replay_helpers import WrongCommandLine, replay
from serving_stores import HASH, Serving, secured, serving
from spark_helpers import Log, plan_of

from omq.bulk.credentials import IdFile, IdVariable
from omq.bulk.errors import BadOptions
from omq.bulk.network import PlainWire
from omq.bulk.opening import open_wire
from omq.spark import OmqDataSource
from omq.spark.options import read_options, spelled, write_options

PLAIN = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}


@dataclass
class SecuredServer:
    """A server, and the files that its clients have."""

    server: Serving
    authority: Authority
    directory: Path

    def id_file(self, name: str, secret: str = "sesame") -> Path:
        file = self.directory / f"{name}-{secret}.id"
        file.write_text(f"{name}:{secret}\n")
        return file

    def known(self, name: str, **more: object) -> dict[str, str]:
        """Return the options of a client; those of `more` go before, with `_` for a dot."""
        ours: dict[str, object] = {
            "omq.servers": self.server.url,
            "omq.tls.ca": self.authority.file,
            "omq.id.file": self.id_file(name),
        }
        given = ours | PLAIN | {key.replace("_", "."): value for key, value in more.items()}
        return {key: str(value) for key, value in given.items() if value is not None}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "authority")
    store = make_store(
        directory / "store", prices=Topic((10, 20)), payments=Topic((5,)), much=Topic([1000] * 20, size=1000)
    )
    with serving(store, security=secured(authority)) as server:
        yield SecuredServer(server, authority, directory)


def load(spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format("omq").options(**options).option("subscribe", topic).load()


def write(rows: DataFrame, topic: str, options: dict[str, str]) -> None:
    rows.write.format("omq").options(**options).option("topic", topic).mode("append").save()


# -- what works ---------------------------------------------------------------------------------------------


def test_a_batch_is_read(spark: SparkSession, place: SecuredServer) -> None:
    frame = load(spark, "prices", place.known("reader"))
    assert sorted(row.offset for row in frame.collect()) == list(range(1, 31))
    much = load(spark, "much", place.known("reader", minPartitions=4))
    assert sorted(row.offset for row in much.select("offset").collect()) == list(range(1, 20_001))
    assert much.selectExpr("sum(length(value))").collect()[0][0] == 20_000_000


def test_the_client_id_may_come_from_a_variable(spark: SparkSession, place: SecuredServer) -> None:
    options = place.known("reader", omq_id_file=None, omq_id_variable="OMQ_TEST_ID")
    assert load(spark, "prices", options).count() == 30


def test_rows_are_written(spark: SparkSession, place: SecuredServer) -> None:
    rows = spark.range(0, 50_000, 1, 2).selectExpr("lpad(cast(id as string), 100, '.') AS value")
    write(rows, "out.batch", place.known("feeder"))
    assert place.server.messages("out.batch") == 50_000


def test_a_stream_from_one_client_to_another(
    spark: SparkSession, place: SecuredServer, tmp_path: Path
) -> None:
    source = spark.readStream.format("omq").options(**place.known("reader")).option("subscribe", "prices")
    rows = source.option("startingOffsets", "earliest").load().select("value")
    target = rows.writeStream.format("omq").options(**place.known("feeder")).option("topic", "out.stream")
    query = target.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert place.server.messages("out.stream") == 30


def test_a_certificate_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = secured(authority, f'tls_client_ca = "{authority.file}"', clients="")
    own = authority.issue("somebody", "own")
    both = CertificateFiles(tmp_path / "both.pem", own.key)
    both.cert.write_bytes(own.key.read_bytes() + own.cert.read_bytes())
    store = make_store(tmp_path / "store", prices=Topic((10,)))
    with serving(store, security=settings) as server:
        here = SecuredServer(server, authority, tmp_path)
        with_key = here.known("x", omq_id_file=None, omq_tls_cert=own.cert, omq_tls_key=own.key)
        in_one_file = here.known("x", omq_id_file=None, omq_tls_cert=both.cert)
        for options in (with_key, in_one_file):
            assert load(spark, "prices", options).count() == 10
            write(load(spark, "prices", options).select("value"), "copy", options)
        assert load(spark, "copy", with_key).count() == 20
        text = failure(lambda: load(spark, "prices", here.known("x", omq_id_file=None)).count())
        assert "certificate required" in text
        assert "attempts" not in text


def test_a_server_that_dies_and_comes_back_has_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """Over TLS too, what is in doubt is sent again by who has sent it before."""
    authority = Authority(tmp_path / "authority")
    settings = secured(authority)
    over = threading.Event()
    errors: list[Exception] = []
    with serving(tmp_path / "store", security=settings) as first:
        port = first.running.port

        def restart() -> None:
            try:
                first.wait_for("out.t", lambda messages: messages > 0)
                first.kill()
                with serving(first.store, port=port, security=settings):
                    over.wait()
            except Exception as error:  # noqa: BLE001 - it is raised again below
                errors.append(error)

        keeper = threading.Thread(target=restart)
        keeper.start()
        options = SecuredServer(first, authority, tmp_path).known(
            "feeder", **{"fetchOffset.numRetries": "10000"}
        )
        options["fetchOffset.retryIntervalMs"] = "20"
        try:
            rows = spark.range(0, 300_000, 1, 2).selectExpr("lpad(cast(id as string), 100, '.') AS value")
            write(rows, "out.t", options)
        finally:
            over.set()
            keeper.join()
    assert errors == []
    found = (
        spark.read.format("omq").option("path", str(tmp_path / "store")).option("subscribe", "out.t").load()
    )
    assert found.count() == 300_000
    assert found.select("value").distinct().count() == 300_000


def test_questions_leave_at_once(place: SecuredServer, tmp_path: Path) -> None:
    """Whatever was said before them, of which the other system may tell only later that it has come."""
    with serving(tmp_path / "store") as plain:
        for options in ({"omq.servers": plain.address}, place.known("feeder")):
            servers = write_options(options).servers
            (address,) = servers.addresses
            with servers.open() as server:
                wire = open_wire(address.host, address.port, server.connected().security)
            assert isinstance(wire, PlainWire)
            assert wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            wire.close()


def test_a_process_that_plans_loads_no_store_and_no_tls() -> None:
    """Spark starts several for a query."""
    program = (
        "import sys\nfrom omq.spark.source import OmqDataSource\n"
        "source = OmqDataSource({'omq.servers': 'h', 'subscribe': 't'})\nsource.reader(source.schema())\n"
        "unwanted = {'lmdb', 'omq_storage.store', 'omq.protocol.tls', 'omq.arrow.columns'}\n"
        "sys.exit(', '.join(unwanted & sys.modules.keys()) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- what does not ------------------------------------------------------------------------------------------


def failure(work: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value)


def sentence(text: str) -> str:
    """Return the message of the last exception in Spark's output."""
    lines = [line for line in text.splitlines() if line.startswith("omq.bulk.errors.")]
    return lines[-1].partition(": ")[2]


def test_unsuitable_servers_are_refused_with_a_reason(
    spark: SparkSession, place: SecuredServer, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    address = place.server.address
    empty = tmp_path / "empty.id"
    empty.write_text("")
    host = f"omqs://localhost:{place.server.running.port}"
    cases = [
        (
            {"omq_tls_ca": stranger.file},
            f"The server {address} cannot be reached with TLS: the certificate is not accepted: "
            "unable to get local issuer certificate.",
        ),
        ({"omq_tls_ca": None}, f"The server {address} cannot be reached with TLS: the certificate is not "),
        ({"omq_servers": host}, "Hostname mismatch, certificate is not valid for 'localhost'."),
        ({"omq_tls_ca": tmp_path / "no.pem"}, f"{tmp_path}/no.pem: No such file or directory."),
        ({"omq_tls_ca": empty}, f"{empty}: no certificate in PEM."),
        (
            {"omq_tls_cert": place.authority.file},
            f"{place.authority.file}: no certificate in PEM with its key.",
        ),
        (
            {"omq_servers": address, "omq_tls_ca": None},
            f"The server {address} closed the connection at once; if it wants TLS, it is omqs://{address} "
            "(2 attempts)",
        ),
        (
            {"omq_id_file": place.id_file("reader", "simsim")},
            f"The server {address} has no client with the name and secret in the file "
            f"{place.directory}/reader-simsim.id.",
        ),
        (
            {"omq_id_file": None},
            f"The server {address} asks who we are, and no name and secret are given.",
        ),
        ({"omq_id_file": tmp_path / "no.id"}, f"{tmp_path}/no.id: No such file or directory."),
        ({"omq_id_file": empty}, f"{empty}: must have one line, NAME:SECRET."),
        (
            {"omq_id_file": None, "omq_id_variable": "OMQ_NOT_THERE"},
            "The variable OMQ_NOT_THERE, which should have NAME:SECRET, is not set here.",
        ),
    ]
    rows = spark.range(1).selectExpr("'a' as value")
    for given, wanted in cases:
        read = failure(lambda: load(spark, "prices", place.known("reader", **given)).count())  # noqa: B023 - it is called before the next round of the loop
        assert wanted in sentence(read), read
    # Writing tells the same; what is particular about it is only where it is found.
    for given, wanted in (cases[0], cases[7]):
        written = failure(lambda: write(rows, "out.t", place.known("feeder", **given)))  # noqa: B023 - it is called before the next round of the loop
        assert wanted in sentence(written), written


def test_a_server_without_tls(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path / "store") as server:
        options = {"omq.servers": f"omqs://{server.address}", "fetchOffset.numRetries": "0"}
        assert sentence(failure(lambda: load(spark, "t", options).count())) == (
            f"The server {server.address} cannot be reached with TLS: the connection ended without a reason; "
            "perhaps the port speaks no TLS: omq:// (1 attempt)"
        )


def test_topics_without_right(spark: SparkSession, place: SecuredServer) -> None:
    address = place.server.address
    assert sentence(failure(lambda: load(spark, "payments", place.known("reader")).count())) == (
        "There is no topic 'payments', or this client has no right to it."
    )
    # It may publish there, so it may know that there is such a topic.
    assert sentence(failure(lambda: load(spark, "prices", place.known("feeder")).count())) == (
        f"The server {address} said: Fetch prices: this client may not subscribe to it"
    )
    rows = spark.range(1).selectExpr("'a' as value")
    for topic, client in (("payments", "feeder"), ("prices", "reader")):
        said = sentence(failure(lambda: write(rows, topic, place.known(client))))  # noqa: B023 - it is called before the next round of the loop
        assert said == f"The server {address} said: Put {topic}: this client may not publish to it"


WRONG = [
    ({"omq.servers": "h", "omq.tls.ca": "a"}, "omq.tls.ca makes no sense here: it is for omqs://HOST:PORT"),
    ({"omq.servers": "omqs://h", "omq.tls.key": "a"}, "it is the key of omq.tls.cert"),
    ({"omq.servers": "omqs://h,g"}, "all addresses must be of the form omqs://HOST:PORT, or none"),
    (
        {"omq.servers": "omqs://reader:sesame@h"},
        "an address has the form HOST:PORT or omqs://HOST:PORT; options name the client",
    ),
    ({"omq.servers": "h", "omq.id.file": "a", "omq.id.variable": "b"}, "exclude each other"),
    ({"path": "p", "omq.id.file": "a"}, "omq.id.file makes no sense here: it is for omq.servers only"),
    ({"omq.servers": "h", "omq.id": "reader:sesame"}, "'omq.id': here it is omq.id.file, a file with one"),
    (
        {"omq.servers": "h", "kafka.sasl.jaas.config": "username=reader password=sesame"},
        "'kafka.sasl.jaas.config': here it is omq.id.file",
    ),
    ({"omq.servers": "h", "kafka.ssl.truststore.location": "a"}, "here it is omq.tls.ca, a file in PEM"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_options_that_make_no_sense(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOptions) as caught:
        read_options(options | {"subscribe": "t"}, stream=False)
    assert sentence in str(caught.value)
    assert "sesame" not in str(caught.value)
    if "path" not in options:
        with pytest.raises(BadOptions, match=re.escape(sentence)):
            write_options(options)


def test_options_of_a_place_say_it_again() -> None:
    for given in (
        {
            "omq.servers": "omqs://h:1,omqs://[::1]:2",
            "omq.tls.ca": "a",
            "omq.tls.cert": "b",
            "omq.tls.key": "c",
        },
        {"omq.servers": "h", "omq.id.file": "i", "fetchOffset.retryIntervalMs": "7"},
        {"omq.servers": "omq://h:3/", "omq.id.variable": "V", "fetchOffset.numRetries": "0"},
    ):
        servers = write_options(given).servers
        assert write_options(spelled(servers)).servers == servers
    assert write_options({"omq.servers": "h", "omq.id.file": "i"}).servers.credentials.id == IdFile("i")
    assert write_options({"omq.servers": "h", "omq.id.variable": "i"}).servers.credentials.id == IdVariable(
        "i"
    )


# -- what shows ---------------------------------------------------------------------------------------------


def test_secrets_show_nowhere(
    spark: SparkSession, place: SecuredServer, log: Log, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in plans nor in what goes to the tasks, nor in the checkpoint, nor in the log or an error."""
    log.mark()
    spark.sparkContext.setLogLevel("INFO")
    try:
        options = place.known("reader")
        frame = load(spark, "prices", options)
        shown = plan_of(frame, "extended") + str(frame.rdd.toDebugString())
        source = OmqDataSource(options | {"subscribe": "prices"})
        shown += repr(pickle.dumps(source.reader(source.schema()))) + repr(pickle.dumps(source))
        write(frame.select("value"), "out.shown", place.known("feeder"))
        stream = spark.readStream.format("omq").options(**options).option("subscribe", "prices")
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.lastProgress is not None
        shown += str(query.lastProgress.json)
        for name, secret in (("reader", "simsim"), ("nobody", "sesame")):
            wrong = place.known("reader", omq_id_file=place.id_file(name, secret))
            shown += failure(lambda: load(spark, "prices", wrong).count())  # noqa: B023 - it is called before the next round of the loop
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    shown += capfd.readouterr().out + log.text()
    for file in (tmp_path / "checkpoint").rglob("*"):
        shown += file.read_bytes().decode("utf-8", "replace") if file.is_file() else ""
    assert "prices" in shown
    shown = shown.replace("-sesame.id", "").replace("-simsim.id", "")  # as the files are called here
    assert "sesame" not in shown
    assert "simsim" not in shown


# -- replays ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(place: SecuredServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """Yield another server, of another authority, with other clients."""
    directory = tmp_path_factory.mktemp("target")
    authority = Authority(directory / "authority")
    clients = f'[[clients]]\nname = "copier"\nsecret = "{HASH}"\ndeclare = ["*"]\npublish = ["*"]\n'
    clients += f'[[clients]]\nname = "test"\nsecret = "{HASH}"\nsubscribe = ["*"]\n'
    with serving(directory / "store", security=secured(authority, clients=clients)) as server:
        yield SecuredServer(server, authority, directory)


def source_words(place: SecuredServer) -> list[str]:
    ca, id = place.authority.file, place.id_file("reader")
    return ["--server", place.server.url, "--ca", str(ca), "--id-file", str(id)]


def target_words(place: SecuredServer, topic: str) -> list[str]:
    to, ca, id = f"{place.server.url}/{topic}", place.authority.file, place.id_file("copier")
    return ["--to", to, "--to-ca", str(ca), "--to-id-file", str(id)]


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_replays_without_spark(place: SecuredServer, target: SecuredServer, pace: list[str]) -> None:
    topic = f"copied{len(pace)}"
    assert replay(*source_words(place), "prices", *pace, *target_words(target, topic)) == 0
    assert target.server.messages(topic) == 30


@pytest.mark.long
def test_the_programs_replay_with_and_without_spark(
    place: SecuredServer, target: SecuredServer, tmp_path: Path
) -> None:
    tool = Path(__file__).parents[2] / "tools" / "replay.py"
    omq = [sys.executable, "-c", "from omq.cli.start import main; main()"]
    where = ["--where", "offset % 2 = 0"]
    environment = os.environ | {
        "OMQ_ID": "reader:sesame",
        "OMQ_TO_ID": "copier:sesame",
        "OMQ_CA": str(place.authority.file),
    }
    by_variables = ["--server", place.server.url]
    to = ["--to", f"{target.server.url}/by-variables", "--to-ca", str(target.authority.file)]
    for command, wanted, topic in (
        ([*omq, *source_words(place), "replay", "prices", *target_words(target, "by-omq")], 30, "by-omq"),
        ([*omq, *by_variables, "replay", "prices", *where, *to], 15, "by-variables"),
        (
            [
                sys.executable,
                str(tool),
                *source_words(place),
                "prices",
                *where,
                *target_words(target, "tool"),
            ],
            15,
            "tool",
        ),
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert target.server.messages(topic) == wanted
        assert "sesame" not in (done.stdout + done.stderr).replace("-sesame.id", "")


def test_another_topic_of_the_same_server_needs_nothing_more(
    place: SecuredServer, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, id = str(place.authority.file), str(place.id_file("reader"))
    words = ["--server", place.server.url, "--ca", ca, "--id-file", id, "prices"]
    # That the client may not is what the server says: so it knew who it is.
    assert replay(*words, "--to", f"{place.server.url}/payments") == 1
    said = f"omq: The server {place.server.address} said: Put payments: this client may not publish to it\n"
    assert said in capsys.readouterr().err


def test_a_replay_refuses_unsuitable_servers_with_a_reason(
    place: SecuredServer, target: SecuredServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*source_words(place), "prices", *target_words(target, "never")]
    for given, wanted in (
        (["--ca", str(target.authority.file)], "cannot be reached with TLS: the certificate is not accepted"),
        (
            ["--to-ca", str(place.authority.file)],
            "cannot be reached with TLS: the certificate is not accepted",
        ),
        (["--id-file", str(target.id_file("copier"))], "has no client with the name and secret in the file "),
        (
            ["--to-id-file", str(place.id_file("reader"))],
            "has no client with the name and secret in the file ",
        ),
        (["--to-id-file", "no.id"], "no.id: No such file or directory."),
    ):
        assert replay(*words, *given) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith("omq: ")
        assert replay(*words, *given) == 1
        assert wanted in capsys.readouterr().err.splitlines()[-1]
    assert target.server.messages("never") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ca", "a", "--to", "jsonl:x"], "--ca is for a server at omqs://HOST:PORT."),
        (["--to-cert", "a", "--to", "omq://h"], "--to-cert is for a server at omqs://HOST:PORT."),
        (["--to-key", "a", "--to", "omqs://h"], "--to-key is the key of --to-cert."),
        (["--to", "omqs://me:sesame@h"], "options name the client"),
        (["--to", "omqs://127.0.0.1:7730"], "--to is where the messages come from"),
        (["--to-id-file", "a", "--to", "jsonl:x"], "--to-id-file is for --to omq://..."),
    ],
)
def test_wrong_command_lines(words: list[str], sentence: str) -> None:
    with pytest.raises(WrongCommandLine) as caught:
        replay("prices", *words)
    assert sentence in str(caught.value)
    assert "sesame" not in str(caught.value)
