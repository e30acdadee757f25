//! `mcctl size-hugepages`: its results, and upstream's script byte for byte.

mod answer;
mod apply;
mod compat;
mod hosts;
mod hybrid;
mod model_sizes;
mod script;
mod trace;
mod trace_formats;
mod trace_worth;
mod wheel;

/// Guards the real huge page pool: tests that read it share the lock, tests that change it have it
/// exclusively.
static POOL: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// The 2 MiB pool of the first NUMA node.
const REAL_POOL: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";

/// Restores the size of the real pool when the test ends, also after a failure.
struct RealPool(u64);

impl Drop for RealPool {
    fn drop(&mut self) {
        let _ = std::fs::write(REAL_POOL, self.0.to_string());
    }
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}
