"""The sockets of the agent: the loop that reads them, who may connect, pairing, mDNS."""
