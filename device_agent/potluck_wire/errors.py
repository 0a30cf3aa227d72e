"""The one error of the wire: what came in does not hold.

`code` is from `WireCode`, `text` is for people.
"""


class WireCode:
    """Which rule was broken (`WireError.code`)."""

    HEADER = "header"  # not msgpack, or not [number, {field: value}]
    SIZE = "size"  # longer than the cap
    NUMBER = "number"  # no such message
    CHANNEL = "channel"  # a known message, on the wrong socket
    FIELD = "field"  # an unknown or repeated field, a field of the wrong type or out of range
    BUFFERS = "buffers"  # too few or too many raw buffers, or not bytes
    TENSOR = "tensor"  # dtype, shape and length do not fit each other
    CHUNK = "chunk"  # out of order, of the wrong size, or after the last
    DOCUMENT = "document"  # a JSON document that does not hold
    STATE = "state"  # a message that may not come now, or not from this side
    VERSION = "version"  # another major version


class WireError(ValueError):
    """Something that came over the wire, or was about to be sent, breaks the protocol."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text
