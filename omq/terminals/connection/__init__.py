"""What the connections of every protocol share."""
