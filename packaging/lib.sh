# Shared by the scripts in this directory. Source it: it changes to the root of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/names
. packaging/names
ROOT=$PWD

# Where the results go.
OUT=${MCCTL_PACKAGES:-target/packages}
# Files have the date of the last commit, so that a package built twice has the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# Ubuntu 20.04, Debian 11, RHEL 8 and later have this version of glibc, or a later one.
GLIBC=2.28

die() {
  printf 'error: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

need() {
  command -v "$1" >/dev/null || die "$1 is not installed" "next: $2"
}

version() {
  sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml
}

# The tools from PyPI, in a virtual environment of their own. Prints its bin directory.
python_tools() {
  local venv=${MCCTL_PACKAGING_VENV:-$HOME/.cache/mcctl-packaging}
  local stamp="$venv/requirements.txt"
  if ! cmp -s packaging/requirements.txt "$stamp"; then
    python3 -m venv "$venv" || die "cannot create a virtual environment in $venv" "next: apt install python3-venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r packaging/requirements.txt >&2
    cp packaging/requirements.txt "$stamp"
  fi
  echo "$venv/bin"
}

# Runs a command with the settings of all release builds. Paths of this machine do not get into the program.
with_build_flags() {
  local remap="--remap-path-prefix=$ROOT=mcctl --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  CARGO_INCREMENTAL=0 RUSTFLAGS="$remap" "$@"
}

# Builds the program for a target (x86_64 or aarch64) and the glibc above. Prints the path of the program, with its symbols.
build_program() {
  local arch=$1 target=$1-unknown-linux-gnu tools
  tools=$(python_tools)
  rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >&2 ||
    die "no Rust standard library for $target" "next: rustup target add $target"
  with_build_flags env PATH="$tools:$PATH" \
    cargo zigbuild --quiet --locked --profile dist --bin mcctl --target "$target.$GLIBC" >&2
  echo "target/$target/dist/mcctl"
}

# The tool for programs of an architecture: objcopy, strip, readelf.
binutils() {
  local tool=$1 arch=$2
  if [ "$arch" != "$(uname -m)" ]; then tool=$arch-linux-gnu-$tool; fi
  need "$tool" "apt install binutils-${arch//_/-}-linux-gnu"
  echo "$tool"
}

strip_program() {
  "$(binutils strip "$1")" "$2"
}

# Moves the symbols of a program to another file, which debuggers find by its build ID or the link.
split_symbols() {
  local objcopy
  objcopy=$(binutils objcopy "$1")
  "$objcopy" --only-keep-debug "$2" "$3"
  strip_program "$1" "$2"
  "$objcopy" --add-gnu-debuglink="$3" "$2"
}

# A program that runs here, for completions and manual pages: the packaged one, or the newest one of this architecture.
native_program() {
  local arch=$1 program=$2 other
  if [ "$arch" = "$(uname -m)" ]; then
    echo "$program"
    return
  fi
  other=$(ls -t "target/$(uname -m)-unknown-linux-gnu/dist/mcctl" target/release/mcctl 2>/dev/null | head -n 1)
  [ -n "$other" ] || die "no program for $(uname -m), which writes the manual pages" "next: cargo build --release --locked"
  echo "$other"
}
