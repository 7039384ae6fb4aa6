"""Replay stored topics to Parquet, to JSON lines, or to a server (`omq replay`, `tools/replay.py`).

Only `job` needs Spark, and is imported only when a replay uses Spark.
"""
