//! `mcctl size-hugepages`: upstream's script byte for byte, and the figures of the code.

mod answer;
mod apply;
mod compat;
mod script;
mod trace;
mod wheel;

/// The real pool of huge pages: who reads it through the program shares it, who changes it has it alone.
static POOL: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// The pages of 2 MiB of the first node.
const REAL_POOL: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";

/// What the real pool had, put back when the test ends, however it does.
struct RealPool(u64);

impl Drop for RealPool {
    fn drop(&mut self) {
        let _ = std::fs::write(REAL_POOL, self.0.to_string());
    }
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}
