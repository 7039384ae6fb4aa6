"""The start of Java for Spark in tests. As a program this makes an archive of the classes that Spark loads.

Half of the processor time in which Spark starts is Java's for loading classes: it unpacks, verifies and links
them. With the archive it maps them. `tools/test` makes it in .venv once for each version of Java and Spark.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

ARCHIVE = Path(sys.prefix) / "spark.jsa"
MADE_OF = ARCHIVE.with_suffix(".of")

# Java spends most of its first seconds on optimizing what a short test runs once. Without that, a Spark job
# takes half the processor time, which on a busy machine decides whether it ends before the test gives up.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Without these it would warn on standard output of an archive that it cannot use, and does without.
SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Return the options for Java, with the archive if there is one. Java ignores one of other classes."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {SILENT}" if ARCHIVE.exists() else QUICK


def make_archive() -> None:
    """Make the archive, unless it is there for this Java and this Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    made_of = f"{told}{version('pyspark')}\n"
    if ARCHIVE.exists() and MADE_OF.exists() and MADE_OF.read_text() == made_of:
        return
    ARCHIVE.unlink(missing_ok=True)
    new = ARCHIVE.with_suffix(".new")
    environment = os.environ | {"SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={new} {SILENT}"}
    with TemporaryDirectory() as place:
        command = [sys.executable, __file__, place]
        # Java, which writes the archive at its end, has this pipe, too: its end is waited for.
        subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, timeout=900)
    MADE_OF.write_text(made_of)
    new.rename(ARCHIVE)


def run_jobs(place: Path) -> None:
    """Run the queries of most tests: a batch and a stream out of a store, into files."""
    from made_stores import Topic, make_store

    from omq.spark import local_session

    spark = local_session("classes", cores=2, settings={"spark.local.dir": str(place / "scratch")})
    store = make_store(place / "store", prices=Topic([10, 20]))
    read = {"path": str(store), "subscribe": "prices", "startingOffsets": "earliest"}
    batch = spark.read.format("omq").options(**read).load()
    batch.groupBy("topic").count().write.parquet(str(place / "batch"))
    assert spark.read.parquet(str(place / "batch")).collect()[0]["count"] == 30
    stream = spark.readStream.format("omq").options(**read).load().select("offset", "value").writeStream
    stream = stream.format("parquet").option("checkpointLocation", str(place / "kept"))
    stream.trigger(availableNow=True).start(str(place / "stream")).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        run_jobs(Path(sys.argv[1]))
    else:
        make_archive()
