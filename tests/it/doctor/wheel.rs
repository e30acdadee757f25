//! Tests of the wheel checks, with generated ELF files and with the real wheel.

use super::{Host, verdict};
use crate::peer;

const PACKAGES: &str = "/usr/lib/python3.11/site-packages";

/// A 64-bit shared object that links to `needed`, with an optional `DT_RUNPATH`.
fn elf(needed: &[&str], runpath: Option<&str>) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut entries: Vec<(u64, u64)> = Vec::new();
    let texts = needed.iter().map(|name| (1, *name)).chain(runpath.map(|path| (29, path)));
    for (tag, text) in texts {
        entries.push((tag, strings.len() as u64));
        strings.extend(text.as_bytes());
        strings.push(0);
    }
    entries.push((0, 0));
    let dynamic: Vec<u8> =
        entries.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat()).collect();
    let padded = strings.len().next_multiple_of(8);
    strings.resize(padded, 0);
    let (strings_at, dynamic_at) = (64u64, 64 + strings.len() as u64);
    let sections_at = dynamic_at + dynamic.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [3u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [0, 0, sections_at] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 0, 64, 3, 1] {
        file.extend(half.to_le_bytes());
    }
    file.extend(&strings);
    file.extend(&dynamic);
    // The null section, .dynstr and .dynamic: type, offset, length, linked section, entry size.
    for (kind, at, len, link, entry) in [
        (0u32, 0, 0, 0u32, 0u64),
        (3, strings_at, strings.len() as u64, 0, 0),
        (6, dynamic_at, dynamic.len() as u64, 1, 16),
    ] {
        file.extend(0u32.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [0, 0, at, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(link.to_le_bytes());
        file.extend(0u32.to_le_bytes());
        for word in [8, entry] {
            file.extend(word.to_le_bytes());
        }
    }
    file
}

fn metadata(name: &str, release: &str) -> String {
    format!("Metadata-Version: 2.4\nName: {name}\nVersion: {release}\n\nVersion: no\n")
}

/// A host with a wheel that links to these libraries.
fn host(name: &str, release: &str, needed: &[&str]) -> Host {
    let packages = format!("{PACKAGES}/{}-{release}.dist-info/METADATA", name.replace('-', "_"));
    Host::healthy()
        .with("/usr/bin/python3", "")
        .with(&packages, metadata(name, release))
        .with(&format!("{PACKAGES}/mooncake/store.so"), elf(needed, Some("$ORIGIN/../mooncake.libs")))
        .with(&format!("{PACKAGES}/mooncake.libs/libglog-1.so"), elf(&["libc.so.6", "libcurl.so.4"], None))
        .with("/lib64/libc.so.6", elf(&[], None))
        .with("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
        .with("/etc/ld.so.conf.d/x.conf", "# more\n/opt/lib\n")
        .with("/opt/lib/libcurl.so.4", elf(&[], None))
}

const CUDA: &str = "mooncake-transfer-engine";
const PLAIN: &str = "mooncake-transfer-engine-non-cuda";

#[test]
fn a_missing_library_is_found() {
    let check = |host: &Host| host.verdict("wheel-libraries", &[], &[]);
    assert_eq!(check(&host(PLAIN, "0.3.13.post1", &["libc.so.6", "libglog-1.so"])), "passed");
    assert_eq!(check(&host(PLAIN, "0.3.13.post1", &["libc.so.6", "libibverbs.so.1"])), "error");
    let none = host(PLAIN, "0.3.13.post1", &[]).without("/opt/lib");
    assert_eq!(check(&none), "passed", "no binary needs it");
    // A library of the wheel itself needs another one.
    assert_eq!(check(&host(PLAIN, "0.3.13.post1", &["libglog-1.so"]).without("/opt/lib")), "error");
    let torch = host(CUDA, "0.3.13.post1", &["libcudart.so.12"])
        .with(&format!("{PACKAGES}/nvidia/cuda_runtime/lib/libcudart.so.12"), "");
    assert_eq!(check(&torch), "warning");
    assert_eq!(check(&host(CUDA, "0.3.13.post1", &["libcudart.so.12"])), "error");
    assert_eq!(check(&Host::healthy()), "skipped");
    let odd = host(PLAIN, "0.3.13.post1", &["libc.so.6"])
        .with(&format!("{PACKAGES}/mooncake/engine.so"), &elf(&["x"], None)[..80]);
    assert_eq!(check(&odd), "passed", "a truncated file is ignored");
}

#[test]
fn a_wrong_wheel_variant_or_release_is_found() {
    let right = host(PLAIN, "0.3.13.post1", &["libc.so.6"]);
    for id in ["wheel-installed", "wheel-flavour", "wheel-release"] {
        assert_eq!(right.verdict(id, &[], &[]), "passed", "{id}");
    }
    assert_eq!(host(PLAIN, "0.3.12.post1", &["libcudart.so.12"]).verdict("wheel-flavour", &[], &[]), "warning");
    assert_eq!(host(CUDA, "0.3.13.post1", &["libcudart.so.12"]).verdict("wheel-flavour", &[], &[]), "passed");
    assert_eq!(host(PLAIN, "0.3.10.post2", &[]).verdict("wheel-installed", &[], &[]), "info");
    let both = host(PLAIN, "0.3.13.post1", &[]).with(
        &format!("{PACKAGES}/mooncake_transfer_engine-0.3.13.post1.dist-info/METADATA"),
        metadata(CUDA, "0.3.13.post1"),
    );
    assert_eq!(both.verdict("wheel-installed", &[], &[]), "error");
    let record = "/usr/local/lib/python3.11/site-packages/mooncake_transfer_engine-0.3.12.post1.dist-info/METADATA";
    let two = host(PLAIN, "0.3.13.post1", &[])
        .with("/usr/local/bin/python3", "")
        .with(record, metadata(CUDA, "0.3.12.post1"));
    assert_eq!(two.verdict("wheel-release", &[], &[]), "warning");
    // The master on PATH belongs to a virtual environment, whose wheel differs from the system's.
    let master = "#!/srv/venv/bin/python\nimport mooncake\n";
    let apart = host(PLAIN, "0.3.13.post1", &[])
        .with("/srv/venv/pyvenv.cfg", "include-system-site-packages = false\n")
        .with("/srv/venv/bin/python", "")
        .with(
            "/srv/venv/lib/python3.11/site-packages/mooncake_transfer_engine-0.3.12.post1.dist-info/METADATA",
            metadata(CUDA, "0.3.12.post1"),
        )
        .with("/usr/bin/mooncake_master", master);
    assert_eq!(apart.verdict("wheel-release", &[], &[]), "warning");
    assert_eq!(apart.verdict("wheel-installed", &[], &["--python=/srv/venv/bin/python"]), "info");
    assert_eq!(apart.verdict("wheel-installed", &[], &["--python=/srv/venv"]), "info");
}

/// The wheel's own files must not be reported as missing.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_wheel_and_its_libraries_are_found() {
    let program = peer::wheel::wheel().python().get_program().to_str().unwrap().to_owned();
    let python = format!("--python={program}");
    for id in ["wheel-installed", "wheel-flavour", "wheel-release", "wheel-libraries"] {
        assert_eq!(verdict(id, &[], &[&python]), "passed", "{id}");
    }
}
