"""amqp-tools: the commands of librabbitmq, the client library in C."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from .serving import serving_guest

pytestmark = pytest.mark.skipif(shutil.which("amqp-publish") is None, reason="amqp-tools is not installed")


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_guest(tmp_path_factory.mktemp("tools")) as server:
        yield f"amqp://guest:guest@127.0.0.1:{server.port}"


def run(url: str, command: str, *arguments: str, text: str | None = None) -> str:
    """Run one of the commands, and return what it printed."""
    done = subprocess.run(
        [f"amqp-{command}", "-u", url, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_declare_publish_get_consume_and_delete(url: str) -> None:
    assert run(url, "declare-queue", "-q", "tools", "-d").strip() == "tools"
    run(url, "publish", "-r", "tools", "-p", "-b", "one")
    assert run(url, "get", "-q", "tools") == "one"
    run(url, "publish", "-r", "tools", "-l", text="1\n2\n3\n")
    assert run(url, "consume", "-q", "tools", "-c", "3", "cat") == "1\n2\n3\n"
    run(url, "publish", "-r", "tools", "-b", "left over")
    assert run(url, "delete-queue", "-q", "tools").strip() == "1"


def test_a_consumer_gets_messages_published_to_an_exchange(url: str) -> None:
    command = ["amqp-consume", "-u", url, "-e", "amq.topic", "-r", "prices.#", "-c", "1", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        assert consumer.stderr is not None
        assert "amq.gen-" in consumer.stderr.readline()  # it names its queue when it is bound
        run(url, "publish", "-e", "amq.topic", "-r", "prices.oil", "-b", "71")
        output, _ = consumer.communicate(timeout=60)
    assert output == "71"
