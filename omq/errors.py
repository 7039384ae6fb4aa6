"""The base class of the exceptions of all Python clients."""


class OmqError(Exception):
    """The base class of the exceptions of `omq.client`, `omq.blocking`, `omq.arrow` and `omq.spark`."""
