"""HTTP/1.1 and WebSocket, without sockets: octets in, requests and messages out."""
