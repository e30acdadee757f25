//! Allocates memory for segments and buffers: regular pages, huge pages, or blocks from a huge page
//! arena.
//!
//! The rules match Mooncake's (`MC_STORE_USE_HUGEPAGE` and related variables), so a host sized for
//! Mooncake is also large enough here. An allocation succeeds completely or fails. Huge pages are
//! populated at allocation, because a page that is missing later kills the process (SIGBUS) instead
//! of failing a call.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

use nix::sys::memfd::MFdFlags;

use crate::host;
use crate::memfd;
use crate::memory::{Memory, MemoryBacking};
use mcctl_base::ByteSize;

/// Minimum size of a segment without huge pages. Upstream's setup rejects smaller segments.
pub const SEGMENT_BYTES_MIN: u64 = 16 << 20;

/// A huge page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePage {
    Mib2,
    Gib1,
}

impl HugePage {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            HugePage::Mib2 => 2 << 20,
            HugePage::Gib1 => 1 << 30,
        }
    }

    fn flag(self) -> libc::c_int {
        match self {
            HugePage::Mib2 => libc::MAP_HUGE_2MB,
            HugePage::Gib1 => libc::MAP_HUGE_1GB,
        }
    }

    fn file_flags(self) -> MFdFlags {
        let size = match self {
            HugePage::Mib2 => MFdFlags::MFD_HUGE_2MB,
            HugePage::Gib1 => MFdFlags::MFD_HUGE_1GB,
        };
        MFdFlags::MFD_HUGETLB | size
    }
}

/// How to allocate memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// `None` means regular pages.
    pub huge: Option<HugePage>,
    /// Arena size, in bytes. Only used with huge pages.
    pub arena_bytes: Option<u64>,
    /// Allocate anonymous memory, which no other process can map.
    pub private: bool,
}

impl MemoryPolicy {
    /// Reads the environment variables through `lookup`. Returns the policy and a warning for each
    /// invalid value.
    ///
    /// `MC_STORE_USE_HUGEPAGE` takes effect if it is set to any value, even `0` (same as upstream).
    /// `MC_STORE_HUGEPAGE_SIZE` is `2MB` or `1GB`. `MC_MMAP_ARENA_POOL_SIZE` is the size of the
    /// arena. `MC_DISABLE_MMAP_ARENA` (1, true, yes, on) disables the arena, even if a size is set.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> (MemoryPolicy, Vec<String>) {
        let mut warnings = Vec::new();
        let mut policy = MemoryPolicy::default();
        if lookup("MC_STORE_USE_HUGEPAGE").is_some() {
            policy.huge = Some(HugePage::Mib2);
        }
        if let Some(text) = lookup("MC_STORE_HUGEPAGE_SIZE") {
            let size = match text.to_ascii_uppercase().as_str() {
                "2MB" => HugePage::Mib2,
                "1GB" => HugePage::Gib1,
                _ => {
                    warnings.push(format!("MC_STORE_HUGEPAGE_SIZE={text} is neither 2MB nor 1GB; using 2MB"));
                    HugePage::Mib2
                }
            };
            policy.huge = policy.huge.map(|_| size);
        }
        if let Some(text) = lookup("MC_MMAP_ARENA_POOL_SIZE").filter(|t| !t.is_empty()) {
            match text.parse::<ByteSize>() {
                Ok(ByteSize(0)) => {}
                Ok(size) => policy.arena_bytes = Some(size.0),
                Err(e) => warnings.push(format!("MC_MMAP_ARENA_POOL_SIZE: {e}; the arena is disabled")),
            }
        }
        if let Some(text) = lookup("MC_DISABLE_MMAP_ARENA") {
            match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => policy.arena_bytes = None,
                "" | "0" | "false" | "no" | "off" => {}
                _ => warnings.push(format!("MC_DISABLE_MMAP_ARENA={text} ignored: expected 1, true, yes or on")),
            }
        }
        (policy, warnings)
    }

    /// Bytes allocated and contributed for a segment of `wanted` bytes, rounded up to whole huge
    /// pages if huge pages are used.
    ///
    /// # Errors
    /// Fails if `wanted` is 0, or less than [`SEGMENT_BYTES_MIN`] with regular pages.
    pub fn segment_bytes(&self, wanted: u64) -> Result<u64, MemoryError> {
        match self.huge {
            _ if wanted == 0 => Err(MemoryError::Empty),
            Some(page) => round_up(wanted, page.bytes()).ok_or(MemoryError::TooLarge { wanted }),
            None if wanted < SEGMENT_BYTES_MIN => Err(MemoryError::SegmentTooSmall { wanted }),
            None => Ok(wanted),
        }
    }
}

/// The reason why memory could not be allocated.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("cannot allocate 0 bytes of memory")]
    Empty,
    /// A segment on regular pages is smaller than upstream's minimum.
    #[error("a {} segment is too small: the minimum without huge pages is {}", ByteSize(*wanted), ByteSize(SEGMENT_BYTES_MIN))]
    SegmentTooSmall {
        /// Size of the request, in bytes.
        wanted: u64,
    },
    /// The size exceeds the address space.
    #[error("{wanted} bytes exceed the address space")]
    TooLarge {
        /// Size of the request, in bytes.
        wanted: u64,
    },
    /// The size exceeds the host's memory or the container's limit.
    #[error("needs {} of memory; the limit is {} ({limit})", ByteSize(*wanted), ByteSize(*total))]
    LargerThanHost {
        /// Size of the request, in bytes.
        wanted: u64,
        /// Memory of the host or of its cgroup, in bytes.
        total: u64,
        /// Where the limit comes from.
        limit: &'static str,
    },
    /// The kernel does not support this page size.
    #[error("the kernel does not support {} huge pages: cannot read {}", ByteSize(page.bytes()), path.display())]
    NoSuchPage {
        page: HugePage,
        /// The file in `/sys` that exists if the kernel supports this page size.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The pool has too few free pages.
    #[error(
        "needs {wanted} huge pages of {}; {available} available ({total} in the pool, HugePages_Free {free}, of \
        which {reserved} are reserved)", ByteSize(page.bytes())
    )]
    NotEnoughHugePages {
        page: HugePage,
        /// Number of pages required.
        wanted: u64,
        /// Free pages that are not reserved.
        available: u64,
        /// Pages in the pool.
        total: u64,
        free: u64,
        /// Free pages that are reserved for another mapping.
        reserved: u64,
    },
    #[error("cannot map {} of memory ({what})", ByteSize(*bytes))]
    Refused {
        /// Size of the request, in bytes.
        bytes: u64,
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Allocates memory according to a [`MemoryPolicy`]. Create one per process, because it owns the
/// arena. Thread-safe.
#[derive(Debug)]
pub struct MemorySource {
    policy: MemoryPolicy,
    sys: PathBuf,
    /// The kernel's mode of overcommitting memory.
    overcommit: PathBuf,
    arena: OnceLock<Option<Arc<HugePageArena>>>,
}

impl MemorySource {
    /// Creates an allocator that follows `policy`.
    pub fn new(policy: MemoryPolicy) -> MemorySource {
        let overcommit = PathBuf::from("/proc/sys/vm/overcommit_memory");
        MemorySource { policy, sys: PathBuf::from("/sys"), overcommit, arena: OnceLock::new() }
    }

    /// Returns the policy that the allocator follows.
    pub fn policy(&self) -> MemoryPolicy {
        self.policy
    }

    /// Allocates zeroed memory for a segment of `wanted` bytes, rounded up by
    /// [`MemoryPolicy::segment_bytes`].
    ///
    /// # Errors
    /// Fails with any [`MemoryError`]. Nothing remains allocated in that case.
    pub fn segment(&self, wanted: u64) -> Result<Memory, MemoryError> {
        let bytes = self.policy.segment_bytes(wanted)?;
        let align = self.policy.huge.map_or(PLAIN_ALIGN, HugePage::bytes);
        self.allocate(bytes, align)
    }

    /// Allocates exactly `wanted` zeroed bytes for a local buffer. The underlying mapping may be
    /// larger.
    ///
    /// # Errors
    /// Fails with any [`MemoryError`] except `SegmentTooSmall`. Nothing remains allocated in that
    /// case.
    pub fn buffer(&self, wanted: u64) -> Result<Memory, MemoryError> {
        if wanted == 0 {
            return Err(MemoryError::Empty);
        }
        self.allocate(wanted, PLAIN_ALIGN)
    }

    fn allocate(&self, len: u64, align: u64) -> Result<Memory, MemoryError> {
        let Some(page) = self.policy.huge else {
            fits_host(len)?;
            return self.shared(len, len, None).map_or_else(|| map_plain(len), Ok);
        };
        if let Some(arena) = self.arena()
            && let Some(memory) = HugePageArena::cut(arena, len, align)
        {
            return Ok(memory);
        }
        let rounded = round_up(len, page.bytes()).and_then(|bytes| self.shared(len, bytes, Some(page)));
        rounded.map_or_else(|| map_huge(len, page, &self.sys), Ok)
    }

    /// Allocates memory that other processes can map: the first `len` of `bytes` bytes. `None` if
    /// that is not possible or not wanted.
    fn shared(&self, len: u64, bytes: u64, huge: Option<HugePage>) -> Option<Memory> {
        let size = |n: u64| usize::try_from(n).ok().and_then(NonZeroUsize::new);
        let (false, Some(len), Some(bytes)) = (self.policy.private, size(len), size(bytes)) else { return None };
        if huge.is_none() && self.is_commit_limited() {
            return None;
        }
        let prepare = |memory: &Memory| match huge {
            Some(_) => populate(memory, bytes.get() as u64),
            None => {
                advise_huge(memory, &self.sys);
                Ok(())
            }
        };
        let allocated = map_shared(len, bytes, huge.map_or(MFdFlags::empty(), HugePage::file_flags), prepare);
        allocated.inspect_err(|error| tracing::debug!(%error, bytes, "cannot allocate shared memory")).ok()
    }

    /// Whether the kernel refuses memory that exceeds its commit limit. It counts anonymous memory
    /// when it is mapped, but a memfd's pages only when they are written: then a shortage raises
    /// SIGBUS.
    fn is_commit_limited(&self) -> bool {
        std::fs::read_to_string(&self.overcommit).is_ok_and(|mode| mode.trim() == "2")
    }

    /// The arena. Created on the first call, and not retried after a failure (same as upstream).
    fn arena(&self) -> Option<&Arc<HugePageArena>> {
        let make = || {
            let bytes = round_up(self.policy.arena_bytes?, HugePage::Mib2.bytes())?;
            match map_huge(bytes, HugePage::Mib2, &self.sys) {
                Ok(pool) => {
                    let arena = HugePageArena { pool, used: Mutex::new(0) };
                    arena.keep_from_children();
                    Some(Arc::new(arena))
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot create the huge page arena (MC_MMAP_ARENA_POOL_SIZE); mapping each block separately");
                    None
                }
            }
        };
        self.arena.get_or_init(make).as_ref()
    }
}

/// A single mapping from which blocks are allocated, front to back. Blocks are never reused.
#[derive(Debug)]
pub(crate) struct HugePageArena {
    pool: Memory,
    used: Mutex<u64>,
}

impl HugePageArena {
    /// Allocates a block of `len` bytes, aligned to `align` (at least 64) relative to the start of
    /// the pool. `None` if the pool is exhausted.
    fn cut(arena: &Arc<HugePageArena>, len: u64, align: u64) -> Option<Memory> {
        let align = align.max(PLAIN_ALIGN);
        let mut used = arena.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = round_up(*used, align)?;
        let end = start.checked_add(round_up(len, align)?)?;
        if end > arena.pool.len() as u64 {
            return None;
        }
        *used = end;
        let start = usize::try_from(start).ok()?;
        let len = usize::try_from(len).ok()?;
        let base = NonNull::new((usize::try_from(arena.pool.address()).ok()? + start) as *mut u8)?;
        // SAFETY: `start + len <= pool.len()`. No two blocks overlap, because `used` only grows.
        // The pool is only accessed through its blocks, each of which keeps it mapped.
        Some(unsafe { Memory::from_parts(base, len, MemoryBacking::Arena { _keeps: Arc::clone(arena) }) })
    }

    /// Excludes the pool from child processes, which would otherwise need their own huge pages on
    /// the first write, or receive SIGBUS.
    fn keep_from_children(&self) {
        // SAFETY: the range is exactly the pool's own mapping. The call changes no bytes.
        let rc =
            unsafe { libc::madvise(self.pool.address() as *mut libc::c_void, self.pool.len(), libc::MADV_DONTFORK) };
        if rc != 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "cannot set MADV_DONTFORK");
        }
    }
}

/// Requests transparent huge pages for a file's memory if anonymous memory gets them without a
/// request.
fn advise_huge(memory: &Memory, sys: &Path) {
    let enabled = std::fs::read_to_string(sys.join("kernel/mm/transparent_hugepage/enabled")).unwrap_or_default();
    if enabled.contains("[always]") {
        // SAFETY: the range is the memory's own mapping. The call changes no bytes. It fails if the
        // kernel has no such pages.
        let _ = unsafe { libc::madvise(memory.address() as *mut libc::c_void, memory.len(), libc::MADV_HUGEPAGE) };
    }
}

/// Fails if `len` exceeds the host's memory or this container's limit.
fn fits_host(len: u64) -> Result<(), MemoryError> {
    const CGROUP: &str = "/sys/fs/cgroup/memory.max";
    let limits = [
        ("MemTotal in /proc/meminfo", host::memory().map(|m| m.total)),
        (CGROUP, std::fs::read_to_string(CGROUP).ok().and_then(|t| t.trim().parse().ok())),
    ];
    for (limit, total) in limits {
        if let Some(total) = total.filter(|t| len > *t) {
            return Err(MemoryError::LargerThanHost { wanted: len, total, limit });
        }
    }
    Ok(())
}

fn map_plain(len: u64) -> Result<Memory, MemoryError> {
    map(len, len, 0, "regular pages")
}

fn map_huge(len: u64, page: HugePage, sys: &Path) -> Result<Memory, MemoryError> {
    let too_large = MemoryError::TooLarge { wanted: len };
    let bytes = round_up(len, page.bytes()).ok_or(too_large)?;
    let pool = host::huge_pages(sys, page.bytes() >> 10).map_err(|(path, source)| MemoryError::NoSuchPage {
        page,
        path,
        source,
    })?;
    let shortage = |pool: host::HugePagePool| {
        let wanted = bytes / page.bytes();
        let available = pool.free.saturating_sub(pool.reserved);
        let host::HugePagePool { total, free, reserved } = pool;
        (available < wanted).then_some(MemoryError::NotEnoughHugePages {
            page,
            wanted,
            available,
            total,
            free,
            reserved,
        })
    };
    // Overcommitted pages (nr_overcommit_hugepages) are not included in these numbers, so the
    // numbers only explain a failure.
    let explain = |error| shortage(host::huge_pages(sys, page.bytes() >> 10).unwrap_or(pool)).unwrap_or(error);
    let memory = map(len, bytes, libc::MAP_HUGETLB | page.flag(), "huge pages").map_err(explain)?;
    populate(&memory, bytes).map_err(|source| MemoryError::Refused { bytes, what: "populating huge pages", source })?;
    Ok(memory)
}

/// Maps `bytes` zeroed bytes in a sealed memfd, of which the first `len` belong to the returned
/// value. `prepare` is called before the file is sealed.
pub(crate) fn map_shared(
    len: NonZeroUsize,
    bytes: NonZeroUsize,
    pages: MFdFlags,
    prepare: impl FnOnce(&Memory) -> io::Result<()>,
) -> io::Result<Memory> {
    let file = memfd::create(bytes.get() as u64, pages)?;
    let base = memfd::map(&file, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    let backing = MemoryBacking::Shared { bytes: bytes.get(), file };
    // SAFETY: the mapping is `bytes >= len` readable and writable bytes of a new file that nothing
    // else references. The returned value unmaps the whole mapping.
    let memory = unsafe { Memory::from_parts(base, len.get().min(bytes.get()), backing) };
    prepare(&memory)?;
    memory.shared_file().map_or(Ok(()), |file| memfd::seal(&file))?;
    Ok(memory)
}

/// Maps `bytes` bytes of zeroed anonymous memory, of which the first `len` belong to the returned
/// value.
fn map(len: u64, bytes: u64, flags: libc::c_int, what: &'static str) -> Result<Memory, MemoryError> {
    let size = |n: u64| usize::try_from(n).ok().and_then(NonZeroUsize::new);
    let (Some(len), Some(size)) = (size(len), size(bytes)) else {
        return Err(MemoryError::TooLarge { wanted: bytes });
    };
    // SAFETY: an anonymous private mapping at an address chosen by the kernel does not affect
    // existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size.get(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(MemoryError::Refused { bytes, what, source: io::Error::last_os_error() });
    }
    let base = NonNull::new(base.cast::<u8>()).expect("mmap returns address 0 only on request");
    // SAFETY: the mapping is `size >= len` readable and writable bytes that nothing else
    // references. The returned value unmaps the whole mapping.
    Ok(unsafe { Memory::from_parts(base, len.get(), MemoryBacking::Mapping { bytes: size.get() }) })
}

/// Populates every page in a mapping of `bytes` bytes. Unlike MAP_POPULATE, this function reports
/// pages that are unavailable.
fn populate(memory: &Memory, bytes: u64) -> io::Result<()> {
    let bytes = usize::try_from(bytes).expect("the size was valid when mapped");
    loop {
        // SAFETY: the range is the memory's own mapping. Populating changes no bytes.
        let rc = unsafe { libc::madvise(memory.address() as *mut libc::c_void, bytes, libc::MADV_POPULATE_WRITE) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Kernels before 5.14 do not support the call. The pages are reserved for this mapping
            // anyway.
            Some(libc::EINVAL) => return Ok(()),
            _ => return Err(error),
        }
    }
}

fn round_up(n: u64, to: u64) -> Option<u64> {
    n.checked_next_multiple_of(to)
}

/// Minimum alignment of blocks: a cache line.
const PLAIN_ALIGN: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(vars: &[(&str, &str)]) -> (MemoryPolicy, Vec<String>) {
        MemoryPolicy::from_env(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn huge_pages_are_used_when_the_variable_is_set_to_anything() {
        assert_eq!(policy(&[]).0.huge, None);
        assert_eq!(policy(&[("MC_STORE_USE_HUGEPAGE", "0")]).0.huge, Some(HugePage::Mib2));
        let one = [("MC_STORE_USE_HUGEPAGE", "1"), ("MC_STORE_HUGEPAGE_SIZE", "1GB")];
        assert_eq!(policy(&one).0.huge, Some(HugePage::Gib1));
        assert_eq!(policy(&one[1..]).0.huge, None);
        let (odd, warnings) = policy(&[("MC_STORE_USE_HUGEPAGE", "1"), ("MC_STORE_HUGEPAGE_SIZE", "4MB")]);
        assert_eq!((odd.huge, warnings.len()), (Some(HugePage::Mib2), 1));
    }

    #[test]
    fn the_arena_is_opt_in_and_the_disable_variable_wins() {
        let on = ("MC_MMAP_ARENA_POOL_SIZE", "63mb");
        assert_eq!(policy(&[on]).0.arena_bytes, Some(63 << 20));
        assert_eq!(policy(&[on, ("MC_DISABLE_MMAP_ARENA", "yes")]).0.arena_bytes, None);
        let (kept, warnings) = policy(&[on, ("MC_DISABLE_MMAP_ARENA", "maybe")]);
        assert_eq!((kept.arena_bytes, warnings.len()), (Some(63 << 20), 1));
        assert_eq!(policy(&[("MC_MMAP_ARENA_POOL_SIZE", "much")]).1.len(), 1);
    }

    #[test]
    fn a_segment_is_exact_on_plain_pages_and_rounded_up_on_huge_ones() {
        let plain = MemoryPolicy::default();
        assert_eq!(plain.segment_bytes(20_983_865).unwrap(), 20_983_865);
        assert!(matches!(plain.segment_bytes(1 << 20), Err(MemoryError::SegmentTooSmall { .. })));
        let huge = MemoryPolicy { huge: Some(HugePage::Mib2), arena_bytes: None, private: false };
        assert_eq!(huge.segment_bytes(20_983_865).unwrap(), 23_068_672);
        assert_eq!(huge.segment_bytes(1 << 20).unwrap(), 2 << 20);
        assert!(matches!(huge.segment_bytes(0), Err(MemoryError::Empty)));
        assert!(matches!(huge.segment_bytes(u64::MAX), Err(MemoryError::TooLarge { .. })));
    }

    #[test]
    fn plain_memory_is_zeroed_and_has_the_requested_size() {
        let memory = MemorySource::new(MemoryPolicy::default()).segment(20_983_865).unwrap();
        let mut last = [1; 3];
        memory.read_at(20_983_862, &mut last).unwrap();
        assert_eq!((memory.len(), last), (20_983_865, [0; 3]));
        assert_eq!(MemorySource::new(MemoryPolicy::default()).buffer(1).unwrap().len(), 1);
    }

    #[test]
    fn memory_is_not_shared_if_the_kernel_does_not_overcommit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, shared) in [("0\n", true), ("1\n", true), ("2\n", false)] {
            std::fs::write(&file, mode).unwrap();
            let source =
                MemorySource { overcommit: file.path().to_owned(), ..MemorySource::new(MemoryPolicy::default()) };
            assert_eq!(source.buffer(4096).unwrap().shared_file().is_some(), shared, "{mode}");
        }
    }

    #[test]
    fn more_memory_than_the_host_has_is_refused() {
        let error = MemorySource::new(MemoryPolicy::default()).segment(1 << 50).unwrap_err();
        assert!(matches!(error, MemoryError::LargerThanHost { wanted, .. } if wanted == 1 << 50), "{error}");
    }

    /// The error for a 16 TiB segment on 2 MiB pages, which no kernel grants, on a host with the
    /// pool files in `sys`.
    fn refused_huge_pages(sys: &Path) -> MemoryError {
        let policy = MemoryPolicy { huge: Some(HugePage::Mib2), arena_bytes: None, private: false };
        let source = MemorySource { sys: sys.to_owned(), ..MemorySource::new(policy) };
        source.segment(1 << 44).unwrap_err()
    }

    #[test]
    fn missing_huge_pages_are_reported_with_the_pool_size() {
        let sys = tempfile::tempdir().unwrap();
        let pool = sys.path().join("kernel/mm/hugepages/hugepages-2048kB");
        std::fs::create_dir_all(&pool).unwrap();
        for (name, pages) in [("nr_hugepages", "100\n"), ("free_hugepages", "70\n"), ("resv_hugepages", "30\n")] {
            std::fs::write(pool.join(name), pages).unwrap();
        }
        let error = refused_huge_pages(sys.path());
        let MemoryError::NotEnoughHugePages { page, wanted, available, total, free, reserved } = error else {
            panic!("{error}");
        };
        assert_eq!((page, wanted, available), (HugePage::Mib2, 8_388_608, 40));
        assert_eq!((total, free, reserved), (100, 70, 30));
    }

    #[test]
    fn an_unsupported_huge_page_size_is_reported_with_the_missing_file() {
        let sys = tempfile::tempdir().unwrap();
        let error = refused_huge_pages(sys.path());
        let MemoryError::NoSuchPage { page, path, .. } = &error else { panic!("{error}") };
        assert_eq!(*page, HugePage::Mib2);
        assert!(path.starts_with(sys.path()), "{}", path.display());
    }

    #[test]
    fn blocks_of_an_arena_do_not_overlap_and_keep_it_mapped() {
        let arena = Arc::new(HugePageArena { pool: map_plain(8 << 20).unwrap(), used: Mutex::new(0) });
        let start = arena.pool.address();
        let segment = HugePageArena::cut(&arena, 5 << 20, 2 << 20).unwrap();
        let buffer = HugePageArena::cut(&arena, 100, 64).unwrap();
        assert!(HugePageArena::cut(&arena, 2 << 20, 2 << 20).is_none(), "exhausted");
        drop(arena);
        assert_eq!((segment.address() - start, buffer.address() - start), (0, 6 << 20));
        buffer.write_at(0, &[7; 100]).unwrap();
        segment.fill(0, segment.len(), 1).unwrap();
        assert_eq!(Arc::new(buffer).whole().to_vec(), [7; 100]);
    }
}
