"""What all tests share."""

from hypothesis import HealthCheck, settings

# No test of ours is about how fast hypothesis gets on, and on a busy machine it gets on slowly.
settings.register_profile("omq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("omq")
