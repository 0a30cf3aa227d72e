"""How long hypothesis tries: the same examples each time in `make test`, ever new ones in `make test-long`.

And Ctrl-C: whoever is started with `&` ignores it, as do all processes that tests start, unless they get it back.
"""

import os
import signal

from hypothesis import HealthCheck, settings

signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a slow machine is no wrong answer.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile(
    "long", deadline=None, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
