//! Small files below a root directory: `/` for this host, or a copy of a host's `/sys`, `/proc` and
//! `/dev`.
//!
//! Read-only, and only inside the root: a symlink that leads outside is treated as absent. The
//! amount of data read is limited.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Maximum number of bytes read from a file.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of directory entries read.
pub const NAMES_MAX: usize = 8192;

/// A file exists but cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct FileReadError {
    /// Path below the root, beginning with `/`.
    pub path: String,
    #[source]
    pub source: io::Error,
}

/// A root directory. All paths are relative to that root and begin with `/`.
#[derive(Clone, Debug)]
pub struct FileTree {
    root: PathBuf,
}

impl FileTree {
    /// Opens the tree below `root`.
    ///
    /// # Errors
    /// Fails if the directory does not exist.
    pub fn new(root: &Path) -> io::Result<FileTree> {
        let root = root.canonicalize()?;
        fs::read_dir(&root)?;
        Ok(FileTree { root })
    }

    /// Whether this is the host itself, not a copy of a host's files.
    pub fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the text of a file, trimmed. Invalid UTF-8 sequences are replaced. `None` if the
    /// file does not exist.
    ///
    /// # Errors
    /// Fails if the file exists but cannot be read.
    pub fn text(&self, path: &str) -> Result<Option<String>, FileReadError> {
        let Some(real_path) = self.real_path(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        let read = || {
            let mut bytes = Vec::new();
            // Only regular files, like those of /sys and /proc: reading a pipe or a device could
            // block forever.
            if !fs::metadata(&real_path)?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            File::open(&real_path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        read().map(Some).map_err(|e| unreadable(path, e))
    }

    /// Opens a regular file for reading. `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails if the file exists but cannot be opened or is not a regular file.
    pub fn open(&self, path: &str) -> Result<Option<File>, FileReadError> {
        let Some(real_path) = self.real_path(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        match fs::metadata(&real_path) {
            Ok(data) if data.is_file() => File::open(&real_path).map(Some).map_err(|e| unreadable(path, e)),
            Ok(_) => Err(unreadable(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))),
            Err(e) => Err(unreadable(path, e)),
        }
    }

    /// Returns the names in a directory in natural order (`mlx5_2` before `mlx5_10`). `None` if the
    /// directory does not exist.
    ///
    /// # Errors
    /// Fails if the directory exists but cannot be read.
    pub fn names(&self, path: &str) -> Result<Option<Vec<String>>, FileReadError> {
        let Some(real_path) = self.real_path(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        let entries = fs::read_dir(real_path).map_err(|e| unreadable(path, e))?;
        let mut names = Vec::new();
        for entry in entries.take(NAMES_MAX) {
            let name = entry.map_err(|e| unreadable(path, e))?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        names.sort_by_cached_key(|name| natural(name));
        Ok(Some(names))
    }

    /// Returns `path` with all links resolved, relative to the root. `None` if the path does not
    /// exist.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let real_path = self.inside(path).ok()??;
        let below = real_path.strip_prefix(&self.root).ok()?;
        Some(format!("/{}", below.to_str()?))
    }

    /// Checks that this process may read and write `path`.
    ///
    /// # Errors
    /// Fails if access is denied or the file does not exist.
    pub fn may_read_and_write(&self, path: &str) -> io::Result<()> {
        let real_path = self.real_path(path)?.ok_or(nix::errno::Errno::ENOENT)?;
        Ok(access(&real_path, AccessFlags::R_OK | AccessFlags::W_OK)?)
    }

    /// The real path for `path`. `None` if the path does not exist.
    fn real_path(&self, path: &str) -> io::Result<Option<PathBuf>> {
        if !self.is_this_host() {
            return self.inside(path);
        }
        // No link leads out of `/`. Resolving each link here would cost a dozen system calls per
        // file, and a host has thousands of files.
        let real_path = self.root.join(path.trim_start_matches('/'));
        Ok(optional(fs::metadata(&real_path))?.map(|_| real_path))
    }

    /// The real path, with every link resolved. `None` if the path is outside the root.
    fn inside(&self, path: &str) -> io::Result<Option<PathBuf>> {
        let real_path = optional(self.root.join(path.trim_start_matches('/')).canonicalize())?;
        Ok(real_path.filter(|real_path| real_path.starts_with(&self.root)))
    }
}

/// Converts "not found" to `None`.
fn optional<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

fn unreadable(path: &str, source: io::Error) -> FileReadError {
    FileReadError { path: path.to_owned(), source }
}

/// Returns a sort key that compares numbers within names by value.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(word);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, FileTree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = FileTree::new(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn missing_files_are_none_and_unreadable_ones_name_their_path() {
        let (dir, tree) = tree();
        fs::write(dir.path().join("a"), " x\n").unwrap();
        assert_eq!(tree.text("/a").unwrap().as_deref(), Some("x"));
        assert_eq!((tree.text("/b").unwrap(), tree.text("/a/b").unwrap()), (None, None));
        assert_eq!(tree.names("/none").unwrap(), None);
        assert_eq!(tree.text("/").unwrap_err().path, "/");
        assert_eq!(tree.names("/a").unwrap_err().path, "/a");
        assert!(!tree.is_this_host() && FileTree::new(&dir.path().join("none")).is_err());
    }

    #[test]
    fn the_root_tree_follows_all_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "x").unwrap();
        for (link, to) in [("there", "a"), ("gone", "none"), ("loop", "loop")] {
            symlink(dir.path().join(to), dir.path().join(link)).unwrap();
        }
        let host = FileTree::new(Path::new("/")).unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        assert!(host.is_this_host());
        assert_eq!(host.text(&at("there")).unwrap().as_deref(), Some("x"));
        assert_eq!((host.text(&at("gone")).unwrap(), host.text(&at("a/b")).unwrap()), (None, None));
        assert!(host.text(&at("loop")).is_err());
        let real = fs::canonicalize(dir.path().join("a")).unwrap();
        assert_eq!(host.resolve(&at("there")).as_deref(), real.to_str());
    }

    #[test]
    fn links_are_only_followed_inside_the_root() {
        let (dir, tree) = tree();
        fs::create_dir_all(dir.path().join("devices/x")).unwrap();
        symlink("devices/x", dir.path().join("in")).unwrap();
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert_eq!(tree.resolve("/in").as_deref(), Some("/devices/x"));
        assert_eq!((tree.resolve("/out"), tree.text("/out").unwrap()), (None, None));
        assert!(tree.text("/loop").is_err() && tree.resolve("/loop").is_none());
        assert_eq!(tree.may_read_and_write("/in").map_err(|e| e.kind()), Ok(()));
        assert_eq!(tree.may_read_and_write("/none").map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn names_sort_in_natural_order() {
        let (dir, tree) = tree();
        for name in ["mlx5_10", "mlx5_2", "mlx5_bond_0", "erdma_0"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(tree.names("/").unwrap().unwrap(), ["erdma_0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }

    #[test]
    fn pipes_are_not_read() {
        let (dir, tree) = tree();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(tree.text("/pipe").is_err());
    }
}
