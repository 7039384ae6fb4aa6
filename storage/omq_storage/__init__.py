"""The stores of omq: blocks of messages in LMDB, one environment for each sync level, and their catalogue.

This package is the floor below everything else.  It never imports ``omq`` and knows nothing of Trio: every
call is plain and synchronous, and the server makes it in a worker thread.

Threads: reading calls may come from any thread at any time.  Writing calls may too, but each environment and
the catalogue let only one through at a time (a lock sees to it), so a server does best with one writer for
each level.
"""
