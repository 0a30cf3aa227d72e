"""When each transfer uses the media that devices share. Pure."""
