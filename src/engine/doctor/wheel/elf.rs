//! Reads the libraries that a binary needs. Only headers and the dynamic table are read, however large the file is.

use std::fs::File;

use object::Endianness;
use object::elf::{DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionHeader};

/// Maximum number of needed libraries read per binary.
const NEEDED_MAX: usize = 256;

/// The dynamic table of a binary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dynamic {
    pub needed: Vec<String>,
    /// `DT_RPATH`: search directories for this binary and the libraries that it loads; empty if `DT_RUNPATH` exists.
    pub rpath: Vec<String>,
    /// `DT_RUNPATH`: search directories for this binary only.
    pub runpath: Vec<String>,
}

/// Reads the dynamic table of a 64-bit ELF file; `None` for other files and for static binaries.
pub(super) fn read(file: File) -> Option<Dynamic> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &cache).ok()?;
    let (entries, link) = sections.iter().find_map(|section| section.dynamic(endian, &cache).ok().flatten())?;
    let strings = sections.strings(endian, &cache, link).ok()?;
    let text = |offset: u64| {
        let bytes = strings.get(u32::try_from(offset).ok()?).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let mut dynamic = Dynamic::default();
    let folders = |text: String| text.split(':').filter(|folder| !folder.is_empty()).map(str::to_owned).collect();
    for entry in entries {
        let (tag, value) = (entry.d_tag.get(endian), entry.d_val.get(endian));
        match tag {
            DT_NULL => break,
            DT_NEEDED if dynamic.needed.len() < NEEDED_MAX => dynamic.needed.extend(text(value)),
            DT_RPATH => dynamic.rpath = text(value).map(folders).unwrap_or_default(),
            DT_RUNPATH => dynamic.runpath = text(value).map(folders).unwrap_or_default(),
            _ => {}
        }
    }
    if !dynamic.runpath.is_empty() {
        dynamic.rpath.clear();
    }
    Some(dynamic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_table_is_read_from_elf_files_only() {
        let own = read(File::open("/proc/self/exe").unwrap()).unwrap();
        assert!(own.needed.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
        assert_eq!(read(File::open("/proc/self/status").unwrap()), None);
        assert_eq!(read(File::open(file!()).or_else(|_| File::open("Cargo.toml")).unwrap()), None);
    }
}
