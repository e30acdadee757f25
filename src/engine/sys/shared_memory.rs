//! Memory in a memfd, which processes on the same host can map.
//!
//! The owner seals the file, so that it cannot shrink, and so that no other process can write it. A
//! process that maps a file with these seals never receives SIGBUS for an address in the mapping,
//! even after the owner has ended.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek64};

use crate::memfd;
use crate::memory::{OutOfRange, Slice};

/// Size of a block in `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Why a received file is not used.
#[derive(Debug, thiserror::Error)]
pub enum SharedFileError {
    /// The file can shrink, or lose pages.
    #[error("the file is not sealed against shrinking and writing")]
    Unsealed,
    #[error("the file has {found} bytes instead of {wanted}")]
    Short { found: u64, wanted: u64 },
    /// Huge pages that do not exist would be allocated by the reader, from a pool that may be
    /// empty.
    #[error("the file's huge pages are not allocated")]
    Sparse,
    /// The file is not a memfd, or it cannot be mapped.
    #[error("the file is not usable as shared memory")]
    File(#[from] io::Error),
}

impl From<nix::Error> for SharedFileError {
    fn from(error: nix::Error) -> SharedFileError {
        SharedFileError::File(error.into())
    }
}

/// A read-only mapping of another process's memory.
pub struct SharedView {
    base: NonNull<u8>,
    len: usize,
    /// Size of the mapping: `len`, or whole huge pages.
    mapped: NonZeroUsize,
}

// SAFETY: `base` is owned by this value alone and is not tied to a thread.
unsafe impl Send for SharedView {}
// SAFETY: the bytes are only read, by raw copies. No reference to them is ever created.
unsafe impl Sync for SharedView {}

impl SharedView {
    /// Maps the first `len` bytes of `file` for reading.
    ///
    /// # Errors
    /// Fails if a later access to the mapping could raise SIGBUS, or if the kernel rejects the
    /// call.
    pub fn map(file: &OwnedFd, len: u64) -> Result<SharedView, SharedFileError> {
        if !memfd::is_safe_to_map(file)? {
            return Err(SharedFileError::Unsealed);
        }
        let found = file_size(file)?;
        if found < len {
            return Err(SharedFileError::Short { found, wanted: len });
        }
        let is_huge = fstatfs(file)?.filesystem_type() == HUGETLBFS_MAGIC;
        if is_huge && !is_dense(file) {
            return Err(SharedFileError::Sparse);
        }
        // A mapping of huge pages can only be removed as a whole. The size of such a file is a
        // multiple of its page size.
        let mapped = usize::try_from(if is_huge { found } else { len }).ok().and_then(NonZeroUsize::new);
        let (Some(mapped), Ok(len)) = (mapped, usize::try_from(len)) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        };
        Ok(SharedView { base: memfd::map(file, mapped, libc::PROT_READ)?, len, mapped })
    }

    /// Number of bytes that can be read, at most the size of the file.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes at `offset` to `into`.
    ///
    /// # Errors
    /// Fails if the range exceeds the mapping.
    pub fn read(&self, offset: usize, into: &Slice) -> Result<(), OutOfRange> {
        let from = self.range(offset, into.len())?;
        // SAFETY: `from` is valid for reading for `into.len()` bytes (just checked), and stays
        // mapped as long as `self`. `into` is valid for writing for its length. The mappings do not
        // overlap: this one is read-only. memmove is used because both may have the same pages.
        unsafe { libc::memmove(into.pointer(0).as_ptr().cast(), from.as_ptr().cast(), into.len()) };
        Ok(())
    }

    /// The first byte, for access that is not a copy.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.base
    }

    fn range(&self, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange { offset, len, size: self.len });
        }
        // SAFETY: `offset` is at most the length of the mapping, so the result is inside it or one
        // past its end.
        Ok(unsafe { self.base.add(offset) })
    }
}

impl Drop for SharedView {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped` describe a mapping that only this value owns. Nothing uses
        // the mapping afterward.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped.get()) };
        debug_assert_eq!(rc, 0, "the mapping is owned and complete");
    }
}

impl std::fmt::Debug for SharedView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedView({} bytes)", self.len)
    }
}

/// Memory in a memfd of another process, from which bytes are copied. Reading it does not allocate
/// pages that the other process has not written.
#[derive(Debug)]
pub struct SharedSource {
    file: File,
    len: u64,
    /// `None` if the file must not be mapped.
    view: Option<SharedView>,
}

impl SharedSource {
    /// Accepts `file`, of which `len` bytes may be used.
    ///
    /// # Errors
    /// Fails if the file is not a memfd of at least that size. Reads of other files could block.
    pub fn new(file: OwnedFd, len: u64) -> Result<SharedSource, SharedFileError> {
        // Fails for files of another kind.
        memfd::is_safe_to_map(&file)?;
        let found = file_size(&file)?;
        if found < len {
            return Err(SharedFileError::Short { found, wanted: len });
        }
        let view = match SharedView::map(&file, len) {
            Ok(view) => Some(view),
            Err(SharedFileError::Unsealed | SharedFileError::Sparse) => None,
            Err(error) => return Err(error),
        };
        Ok(SharedSource { file: File::from(file), len, view })
    }

    /// The number of bytes that may be used.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no bytes may be used.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every page exists. Pages of a sealed file stay.
    pub fn is_dense(&self) -> bool {
        is_dense(&self.file)
    }

    /// Copies the bytes at `offset` to `into`. `dense` is a result of
    /// [`is_dense`](SharedSource::is_dense).
    ///
    /// # Errors
    /// Fails if the range exceeds the file. Some of the bytes may have been copied.
    pub fn read(&self, offset: u64, into: &Slice, dense: bool) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        match &self.view {
            Some(view) if dense || self.has_pages(offset, end) => {
                let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
                view.read(offset, into).map_err(|_| io::ErrorKind::UnexpectedEof.into())
            }
            _ => self.read_file(offset, into),
        }
    }

    /// Whether the pages of a range exist. They cannot disappear, because the file is sealed.
    fn has_pages(&self, offset: u64, end: u64) -> bool {
        let Ok(offset) = i64::try_from(offset) else { return false };
        lseek64(&self.file, offset, Whence::SeekHole)
            .is_ok_and(|hole| u64::try_from(hole).is_ok_and(|hole| hole >= end))
    }

    fn read_file(&self, offset: u64, into: &Slice) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            // SAFETY: the pointer is valid for writing for the rest of the slice. The kernel writes
            // no more than that.
            let count = unsafe {
                let to = into.pointer(done).as_ptr().cast();
                let at = i64::try_from(offset + done as u64).unwrap_or(i64::MAX);
                libc::pread64(self.file.as_raw_fd(), to, into.len() - done, at)
            };
            match usize::try_from(count) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

fn file_size(file: &impl AsFd) -> io::Result<u64> {
    Ok(u64::try_from(nix::sys::stat::fstat(file)?.st_size).unwrap_or(0))
}

/// Whether all bytes of a file are allocated.
fn is_dense(file: &impl AsFd) -> bool {
    nix::sys::stat::fstat(file).is_ok_and(|found| {
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        u64::try_from(found.st_size).is_ok_and(|size| blocks.saturating_mul(BLOCK_BYTES) >= size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::pages::map_shared;
    use nix::sys::memfd::MFdFlags;
    use std::sync::Arc;

    fn size(bytes: usize) -> NonZeroUsize {
        NonZeroUsize::new(bytes).unwrap()
    }

    fn shared(len: usize) -> (Arc<Memory>, OwnedFd) {
        let memory = map_shared(size(len), size(len), MFdFlags::empty(), |_| Ok(())).unwrap();
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        (Arc::new(memory), file)
    }

    fn buffer(len: usize) -> Slice {
        Arc::new(Memory::from_vec(vec![0; len])).whole()
    }

    fn plain(bytes: i64) -> OwnedFd {
        let file = nix::sys::memfd::memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_view_reads_what_the_owner_writes_even_after_its_end() {
        let (memory, file) = shared(10_000);
        let view = SharedView::map(&file, 10_000).unwrap();
        memory.write_at(9_990, b"0123456789").unwrap();
        let into = buffer(4);
        view.read(9_996, &into).unwrap();
        assert_eq!(into.to_vec(), b"6789");
        assert!(view.read(9_997, &into).is_err() && view.read(usize::MAX, &into).is_err());
        drop((memory, file));
        view.read(9_990, &into).unwrap();
        assert_eq!(into.to_vec(), b"0123");
    }

    #[test]
    fn no_other_process_can_write_or_shrink_the_file() {
        let (memory, file) = shared(8192);
        assert!(memfd::map(&file, size(8192), libc::PROT_READ | libc::PROT_WRITE).is_err());
        assert!(nix::unistd::ftruncate(&file, 0).is_err());
        assert!(nix::unistd::write(&file, b"x").is_err());
        let view = SharedView::map(&file, 8192).unwrap();
        // SAFETY: the range is the view's own mapping. The call is expected to fail.
        let rc = unsafe { libc::mprotect(view.base.as_ptr().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(rc, -1);
        memory.write_at(0, b"mine").unwrap();
        // SAFETY: the range is the memory's own mapping. The call is expected to fail.
        let rc = unsafe { libc::madvise(memory.address() as *mut libc::c_void, 4096, libc::MADV_REMOVE) };
        assert_eq!((rc, memory.whole().part(0, 4).unwrap().to_vec()), (-1, b"mine".to_vec()));
    }

    #[test]
    fn a_file_that_could_lose_pages_is_not_mapped() {
        assert!(matches!(SharedView::map(&plain(8192), 4096), Err(SharedFileError::Unsealed)));
        let (_memory, file) = shared(8192);
        assert!(matches!(SharedView::map(&file, 8193), Err(SharedFileError::Short { found: 8192, wanted: 8193 })));
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(matches!(SharedView::map(&pipe, 1), Err(SharedFileError::File(_))));
        assert!(matches!(SharedSource::new(pipe, 1), Err(SharedFileError::File(_))));
        let disk = OwnedFd::from(tempfile::tempfile_in("/").or_else(|_| tempfile::tempfile()).unwrap());
        assert!(SharedSource::new(disk, 0).is_err());
    }

    #[test]
    fn a_source_copies_sealed_and_unsealed_files() {
        let (memory, file) = shared(100_000);
        memory.write_at(50_000, b"sealed").unwrap();
        let source = SharedSource::new(file, 100_000).unwrap();
        assert!(source.view.is_some() && !source.is_dense());
        let into = buffer(6);
        source.read(50_000, &into, false).unwrap();
        assert_eq!(into.to_vec(), b"sealed");
        let blocks = || nix::sys::stat::fstat(&source.file).unwrap().st_blocks;
        let before = blocks();
        source.read(10, &into, false).unwrap();
        assert_eq!((into.to_vec(), blocks()), (vec![0; 6], before), "reading a hole allocates no page");
        assert!(source.read(99_995, &into, true).is_err() && source.read(u64::MAX, &into, true).is_err());

        let file = plain(8192);
        nix::sys::uio::pwrite(&file, b"open", 4096).unwrap();
        let kept = file.try_clone().unwrap();
        let source = SharedSource::new(file, 8192).unwrap();
        assert!(source.view.is_none());
        source.read(4096, &into, false).unwrap();
        assert_eq!(into.to_vec(), b"open\0\0");
        nix::unistd::ftruncate(&kept, 4098).unwrap();
        assert!(source.read(4096, &into, false).is_err(), "it has shrunk");
        assert!(matches!(SharedSource::new(plain(10), 11), Err(SharedFileError::Short { .. })));
    }

    #[test]
    fn huge_pages_are_mapped_only_if_all_of_them_exist() {
        let pages = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        let fill = |memory: &Memory| memory.fill(0, memory.len(), 3).map_err(io::Error::other);
        // Without huge pages on this host, there is nothing to test.
        let Ok(memory) = map_shared(size(3 << 20), size(4 << 20), pages, fill) else { return };
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        let view = SharedView::map(&file, 3 << 20).unwrap();
        let into = buffer(4);
        view.read((3 << 20) - 4, &into).unwrap();
        assert_eq!((into.to_vec(), view.len(), view.mapped.get()), (vec![3; 4], 3 << 20, 4 << 20));
        drop(view);
        let sparse = map_shared(size(4 << 20), size(4 << 20), pages, |_| Ok(())).unwrap();
        let file = sparse.shared_file().unwrap().try_clone_to_owned().unwrap();
        assert!(matches!(SharedView::map(&file, 1), Err(SharedFileError::Sparse)));
    }
}
