# shellcheck shell=bash
# How the steps of .ci/run and .ci/release are listed and run. steps.sh defines the steps: the table STEPS and their functions.

# Prints `NAME|WHEN|COMMAND|WHAT` for each step, without the blanks between the columns.
step_rows() {
  sed -n '/|/s/ *| */|/gp' <<<"$STEPS"
}

# step_names WHEN: prints the names of the steps of a script.
step_names() {
  step_rows | awk -F '|' -v when="$1" '$2 == when { print $1 }'
}

# Prints all steps, one per line.
list_steps() {
  printf 'Checks of each change (.ci/run):\n'
  step_rows | awk -F '|' '$2 == "change" { printf "  %-12s %s\n", $1, $4 }'
  printf 'The crates that a change touches, at most 3 minutes (.ci/run quick [BASE]):\n'
  printf '  %-12s %s\n' quick 'format, clippy and unit tests of these crates'
  printf 'Checks before a release (.ci/release):\n'
  step_rows | awk -F '|' '$2 == "release" { printf "  %-12s %s\n", $1, $4 }'
}

# run_steps NAME...: runs the steps, stops at the first that fails, and prints the time of each.
run_steps() {
  local name times='' from
  for name in "$@"; do
    if [ -z "$(step_command "$name")" ]; then
      printf "error: unknown step '%s'\n" "$name" >&2
      list_steps >&2
      exit 2
    fi
  done
  for name in "$@"; do
    from=$SECONDS
    printf '== %s\n' "$name"
    run_step "$name"
    printf '== %s done in %s s\n' "$name" $((SECONDS - from))
    times+=$(printf '  %-12s %5d s' "$name" $((SECONDS - from)))$'\n'
  done
  printf '== all done in %s s\n%s' "$SECONDS" "$times"
}

step_command() {
  step_rows | awk -F '|' -v name="$1" '$1 == name { print $3 }'
}

# run_step NAME: the step runs in a shell of its own, which ends at the first command that fails.
run_step() {
  local command code
  command=$(step_command "$1")
  # `set -e` has no effect in a condition.
  set +e
  (
    set -e
    $command
  )
  code=$?
  set -e
  if [ $code != 0 ]; then
    printf '== %s FAILED (exit code %s). Repeat it with: .ci/run %s\n' "$1" "$code" "$1" >&2
    exit 1
  fi
}

# need_packages COMMAND... -- PACKAGE...: installs Debian packages, unless all commands exist. A command may be the path of a file.
need_packages() {
  local missing=''
  while [ "$1" != -- ]; do
    if [ ! -e "$1" ] && ! command -v "$1" >/dev/null; then missing+=" $1"; fi
    shift
  done
  shift
  if [ -z "$missing" ]; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    printf 'error: not found:%s\n  next: install the packages %s\n' "$missing" "$*" >&2
    return 4
  fi
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}
