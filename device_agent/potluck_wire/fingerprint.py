"""The fingerprint of a key, which people compare by eye on both sides. Pure."""


def fingerprint(key: str) -> str:
    """25 characters: `k3f2q-...`, the first 125 bits of the SHA-256 of a public key (its Z85 text)
    in base 32.
    """
    import base64  # here: `potluck agent --help` needs neither
    import hashlib

    digits = base64.b32encode(hashlib.sha256(key.encode()).digest()).decode().lower()[:25]
    return "-".join(digits[start : start + 5] for start in range(0, 25, 5))
