//! The program's dynamic section and symbols.

use std::fs;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol};

use crate::cli::{command, finish};

#[test]
fn the_program_neither_links_nor_exports_libibverbs() {
    let data = fs::read(Path::new(env!("CARGO_BIN_EXE_mcctl"))).unwrap();
    let file = ElfFile64::<Endianness>::parse(data.as_slice()).unwrap();
    let needed = needed(&data);
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    assert!(!needed.iter().any(|name| name.contains("ibverbs") || name.contains("rdma")), "{needed:?}");
    let names: Vec<&str> = file.dynamic_symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(names.iter().any(|name| *name == "dlopen" || *name == "malloc"), "the symbols could not be parsed");
    let verbs: Vec<&&str> = names.iter().filter(|name| name.contains("ibv_")).collect();
    assert!(verbs.is_empty(), "{verbs:?}");
}

/// Libraries that the loader must find before the program starts.
fn needed(data: &[u8]) -> Vec<String> {
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (entries, strings) = sections.dynamic(endian, data).unwrap().expect("the program is dynamically linked");
    let strings = sections.strings(endian, data, strings).unwrap();
    entries
        .iter()
        .filter(|entry| entry.d_tag.get(endian) == object::elf::DT_NEEDED)
        .map(|entry| {
            let at = u32::try_from(entry.d_val.get(endian)).unwrap();
            String::from_utf8_lossy(strings.get(at).unwrap()).into_owned()
        })
        .collect()
}

/// An empty folder before the loader's search path does not hide a system library. So the library
/// is replaced by a broken one: a text file with its name. The program must still start and report
/// the problem.
#[test]
fn a_broken_libibverbs_is_reported_and_commands_start() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("libibverbs.so.1"), "not a library").unwrap();
    let with = |args: &[&str]| finish(command(args).env("LD_LIBRARY_PATH", dir.path()).output().unwrap());
    assert!(with(&["--version"]).succeeds().starts_with("mcctl"));
    let document: serde_json::Value = serde_json::from_str(with(&["devices", "--json"]).succeeds()).unwrap();
    let missing = document["verbs"]["missing"].as_str().expect("the reason why verbs are unavailable");
    assert!(missing.contains("libibverbs.so.1"), "{missing}");
    let next = document["verbs"]["next"].as_str().expect("the fix");
    assert!(next.contains("ibverbs-providers"), "{next}");
}
