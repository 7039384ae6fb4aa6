"""A standalone cluster, with a master, a worker and a driver of its own: docs/SPARK.md, "On a cluster"."""

import os
import re
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

import pyspark
from java_classes import java_options
from made_stores import Topic, make_store
from serving_stores import serving

DOCUMENT = (Path(__file__).parents[2] / "docs" / "SPARK.md").read_text()
SPARK = Path(pyspark.__file__).parent


def block(language: str, word: str) -> str:
    """Return the one program of the document in this language that has this word."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    (program,) = (text for text in found if word in text)
    return textwrap.dedent(program)


@contextmanager
def spark_process(role: str, ready: str, *words: str) -> Iterator[re.Match[str]]:
    """Yield a master or a worker, once it has said so."""
    name = f"org.apache.spark.deploy.{role.lower()}.{role}"
    command = [str(SPARK / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--port", "0", *words]
    environment = os.environ | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["JDK_JAVA_OPTIONS"] = java_options()  # the executors have it from their worker
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            log = ""
            for line in process.stderr:
                log += line
                if (found := re.search(ready, line)) is not None:
                    break
            else:
                raise AssertionError(f"{role} did not start: {log}")
            yield found
        finally:
            os.killpg(process.pid, 9)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a cluster with one worker, whose Python cannot import omq by itself."""
    with ExitStack() as stack:
        started = r"Starting Spark master at (spark://\S+)"
        address = stack.enter_context(spark_process("Master", started, "--webui-port", "0"))[1]
        of_worker = (
            "--webui-port",
            "0",
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / "work"),
        )
        stack.enter_context(
            spark_process("Worker", "Successfully registered with master", *of_worker, address)
        )
        yield address


def make_environment(directory: Path) -> None:
    """Make a stand-in for a packed environment: its Python is the one of these tests."""
    python = directory / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nOMQ_TEST_SHIPPED=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(directory / "omq.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")


@pytest.mark.long
def test_a_job_on_a_standalone_cluster(master: str, tmp_path: Path) -> None:
    make_environment(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([300, 200]))) as server:
        job = block("python", "tripling").replace("127.0.0.1:7730", server.address)
        told = """
            def where(_):
                import os
                yield os.environ["OMQ_TEST_SHIPPED"], os.getcwd()

            print(spark.sparkContext.range(0, 2, numSlices=2).mapPartitions(where).collect())
        """
        (tmp_path / "job.py").write_text(job + textwrap.dedent(told))
        done = subprocess.run(
            [
                "bash",
                "-euo",
                "pipefail",
                "-c",
                block("sh", "--archives").replace("spark://master:7077", master),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        count, workers = done.stdout.splitlines()
        assert count == "500"
        assert workers.count("('yes', '" + str(tmp_path / "work")) == 2, (
            "the executors have the shipped Python"
        )
        assert server.messages("tripled") == 500
