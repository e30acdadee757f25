# shellcheck shell=bash
# Shared by the scripts in this directory. Source it: it changes to the root of the repository.
set -euo pipefail
# also in $(...)
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/names
. packaging/names
ROOT=$PWD

# Where the results go.
# shellcheck disable=SC2034 # read by the scripts
OUT=${MCCTL_PACKAGES:-target/packages}
# The cargo profile of the program. Packages that are published have the default.
PROFILE=${MCCTL_PACKAGE_PROFILE:-dist}
# The level of xz. Fast for packages that are only tested.
# shellcheck disable=SC2034 # read by the scripts
if [ "$PROFILE" = dist ]; then XZ_LEVEL=9; else XZ_LEVEL=0; fi
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

# python_tools [FILE]: the tools from PyPI that FILE lists, in a virtual environment of their own. Prints its bin directory.
python_tools() {
  local file=${1:-requirements.txt} venv=${MCCTL_PACKAGING_VENV:-$HOME/.cache/mcctl-packaging}
  if ! cmp -s "packaging/$file" "$venv/$file"; then
    python3 -m venv "$venv" || die "cannot create a virtual environment in $venv" "next: apt install python3-venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "packaging/$file" >&2
    cp "packaging/$file" "$venv/$file"
  fi
  echo "$venv/bin"
}

# Runs a command with the settings of all release builds. Paths of this machine do not get into the program.
with_build_flags() {
  local remap="--remap-path-prefix=$ROOT=mcctl --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  CARGO_INCREMENTAL=0 RUSTFLAGS="$remap" "$@"
}

# States on stderr what is built and how long it takes. cargo then shows its progress.
announce_build() {
  case $PROFILE in
    dev) echo "building $1 with the profile dev: about 5 minutes on two cores. Its program is slow, and not for production" >&2 ;;
    *) echo "building $1 with the profile $PROFILE: up to 25 minutes on two cores. For a try-out, MCCTL_PACKAGE_PROFILE=dev takes 5" >&2 ;;
  esac
}

# Builds the program for a target (x86_64 or aarch64) and the glibc above. Prints the path of the program, with its symbols.
build_program() {
  local arch=$1 target=$1-unknown-linux-gnu tools
  tools=$(python_tools)
  rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >&2 ||
    die "no Rust standard library for $target" "next: rustup target add $target"
  announce_build mcctl
  with_build_flags env PATH="$tools:$PATH" \
    cargo zigbuild --locked --profile "$PROFILE" --bin mcctl --target "$target.$GLIBC" >&2
  [ -x "$(program_path "$arch")" ] || die "cargo wrote no program to $(program_path "$arch")" "next: cargo zigbuild --profile $PROFILE --bin mcctl"
  # A debug build contains them.
  if [ "$PROFILE" != dev ]; then packaging/planted "$(program_path "$arch")" >&2; fi
  program_path "$arch"
}

# Where the build for an architecture writes the program.
program_path() {
  local folder=$PROFILE
  if [ "$folder" = dev ]; then folder=debug; fi
  echo "target/$1-unknown-linux-gnu/$folder/mcctl"
}

# The architectures of packages, this machine's first: its program writes the manual pages of the others.
architectures() {
  case $(uname -m) in
    aarch64) echo aarch64 x86_64 ;;
    *) echo x86_64 aarch64 ;;
  esac
}

# Builds the program for an architecture once, and all packages of it.
build_packages() {
  local arch=$1 program
  program=$(build_program "$arch")
  packaging/wheel --arch "$arch" --program "$program"
  packaging/client-wheel --arch "$arch"
  packaging/deb --arch "$arch" --program "$program"
  packaging/archive --arch "$arch" --program "$program"
}

# Starts a store with a command (a program, or an emulator and a program), writes and reads an object, and stops it.
try_store() {
  local try pid waited=0 settings found code=0
  try=$(mktemp -d)
  : >"$try/ready"
  "$@" up --json --rpc-port=0 --metrics-port=0 --metadata-port=0 --rest-port=0 --segment-size=64mb >"$try/ready" 2>"$try/log" &
  pid=$!
  settings='import json, sys; print("\n".join(f"{k}={v}" for k, v in json.load(sys.stdin)["environment"].items()))'
  until python3 -c "$settings" <"$try/ready" >"$try/environment" 2>/dev/null; do
    waited=$((waited + 1))
    if [ $waited -gt 600 ] || ! kill -0 "$pid" 2>/dev/null; then
      kill -KILL "$pid" 2>/dev/null || true
      found=$(tail -n 3 "$try/log")
      rm -rf "$try"
      die "no store with $*" "found: $found"
    fi
    sleep 0.2
  done
  mapfile -t settings <"$try/environment"
  head -c 3000000 /dev/urandom >"$try/object"
  env "${settings[@]}" "$@" store put object - <"$try/object" >"$try/put" 2>>"$try/log" || code=$?
  env "${settings[@]}" "$@" store get object >"$try/found" 2>>"$try/log" || code=$?
  kill -TERM "$pid"
  wait "$pid" || code=$?
  found=$(tail -n 3 "$try/log")
  if [ $code = 0 ] && cmp -s "$try/object" "$try/found"; then code=0; else code=1; fi
  rm -rf "$try"
  [ $code = 0 ] || die "the store of $* does not return what was written" "found: $found"
}

# The tool for programs of an architecture: objcopy, strip, readelf.
binutils() {
  local tool=$1 arch=$2
  if [ "$arch" != "$(uname -m)" ]; then tool=$arch-linux-gnu-$tool; fi
  need "$tool" "apt install binutils-${arch//_/-}-linux-gnu"
  echo "$tool"
}

# Requires that a program needs only libraries that every distribution has, and no later glibc than the one above. (readelf reads programs of
# any architecture.)
check_libraries() {
  local program=$2 allowed='^(libc|libm|libdl|libpthread|librt)\.so\.[0-9]+$|^libgcc_s\.so\.1$|^ld-linux-' library newest
  need readelf "apt install binutils"
  while read -r library; do
    [[ $library =~ $allowed ]] || die "the program for $1 needs $library" "next: remove the dependency, or open it at run time"
  done < <(readelf --dynamic "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  newest=$(readelf --version-info "$program" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort --version-sort | tail -n 1)
  [ "$(printf '%s\n' "$newest" "$GLIBC" | sort --version-sort | tail -n 1)" = "$GLIBC" ] ||
    die "the program for $1 needs glibc $newest" "found: packages are for glibc $GLIBC" "next: build it with packaging/wheel, without --program"
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

# A program that runs here, for completions and manual pages: the packaged one, or the first that exists for this architecture.
native_program() {
  local arch=$1 program=$2 other
  if [ "$arch" = "$(uname -m)" ]; then
    echo "$program"
    return
  fi
  for other in "$(program_path "$(uname -m)")" target/release/mcctl ""; do
    [ -x "$other" ] && break
  done
  [ -n "$other" ] || die "no program for $(uname -m), which writes the manual pages" "next: cargo build --release --locked"
  echo "$other"
}
