"""Log the clients that can reach the server."""

import logging

from omq.config import Config, is_loopback, parse_address

log = logging.getLogger("omq.server")


def tell_exposure(config: Config) -> None:
    """Log the clients that can reach the server: as a warning if unknown clients can read or do something."""
    addresses = config.listen + config.listen_tls + config.listen_http
    if config.clients:
        for address in config.listen + config.listen_http:
            if not is_loopback(parse_address(address)[0]):
                log.warning(
                    "%s: without TLS, others on the network can read what clients send there, also secrets",
                    address,
                )
    elif not any(not is_loopback(parse_address(address)[0]) for address in addresses):
        log.info("no client is configured: only programs on this machine can connect, and may do everything")
    elif config.insecure:
        log.warning("no client is configured: every client that can connect may do everything")
    else:
        log.info("no client is configured: any client with an accepted certificate may do everything")
