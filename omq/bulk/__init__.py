"""Bulk work for programs without an event loop: read stored blocks, from a server over plain sockets or from
a store on this machine, and publish through sinks. Spark's data source, `omq.arrow` and the replay use it.
"""
