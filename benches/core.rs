//! Micro-benchmarks of the hot paths: codec, allocator, master state.

fn main() {
    divan::main();
}
