//! Small files below a root folder: `/` for this host, elsewhere a copy of some host's `/sys`, `/proc` and `/dev`.
//!
//! Only reads, never outside the root (a link that leads out is as good as absent), and never more than a bound.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// The most of a file that is read, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most entries of a folder that are looked at.
pub const NAMES_MAX: usize = 8192;

/// A file is there and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct Unreadable {
    /// The path below the root, beginning with `/`.
    pub path: String,
    /// The system's reason.
    #[source]
    pub source: io::Error,
}

/// A root folder, and what lies below it. All paths are written from that root, beginning with `/`.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree below `root`.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn new(root: &Path) -> io::Result<Tree> {
        let root = root.canonicalize()?;
        fs::read_dir(&root)?;
        Ok(Tree { root })
    }

    /// Is it this host itself, and not a copy of some host's files?
    pub fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The text of a file without blanks at its ends; bytes that are no UTF-8 are replaced. `None` where there is no file.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn text(&self, path: &str) -> Result<Option<String>, Unreadable> {
        let Some(place) = self.place(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        let read = || {
            let mut bytes = Vec::new();
            // Only plain files (those of /sys and /proc are): reading a pipe or a device could wait for ever.
            if !fs::metadata(&place)?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
            }
            File::open(&place)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        read().map(Some).map_err(|e| unreadable(path, e))
    }

    /// A plain file, opened to be read. `None` where there is none.
    ///
    /// # Errors
    /// It is there and cannot be opened, or is no plain file.
    pub fn open(&self, path: &str) -> Result<Option<File>, Unreadable> {
        let Some(place) = self.place(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        match fs::metadata(&place) {
            Ok(data) if data.is_file() => File::open(&place).map(Some).map_err(|e| unreadable(path, e)),
            Ok(_) => Err(unreadable(path, io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"))),
            Err(e) => Err(unreadable(path, e)),
        }
    }

    /// The names in a folder, `mlx5_2` before `mlx5_10`. `None` where there is no folder.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn names(&self, path: &str) -> Result<Option<Vec<String>>, Unreadable> {
        let Some(place) = self.place(path).map_err(|e| unreadable(path, e))? else { return Ok(None) };
        let entries = fs::read_dir(place).map_err(|e| unreadable(path, e))?;
        let mut names = Vec::new();
        for entry in entries.take(NAMES_MAX) {
            let name = entry.map_err(|e| unreadable(path, e))?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        names.sort_by_cached_key(|name| natural(name));
        Ok(Some(names))
    }

    /// Where `path` really lies when all links are followed, from the root; `None` when it is not there.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let place = self.inside(path).ok()??;
        let below = place.strip_prefix(&self.root).ok()?;
        Some(format!("/{}", below.to_str()?))
    }

    /// May this process read and write `path`?
    ///
    /// # Errors
    /// It may not, or there is no such file.
    pub fn may_read_and_write(&self, path: &str) -> io::Result<()> {
        let place = self.place(path)?.ok_or(nix::errno::Errno::ENOENT)?;
        Ok(access(&place, AccessFlags::R_OK | AccessFlags::W_OK)?)
    }

    /// Where to open `path`; `None` where nothing is.
    fn place(&self, path: &str) -> io::Result<Option<PathBuf>> {
        if !self.is_this_host() {
            return self.inside(path);
        }
        // No link leads out of `/`, and following each by hand would be a dozen system calls for a file, of which a host has thousands.
        let place = self.root.join(path.trim_start_matches('/'));
        Ok(if_there(fs::metadata(&place))?.map(|_| place))
    }

    /// The file itself, every link followed; `None` where one leads out of the root.
    fn inside(&self, path: &str) -> io::Result<Option<PathBuf>> {
        let place = if_there(self.root.join(path.trim_start_matches('/')).canonicalize())?;
        Ok(place.filter(|place| place.starts_with(&self.root)))
    }
}

/// `None` where there is no such file.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

fn unreadable(path: &str, source: io::Error) -> Unreadable {
    Unreadable { path: path.to_owned(), source }
}

/// A key that sorts numbers inside names by their value.
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

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn what_is_absent_is_none_and_what_cannot_be_read_names_its_path() {
        let (dir, tree) = tree();
        fs::write(dir.path().join("a"), " x\n").unwrap();
        assert_eq!(tree.text("/a").unwrap().as_deref(), Some("x"));
        assert_eq!((tree.text("/b").unwrap(), tree.text("/a/b").unwrap()), (None, None));
        assert_eq!(tree.names("/none").unwrap(), None);
        assert_eq!(tree.text("/").unwrap_err().path, "/");
        assert_eq!(tree.names("/a").unwrap_err().path, "/a");
        assert!(!tree.is_this_host() && Tree::new(&dir.path().join("none")).is_err());
    }

    #[test]
    fn on_this_host_links_may_lead_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "x").unwrap();
        for (link, to) in [("there", "a"), ("gone", "none"), ("loop", "loop")] {
            symlink(dir.path().join(to), dir.path().join(link)).unwrap();
        }
        let host = Tree::new(Path::new("/")).unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        assert!(host.is_this_host());
        assert_eq!(host.text(&at("there")).unwrap().as_deref(), Some("x"));
        assert_eq!((host.text(&at("gone")).unwrap(), host.text(&at("a/b")).unwrap()), (None, None));
        assert!(host.text(&at("loop")).is_err());
        let real = fs::canonicalize(dir.path().join("a")).unwrap();
        assert_eq!(host.resolve(&at("there")).as_deref(), real.to_str());
    }

    #[test]
    fn links_are_followed_inside_the_root_and_not_out_of_it() {
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
    fn names_sort_by_the_value_of_their_numbers() {
        let (dir, tree) = tree();
        for name in ["mlx5_10", "mlx5_2", "mlx5_bond_0", "erdma_0"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(tree.names("/").unwrap().unwrap(), ["erdma_0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let (dir, tree) = tree();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(tree.text("/pipe").is_err());
    }
}
