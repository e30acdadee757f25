//! The program as the loader sees it.

use std::fs;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol};

use crate::cli::{command, finish};

#[test]
fn the_program_has_no_hard_need_of_libibverbs_and_exports_none_of_its_symbols() {
    let data = fs::read(Path::new(env!("CARGO_BIN_EXE_mcctl"))).unwrap();
    let file = ElfFile64::<Endianness>::parse(data.as_slice()).unwrap();
    let needed = needed(&data);
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    assert!(!needed.iter().any(|name| name.contains("ibverbs") || name.contains("rdma")), "{needed:?}");
    let names: Vec<&str> = file.dynamic_symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(names.iter().any(|name| *name == "dlopen" || *name == "malloc"), "the symbols were not understood");
    let verbs: Vec<&&str> = names.iter().filter(|name| name.contains("ibv_")).collect();
    assert!(verbs.is_empty(), "{verbs:?}");
}

/// Libraries that the loader must find before the program starts.
fn needed(data: &[u8]) -> Vec<String> {
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (entries, strings) = sections.dynamic(endian, data).unwrap().expect("it is linked dynamically");
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

/// An empty folder in front of the loader's places does not hide a library of the system's, so the library is broken instead: a text
/// file of its name. The program must start all the same, and say what is wrong.
#[test]
fn with_a_library_that_cannot_be_opened_commands_start_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("libibverbs.so.1"), "not a library").unwrap();
    let with = |args: &[&str]| finish(command(args).env("LD_LIBRARY_PATH", dir.path()).output().unwrap());
    assert!(with(&["--version"]).succeeds().starts_with("mcctl"));
    let document: serde_json::Value = serde_json::from_str(with(&["devices", "--json"]).succeeds()).unwrap();
    let missing = document["verbs"]["missing"].as_str().expect("why there are no verbs");
    assert!(missing.starts_with("libibverbs.so.1 cannot be opened"), "{missing}");
    let next = document["verbs"]["next"].as_str().expect("what to do");
    assert!(next.contains("ibverbs-providers"), "{next}");
}
