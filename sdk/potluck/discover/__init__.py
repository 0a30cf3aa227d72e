"""Who is there: mDNS, explicit peers, and why nobody was found."""
