#!/bin/sh
# A real SGLang with HiCache on the CPU, whose master is restarted in the middle. See sglang_restart.py for the flags.
# The first run installs SGLang 0.5.23 with a tiny model (tests/peers/sglang-endpoint, about 6.6 GB in the user's cache folder).
exec python3 "$(dirname "$0")/sglang_restart.py" "$@"
