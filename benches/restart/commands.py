"""The commands of an agent: JSON objects on its standard input, one per line. An answer is a line that begins with "@"."""
import json, os, sys


def say(**answer):
    print("@" + json.dumps(answer), flush=True)


def serve(code, commands):
    """Answers {"setup": code}, and then each command with the result of its function, until `exit` or after `close`. Ends the process without
    destructors."""
    say(setup=code)
    for line in sys.stdin if code == 0 else ():
        arguments = json.loads(line)
        do = arguments.pop("do")
        if do == "exit":
            break
        try:
            say(**(commands[do](**arguments) or {}))
        except Exception as error:  # the caller decides
            say(error=f"{type(error).__name__}: {error}")
        if do == "close":
            break
    sys.stdout.flush()
    os._exit(0 if code == 0 else 1)
