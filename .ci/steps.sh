# shellcheck shell=bash
# The steps of .ci/run and .ci/release. Source it: it changes to the root of the repository.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=.ci/lib.sh
. .ci/lib.sh

# Settings of all builds here. Without incremental compilation, a build from nothing is faster and smaller.
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 RUST_BACKTRACE=1

# NAME | WHEN | COMMAND | WHAT IT CHECKS. WHEN is `change` for the steps of .ci/run and `release` for those of .ci/release.
# The order is that of the run. Steps that need the same build are neighbours.
STEPS='
fmt         | change  | check_format       | the format of all Rust files
scripts     | change  | packaging/lint     | the container file and the shell scripts, with hadolint and shellcheck
deny        | change  | check_dependencies | licenses, sources and duplicate versions of the dependencies
clippy      | change  | run_clippy         | clippy on all targets of all packages
no-rdma     | change  | clippy_without_rdma| clippy on the packages with the feature rdma, without it
docs        | change  | build_docs         | the documentation of all items, private ones included
peers       | change  | tests/peers/install| that the real Mooncake can be installed for the interoperability tests
count       | change  | .ci/count          | the number of tests of each target, so that none gets lost
tests       | change  | run_tests          | all tests that run anywhere, with a list of the slowest
etcd        | change  | test_etcd          | elections and failover with a real etcd
systemd     | change  | test_systemd       | the rendered units, with systemd
prometheus  | change  | test_prometheus    | the rendered alerts, with Prometheus
kubernetes  | change  | test_kubernetes    | the rendered Kustomize bases, with kubectl
browser     | change  | test_browser       | the HTML reports, in a browser
host        | change  | test_host          | huge pages, network namespaces and the header of libibverbs
python      | change  | test_python        | the Python client
releases    | change  | test_four_releases | clients of four Mooncake releases on one master
rdma        | change  | test_rdma          | verbs on software devices, in a virtual machine
rdma-peers  | change  | test_rdma_peers    | bytes exchanged with the real Mooncake over RDMA
planted     | release | check_planted      | that the release build contains no planted mistakes
no-rdma-all | release | check_without_rdma | that everything compiles without the feature rdma
packages    | release | test_packages      | all packages: built quickly, installed, started and removed
image       | release | test_image         | the steps of the container image, and a store in it
many-keys   | release | test_many_keys     | planned hand-overs of six million keys
chaos       | release | test_chaos         | random faults of three masters, etcd, the network and clients for 30 minutes
slow-disk   | release | test_slow_disk     | a full store whose standby has a slow disk, for ten minutes
seeds       | release | run_all_seeds      | the simulations of crashes and failovers, with 10000 seeds each
fuzz        | release | fuzz               | the decoders, with arbitrary bytes: one minute each
memcheck    | release | test_memcheck      | verbs and the transfer engine, with valgrind
rdma-faults | release | test_rdma_faults   | failures of peers, links and devices, over RDMA
all-releases| release | test_all_releases  | clients, nodes and masters of all Mooncake releases, in all pairs
upgrade     | release | test_upgrade       | a rolling upgrade from 0.3.10.post2 to 0.3.14 under load
rdma-all    | release | test_rdma_matrix   | all pairs of mcctl and three releases of Mooncake, over RDMA
'

check_format() {
  cargo fmt --all --check
  cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
}

check_dependencies() {
  if ! command -v cargo-deny >/dev/null; then cargo install --locked --debug cargo-deny@0.20.2; fi
  cargo deny --locked check bans licenses sources
}

run_clippy() {
  cargo clippy --locked --workspace --all-targets -- -D warnings
}

# Only this package contains code that depends on the feature.
clippy_without_rdma() {
  cargo clippy --locked --no-default-features -p mcctl-sys -- -D warnings
}

# Private items too: links in ARCHITECTURE.md lead to them. With examples, the dependencies are those of clippy.
build_docs() {
  RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' \
    cargo doc --locked --no-deps --workspace --lib --examples --document-private-items --quiet
}

# The README's test command, with all packages of the workspace, so that the later steps need no other build.
run_tests() {
  export MCCTL_TEST_TIMES=$PWD/target/test-times
  rm -f "$MCCTL_TEST_TIMES"
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  env "CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_RUNNER=$PWD/.ci/timed-test" cargo test --locked --workspace
  echo 'The slowest tests, in seconds:'
  # `head` would end `sort` with SIGPIPE.
  sort -rn "$MCCTL_TEST_TIMES" | sed -n 1,10p
}

# run_ignored FILTER...: runs the ignored tests whose names contain a filter. tests/it/ci.rs checks the filters.
run_ignored() {
  cargo test --locked --workspace --test it -- --ignored "$@"
}

test_many_keys() {
  need_packages /usr/bin/etcd -- etcd-server
  cargo test --locked --release --test it -- --ignored --nocapture many_keys::
}

test_etcd() {
  need_packages /usr/bin/etcd -- etcd-server
  run_ignored etcd:: high_availability::
}

test_systemd() {
  need_packages systemd-analyze -- systemd
  run_ignored deploy::units::
}

test_prometheus() {
  need_packages promtool -- prometheus
  run_ignored deploy::monitoring::
}

test_kubernetes() {
  need_packages kubectl -- kubernetes-client
  run_ignored deploy::kustomize::
}

test_browser() {
  need_packages chromium -- chromium fonts-dejavu-core
  run_ignored load::browser::
}

test_host() {
  need_packages /usr/include/infiniband/verbs.h -- libibverbs-dev
  run_ignored ibverbs_bindings:: doctor::host:: sizing::
}

# The program and the Python module, from the libraries of the test build: with examples, cargo selects the same features.
build_debug() {
  cargo build --locked --workspace --lib --bins --examples
}

test_python() {
  tests/peers/install
  build_debug
  PYTHON=$(tests/peers/install --print)/bin/python tests/python/run --built
}

# Two minutes. The step all-releases has all releases and parts.
test_four_releases() {
  local releases=0.3.6.post1,0.3.10.post2,0.3.12.post1,0.3.14
  # shellcheck disable=SC2086
  tests/peers/install ${releases//,/ }
  build_debug
  tests/release-matrix --mcctl target/debug/mcctl --releases "$releases" --parts a
}

test_all_releases() {
  build_debug
  tests/release-matrix --mcctl target/debug/mcctl
}

test_upgrade() {
  build_debug
  tests/rolling-upgrade --mcctl target/debug/mcctl
}

need_rdma_vm() {
  need_packages qemu-system-x86_64 ibv_devinfo rdma python3 -- \
    qemu-system-x86 iproute2 python3 rdma-core ibverbs-providers ibverbs-utils
}

# The program with the integration tests.
test_program() {
  cargo test --locked --workspace --no-run --test it --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1
}

test_rdma() {
  need_rdma_vm
  MCCTL_TEST_PROGRAM=$(test_program) tests/rdma-vm/run-tests
}

test_memcheck() {
  need_rdma_vm
  need_packages valgrind -- valgrind
  MCCTL_TEST_PROGRAM=$(test_program) tests/rdma-vm/memcheck
}

# Three sizes in each direction. The step rdma-all has all cases.
test_rdma_peers() {
  need_rdma_vm
  build_debug
  tests/rdma-vm/peers --few --versions 0.3.13.post1 --only 'bytes/*0.3.13*/p2p/1-device' --timeout 400
}

test_rdma_matrix() {
  need_rdma_vm
  build_debug
  tests/rdma-vm/peers
}

test_rdma_faults() {
  need_rdma_vm
  build_debug
  tests/rdma-vm/faults
}

check_planted() {
  cargo build --locked --release
  build_debug
  packaging/planted target/release/mcctl
  # The check can fail: the tests plant mistakes in a debug build.
  if packaging/planted target/debug/mcctl; then
    echo 'error: the planted mistakes of a debug build were not found' >&2
    return 1
  fi
}

check_without_rdma() {
  cargo check --locked --workspace --no-default-features
}

# Prints a root file system of Debian, in which packages are installed and the steps of the image run.
debian_root() {
  local root=$HOME/.cache/mcctl-debian
  if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase bookworm "$root" >&2
    touch "$root/.complete"
  fi
  echo "$root"
}

need_packaging() {
  need_packages xz lintian dpkg-deb readelf debootstrap ip unshare -- xz-utils lintian binutils debootstrap iproute2 util-linux
}

# Without optimization: the profile of published packages takes an hour here. packaging/release tries those.
test_packages() {
  need_packaging
  local root
  root=$(debian_root)
  MCCTL_PACKAGE_PROFILE=dev packaging/test --chroot "$root"
}

test_image() {
  need_packaging
  local root
  root=$(debian_root)
  MCCTL_PACKAGE_PROFILE=dev packaging/container --chroot "$root"
}

need_failover_bench() {
  need_packages /usr/bin/etcd cc ip -- etcd-server gcc iproute2
  tests/peers/install
  cargo build --locked --release --bin mcctl
}

test_chaos() {
  need_failover_bench
  cargo build --locked --release --lib -p mcctl-python
  cp target/release/lib_native.so src/python/mcctl_mooncake/_native.abi3.so
  python3 benches/failover/chaos.py --binary target/release/mcctl --own-python src/python --minutes "${MCCTL_CHAOS_MINUTES:-30}"
}

test_slow_disk() {
  need_failover_bench
  python3 benches/failover/slow_disk.py --binary target/release/mcctl --minutes "${MCCTL_SLOW_DISK_MINUTES:-10}"
}

run_all_seeds() {
  MCCTL_CRASH_SEEDS=10000 MCCTL_HA_SEEDS=10000 cargo test --locked --release -p mcctl-master --lib -- --nocapture \
    crashes_lose_nothing no_acknowledged_put_is_lost
}

fuzz() {
  need_packages c++ -- g++
  tests/fuzz/run all "${MCCTL_FUZZ_SECONDS:-60}"
}
