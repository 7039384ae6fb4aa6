"""DMP on the wire: the dialogue about a lease, then envelopes."""
