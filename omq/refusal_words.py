"""The words of refusals that clients recognise: the server writes them, and a client decides what it does.

Clients of other versions know these words only. `omq.protocol.omq.sentences` recognises them.
"""

NO_CLIENT = "no client has this name and secret"

NOT_IN_TIME = "the client did not make itself known in time"

NO_TOPIC = "there is no such topic"

TOPIC_DELETED = "the topic was deleted"

OTHERS_WAIT = "while others wait for its memory"
"""The end of the sentence for a client that was too slow."""

MOST_IT_MAY_HAVE = "the most it may have"
"""The end of the sentence for a client that has used up a quota of its own."""
