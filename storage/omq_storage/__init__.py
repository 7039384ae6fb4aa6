"""The stores of omq: blocks of messages in LMDB, one environment for each sync level, and a catalogue.

This package imports neither ``omq`` nor Trio.  Every call is synchronous and may block on the disk; the
server makes it in a worker thread.

Threads: any call may come from any thread at any time.  Each environment, and the catalogue, runs one writing
call at a time and lets the others wait for a lock.  So a server should have one writing thread for each
level.
"""
