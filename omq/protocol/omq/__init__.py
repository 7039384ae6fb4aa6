"""The omq protocol on the wire: lines and sexps in, frames out."""
