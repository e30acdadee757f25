"""Starts a program in which `mooncake.store` is mcctl's client, without a change to the program.

usage: python -m mcctl_mooncake.run [--check] -- COMMAND

COMMAND is one of:
  -m MODULE [ARG ...]      a module, e.g. -m sglang.launch_server --model-path MODEL
  -c CODE [ARG ...]        Python code
  SCRIPT.py [ARG ...]      a script
  PROGRAM [ARG ...]        a program on PATH or next to this interpreter, e.g. vllm serve MODEL

Python options before -m, -c or the script are passed on, e.g. -u -m MODULE.

  --check    print the files that `mooncake.store` and `mooncake.engine` resolve to in a child process, and exit.
             COMMAND is optional. If it is a program, its interpreter is the one checked.
  --help     print this text

The program and the Python processes that it starts import mcctl_mooncake.store as `mooncake.store`. No other process
does. All other modules of an installed Mooncake wheel stay available. Interpreters started with -I, -E or -S, or with
another PYTHONPATH, are not reached.

Exit codes: that of the program. 1: --check found another module. 2: usage. 126: the program cannot be executed.
127: the program was not found.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_site")
SCRIPT_ENDINGS = (".py", ".pyc", ".pyz")
# Options of the interpreter whose value is the next argument.
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
CHECK_TIMEOUT_S = 120
CHECK = """
import importlib.util, json, sys
import mooncake.store
try:
    engine = importlib.util.find_spec("mooncake.engine")
except ImportError:
    engine = None
found = {"store": mooncake.store.__name__, "file": getattr(mooncake.store, "__file__", None)}
print(json.dumps(dict(found, engine=engine and engine.origin, interpreter=sys.executable)))
"""


class UsageError(Exception):
    """The command line is invalid. Its text is the message."""


def environment(base):
    """Returns a copy of the environment `base` in which Python processes redirect `mooncake.store`."""
    if os.pathsep in SITE:
        raise UsageError(
            f"the path {SITE} contains '{os.pathsep}', which PYTHONPATH cannot contain: install the package elsewhere"
        )
    env = dict(base)
    entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry != SITE]
    # An empty value has the same effect as an unset variable. An empty entry is the current directory, so it is kept only if it was listed.
    env["PYTHONPATH"] = os.pathsep.join([SITE] + ([] if entries == [""] else entries))
    # SGLang would create a transfer engine of the wheel to share it with its store client. mcctl's client has its own.
    env.setdefault("SGLANG_HICACHE_MOONCAKE_REUSE_TE", "false")
    return env


def parse(arguments):
    """Returns whether to check only, and the command."""
    check = False
    for i, argument in enumerate(arguments):
        if argument == "--":
            return check, arguments[i + 1 :]
        if argument in ("-h", "--help"):
            print(__doc__.strip())
            raise SystemExit(0)
        if argument == "--check":
            check = True
        elif argument.startswith("-"):
            raise UsageError(f"unknown option '{argument}': put '--' before the command")
        else:
            return check, arguments[i:]
    return check, []


def reject_unreachable(options):
    """Refuses options with which the interpreter ignores PYTHONPATH or does not import sitecustomize."""
    skip = False
    for option in options:
        if skip:
            skip = False
        elif option in OPTIONS_WITH_VALUE:
            skip = True
        elif not option.startswith("-") or option == "-":
            return
        elif not option.startswith("--"):
            for letter in option[1:]:
                if letter in "cm":  # the module or the code, and the program's arguments
                    return
                if letter in "WX":  # the rest of the argument is a value
                    break
                if letter in "IES":
                    raise UsageError(
                        f"Python's option -{letter} disables PYTHONPATH or sitecustomize, which this launcher requires"
                    )


def launcher_options():
    """Returns the Python options of this process, e.g. -u, so that the program gets them as well."""
    module = __spec__.name if __spec__ else ""
    for i, argument in enumerate(sys.orig_argv):
        if argument == "-m" + module:
            return sys.orig_argv[1:i]
        # `-m` alone, or at the end of several options, e.g. `-um`
        if i > 0 and argument == module and sys.orig_argv[i - 1].startswith("-"):
            last = sys.orig_argv[i - 1][:-1]
            return sys.orig_argv[1 : i - 1] + ([last] if last != "-" else [])
    return []


def is_for_python(first):
    is_folder = os.sep in first and os.path.isfile(os.path.join(first, "__main__.py"))
    return first.startswith("-") or first.endswith(SCRIPT_ENDINGS) or is_folder


def find_program(name):
    """Returns the path of a program, from PATH or from the folder of this interpreter."""
    found = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
    if found:
        return found
    exists = os.path.exists(name) if os.sep in name else False
    print(
        f"error: {name}: {'not executable' if exists else 'program not found on PATH or next to ' + sys.executable}",
        file=sys.stderr,
    )
    raise SystemExit(126 if exists else 127)


def interpreter_of(program):
    """Returns the interpreter that the first line of a console script names, or this one."""
    try:
        with open(program, "rb") as file:
            line = file.readline(4096).decode(errors="replace").strip()
    except OSError:
        return sys.executable
    words = line[2:].split() if line.startswith("#!") else []
    named = [word for word in words if os.path.basename(word).startswith("python")]
    found = shutil.which(named[0]) if named else None
    return found or (program if os.path.basename(program).startswith("python") else sys.executable)


def check(command):
    """Prints the files that a child process loads for the modules. Returns the exit code."""
    options = launcher_options()
    interpreter = sys.executable
    if command and not is_for_python(command[0]):
        options, interpreter = [], interpreter_of(find_program(command[0]))
    try:
        child = subprocess.run(
            [interpreter, *options, "-c", CHECK],
            env=environment(os.environ),
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {interpreter}: {error}", file=sys.stderr)
        return 1
    if child.returncode != 0:
        print(f"error: mooncake.store cannot be imported with {interpreter}\n{child.stderr.rstrip()}", file=sys.stderr)
        return 1
    found = json.loads(child.stdout.splitlines()[-1])
    print(f"interpreter      {found['interpreter']}")
    print(f"mooncake.store   {found['file']} ({found['store']})")
    print(f"mooncake.engine  {found['engine'] or 'not installed (only the Mooncake wheel has it)'}")
    if found["store"] != "mcctl_mooncake.store":
        print(
            "error: the child process did not load mcctl_mooncake.store: does a sitecustomize replace sys.meta_path?",
            file=sys.stderr,
        )
        return 1
    return 0


def execute(command):
    """Replaces this process with the command. Does not return."""
    if is_for_python(command[0]):
        options = launcher_options()
        reject_unreachable(options + command)
        program, arguments = sys.executable, [sys.executable, *options, *command]
    else:
        program = find_program(command[0])
        arguments = command
    env = environment(os.environ)
    # Python ignores these signals, and a program inherits this setting.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, arguments, env)
    except OSError as error:
        print(f"error: {program}: {error.strerror}", file=sys.stderr)
        raise SystemExit(126) from None


def main(arguments):
    try:
        only_check, command = parse(arguments)
        if only_check:
            return check(command)
        if not command:
            raise UsageError("the command is missing, e.g. python -m mcctl_mooncake.run -- -m sglang.launch_server ...")
        execute(command)
    except UsageError as error:
        print(f"error: {error}\nSee python -m mcctl_mooncake.run --help", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
