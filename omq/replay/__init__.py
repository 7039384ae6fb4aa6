"""Replaying stored topics: to Parquet, to JSON lines, or to a server (`omq replay`, `tools/replay.py`).

Nothing here needs Spark but `job`, which is imported only where Spark has something to do.
"""
