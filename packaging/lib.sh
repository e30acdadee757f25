# Shared by the scripts in this directory. Source it: it changes to the root of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/names
. packaging/names

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

# Builds the program for a target (x86_64 or aarch64) and the glibc above. Prints the path of the program, with its symbols.
build_program() {
  local arch=$1 target=$1-unknown-linux-gnu tools
  tools=$(python_tools)
  rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >&2 ||
    die "no Rust standard library for $target" "next: rustup target add $target"
  # Paths of this machine do not get into the program.
  local remap="--remap-path-prefix=$PWD=mcctl --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  PATH="$tools:$PATH" CARGO_INCREMENTAL=0 RUSTFLAGS="$remap" \
    cargo zigbuild --quiet --locked --profile dist --bin mcctl --target "$target.$GLIBC" >&2
  echo "target/$target/dist/mcctl"
}
