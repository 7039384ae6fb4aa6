"""Authentication, rights, quotas and rate limits of clients, and the sessions that enforce them."""
