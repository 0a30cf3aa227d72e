"""Every number that both sides must agree on: caps, sizes, times and ports, each with its reason.

Caps are checked before memory is taken. PROTOCOL.md prints this table and a test compares the two.
"""

import re

KIB = 1024
MIB = 1024 * KIB

# --- one message ----------------------------------------------------------------------------------

# ZeroMQ's maxmsgsize: without it one 1 GiB frame before the handshake takes 700 MiB
MAX_FRAME_BYTES = 8 * MIB
# CURVE wraps each frame (33 bytes), and the wrapped frame is what is capped
MAX_BUFFER_BYTES = MAX_FRAME_BYTES - KIB
# 1 MiB of empty msgpack maps becomes 73 MiB of Python objects; 16 KiB stays near 1 MiB
MAX_HEADER_BYTES = 16 * KIB
# `assign` of a whole segment names some hundred values; never on a network
MAX_WORKER_HEADER_BYTES = 256 * KIB
MAX_ITEMS = 64  # entries of one tuple field: dimensions, batch sizes
MAX_WORKER_ITEMS = 4096  # the same on the worker's pipe: values of one instruction
MAX_FIELDS = 32  # fields of one message; today's largest has 10
MAX_STR_BYTES = 512  # names are shorter; texts for people are clipped to it by the sender
MAX_BIN_BYTES = 64  # a SPAKE2 share is 33 bytes, an HMAC-SHA256 32
MAX_INT = 2**53  # what a double holds exactly, so that no reader in any language rounds
MAX_PAIRING_BYTES = KIB  # one whole pairing message: it is read before anybody is trusted
# header and buffers together: documents are small, tensors travel in chunks
MAX_MESSAGE_BYTES = 64 * MIB
# one JSON document; a program of 20,000 instructions takes about 2 MiB
MAX_DOCUMENT_BYTES = 4 * MIB
# what a device says of itself takes some 20 KiB; 4 MiB of lists take a second to be read
MAX_STATEMENT_BYTES = 256 * KIB
# what its worker says of that, as the agent tells it on: with the rest it stays within the above
MAX_FACTS_BYTES = MAX_STATEMENT_BYTES // 2
MAX_DEPTH = 16  # lists and objects in one another in a JSON document; a plan has 8

MAX_CLOCK_S = 1e10  # 300 years: any monotonic clock; what is reckoned with one stays within 2**53

# --- tensors --------------------------------------------------------------------------------------

MAX_DIMENSIONS = 16
MAX_VALUE_BYTES = 4096 * MIB  # one tensor: a billion float32 numbers; more is sent in slices
# a 4 MiB frame never arrives on an 8 Mbit/s link with 1.5 s heartbeats; 1 MiB still does
CHUNK_BYTES = 256 * KIB
# of a value of several: each costs a message, and every fourth one of credit
MIN_CHUNK_BYTES = 16 * KIB
# where a link carries it in 20 ms: each chunk costs either end 0.2 ms, however large
MAX_CHUNK_BYTES = 2 * MIB
# messages for one peer that ZeroMQ holds: more than a window of values and the credit for another
# one come to, so whoever fills it does not read, and is parted from
MAX_QUEUED = 16_384
# sent and not yet credited, per peer: of two, a fast link stood still until credit came
WINDOW_CHUNKS = 8
# the most: fills 160 MiB/s at 100 ms, and a phone can hold it
WINDOW_BYTES = WINDOW_CHUNKS * MAX_CHUNK_BYTES
# values begun and not acknowledged, per peer: an empty one takes no bytes of the window, and its
# message waits in memory all the same; a window of the smallest chunks has as many messages
MAX_TRANSFERS = 1024
# taken in and not yet credited, of all values of a peer: then credit is due for each of them
CREDIT_CHUNKS = 4
# the same for large chunks: credit is back before the window is used up
CREDIT_BYTES = WINDOW_BYTES // 4

# --- what waits at one agent ----------------------------------------------------------------------

MAX_EXECUTIONS = 256  # under way, or behind another one; a stream of requests has 4, training 2
MAX_UNDER_WAY = 400_000  # instructions of these executions: four programs of the largest size
# JSON documents of all plans that are loaded; each takes some 25 times that of memory
MAX_PLANS_BYTES = 32 * MIB
MAX_MEASURES = 256  # layers that one notebook wants timed; profiling asks for one after the other
MAX_PROBES = 256  # links that one notebook wants timed, likewise
# what the worker has not come to yet: it may be busy for minutes
MAX_BEHIND_BYTES = 2 * MAX_MESSAGE_BYTES

MAX_WORKERS = 8  # one for each notebook that computes on a device; each takes memory of its own

# --- sockets --------------------------------------------------------------------------------------

# silent connections are dropped after it (default 30 s: 500 of them held 500 files)
HANDSHAKE_S = 2.0
# A socket that is closed keeps sending for so long. Without it libzmq aborts the process when the
# connection breaks at that moment with a message half sent (session_base_t::clean_pipes).
LINGER_MS = 100
# whole messages of one connection that wait to be read; the default is 1,000
HIGH_WATER_MARK = 64
# Came and was not read yet, whole or not: of all connections of an agent together (and one window
# for each notebook and member), or of one device at a notebook; and what was sent over them, other
# than values, and the other side has not taken yet. Looked at every 0.2 s at least.
MAX_UNREAD_BYTES = 2 * MAX_MESSAGE_BYTES
MAX_HALF_OPEN = 10  # pairing connections waiting their turn

# --- liveness -------------------------------------------------------------------------------------

PULSE_S = 0.5  # between pings
# no pong for so long: the device is gone (a stopped process is noticed after 1.5-2.0 s)
PULSE_LOST_S = 2.0
# pongs come, is busy, and `progress` stands still for this and 3 usual steps: the worker hangs
HUNG_S = 5.0

# --- coordinators --------------------------------------------------------------------------------

MAX_LEASE_S = 60.0  # longer, and nobody takes over from one that ended meanwhile
MAX_LEASES = 64  # of one notebook, that a device knows: its latest, and all that are held

# --- services ------------------------------------------------------------------------------------

MAX_GRANTS = 64  # services of one notebook that can be asked for on a device
MAX_ASKS = 64  # requests for them that are under way; a quarter of its executions
MAX_ROWS = 65_536  # of one such request; batches of a service have 512
MAX_ASKS_PER_S = 1e6  # of one row, that a member may be granted
MIN_RUN_S = 1e-6  # that a service says one request takes
MAX_LIMIT_S = 3600.0  # that it says an answer may take
STANDING_S = 1.0  # between two `Standing`: the delay of state exchange

# --- pairing --------------------------------------------------------------------------------------

PAIRING_DIGITS = 8  # 26.6 bits: three guesses hit with 3e-8
PAIRING_WINDOW_S = 180.0
PAIRING_TRIES = 3
PAIRING_STEP_S = 5.0  # each message of the exchange has to come within it

# --- where ----------------------------------------------------------------------------------------

# the base port; each channel has its own socket, so that a bulky message never delays an urgent one
PORT = 47600
CONTROL_OFFSET = 0
PAIRING_OFFSET = 1
DATA_OFFSET = 2
PULSE_OFFSET = 3
ZAP_DOMAIN = "potluck"  # not empty, and enforced: an empty or unenforced domain lets everybody in
SERVICE_TYPE = "_potluck._tcp.local."
MAX_SHOWN_DEVICES = 64  # found by mDNS; 100,000 invented ones can be announced in 22 s

# --- relays --------------------------------------------------------------------------------------

# a relay's own ports: agents register at the first, and dial the second
RELAY_PORT = 47700
RELAY_DIAL_OFFSET = 1
# the first of the ports that it has for its first device; four for each, in a row
RELAY_DEVICES_OFFSET = 4
RELAY_DEVICES = 16  # of one relay, at most; as many as a home has
# between two `Register`, so that routers on the way remember the connection (the hastiest: 30 s)
RELAY_KEEP_S = 5.0
RELAY_GONE_S = 20.0  # nothing was heard for so long: either side takes the other for gone
RELAY_MAX_FRAME_BYTES = 4 * KIB  # of what a relay and a device say to each other: some dozen
RELAY_MAX_UNREAD_BYTES = MIB  # of it, in memory of either; else the connection ends
TICKET_BYTES = 16  # too many to be guessed while it is valid
# from the connection to the end of the encrypted handshake: the agent's own limit, and the way
RELAY_HANDSHAKE_S = 4.0
# of a handshake, each way: greeting (64), HELLO (202), INITIATE (some 400) or WELCOME and READY
RELAY_HANDSHAKE_BYTES = 2 * KIB
RELAY_PAIRING_S = 30.0  # a whole exchange: four steps of 5 s, and the way
RELAY_PAIRING_BYTES = 4 * MAX_PAIRING_BYTES  # the same, each way
# connections of one address to ports of devices; all others are hung up on at once. All of a home
# that come anew at once behind one router are as many: 16 devices, each to 15 others, and notebooks
RELAY_ARRIVALS_AT_ONCE = 256
RELAY_ARRIVALS_PER_S = 64.0
# connections whose handshake is not done, of all devices; then those of the busiest address go
RELAY_MAX_PENDING = 128
RELAY_MAX_PENDING_EACH = 32  # of one address: of more, its oldest go
RELAY_MAX_ADMITTED = 256  # connections with a handshake behind them, of all devices
RELAY_MAX_ADMITTED_EACH = 64  # of one device: 16 others and notebooks have three each
RELAY_IDLE_S = 900.0  # nothing came either way: both ends connect again when they need to

# --- names ----------------------------------------------------------------------------------------

_DEVICE_NAME = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)
# z85, in the order of its digits (ZeroMQ RFC 32)
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT = {char: value for value, char in enumerate(_Z85)}
_KEY_DIGITS, _GROUP_DIGITS = 40, 5
# printable, no space, no slash: keys are joined with slashes
_IDENTIFIER = re.compile(r"[!-.0-~]{1,64}", re.ASCII)
_VALUE_NAME = re.compile(r"[!-~]{1,200}", re.ASCII)


def is_device_name(name: object) -> bool:
    """Whether this may name a device: 1-40 lower-case letters, digits and hyphens."""
    return type(name) is str and _DEVICE_NAME.fullmatch(name) is not None


def is_key(key: object) -> bool:
    """Whether this can be a CURVE key in z85: eight numbers of 32 bits, of five digits each."""
    if type(key) is not str or len(key) != _KEY_DIGITS or not _DIGIT.keys() >= set(key):
        return False
    numbers = [0] * (_KEY_DIGITS // _GROUP_DIGITS)
    for place, char in enumerate(key):
        numbers[place // _GROUP_DIGITS] = 85 * numbers[place // _GROUP_DIGITS] + _DIGIT[char]
    return max(numbers) < 2**32


def is_identifier(name: object) -> bool:
    """Whether this may name a run, program or segment: 1-64 printable ASCII characters, no space
    and no slash.
    """
    return type(name) is str and _IDENTIFIER.fullmatch(name) is not None


def is_value_name(name: object) -> bool:
    """Whether this may name a value, parameter or buffer: 1-200 printable ASCII characters, no
    space.
    """
    return type(name) is str and _VALUE_NAME.fullmatch(name) is not None


def clip(text: str) -> str:
    """As much of `text` as a text field may carry, cut between characters."""
    raw = text.encode(errors="replace")
    return (
        raw.decode() if len(raw) <= MAX_STR_BYTES else raw[:MAX_STR_BYTES].decode(errors="ignore")
    )


ASK = "ask"  # the program of values without a run that are inputs of an `Ask`
ANSWER = "answer"  # the same of its outputs
PROBE = "probe"  # the program of values without a run: they are measured and thrown away
