#!/usr/bin/env python3
"""Prints the last stage of a Containerfile as assignments for bash: run (an array), program (where it is copied to), user, command and health."""
import json, pathlib, re, shlex, sys

text = pathlib.Path(sys.argv[1]).read_text()
lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
instructions = [line.split(None, 1) for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if line.strip()]
stage = instructions[max(at for at, (kind, _) in enumerate(instructions) if kind == "FROM") + 1 :]


def arguments(kind):
    return [argument for found, argument in stage if found == kind]


def words(items):
    return "(" + " ".join(shlex.quote(item) for item in items) + ")"


[copy], [user], [health] = arguments("COPY"), arguments("USER"), arguments("HEALTHCHECK")
print("run=" + words(arguments("RUN")))
print("program=" + shlex.quote(copy.split()[-1]))
print("user=" + shlex.quote(user))
print("command=" + words(json.loads(arguments("ENTRYPOINT")[0]) + json.loads(arguments("CMD")[0])))
print("health=" + words(json.loads(health.split("CMD", 1)[1])))
