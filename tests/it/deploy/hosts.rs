//! Files for hosts with IPv6 addresses, and paths with special characters.

use std::fs;

use super::FORMATS;
use crate::cli::mcctl;

/// A deployment whose hosts have only IPv6 addresses.
const IPV6: &str = "name = 'six'\nprograms = 'mcctl'\n[images]\nmcctl = 'mcctl:1'\n[model]\npath = 'm'\nhicache_size_gb = 8\n\
    [master]\nhosts = ['fd00::1']\n[metadata]\nkind = 'http'\n[nodes]\nhosts = ['fd00::2']\n[serving]\nmode = 'pd'\n\
    [serving.prefill]\nhosts = ['fd00::3']\n[serving.decode]\nhosts = ['fd00::4']\n[serving.router]\nhost = 'fd00::1'\n";

fn rendered(format: &str, text: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, text).expect("written");
    mcctl(&["render", format, path.to_str().expect("text")]).succeeds().to_owned()
}

#[test]
fn hosts_with_ipv6_addresses_listen_on_ipv6_in_every_format() {
    for format in FORMATS {
        let text = rendered(format, IPV6);
        assert!(!text.contains("0.0.0.0"), "{format}: {text}");
        // An address in a URL, or before a port, has brackets.
        for address in ["fd00::1", "fd00::2", "fd00::3", "fd00::4"] {
            assert!(!text.contains(&format!("//{address}")), "{format}: {text}");
            for port in [50051, 8080, 8088, 30000, 30001] {
                assert!(!text.contains(&format!("{address}:{port}")), "{format}: {text}");
            }
        }
        assert!(text.contains("[fd00::1]:50051"), "{format}: {text}");
        assert!(text.contains("http://[fd00::1]:8080/metadata"), "{format}: {text}");
    }
    let compose = rendered("compose", IPV6);
    assert!(compose.contains("http://[::1]:30000/health") && !compose.contains("http://127.0.0.1"), "{compose}");
    assert!(rendered("prometheus", IPV6).contains("[fd00::1]:9003"));
}

#[test]
fn the_next_step_copies_to_an_ipv6_address_in_brackets() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, IPV6).expect("written");
    let out = folder.path().join("units");
    let run = mcctl(&["render", "systemd", path.to_str().expect("text"), "--out", out.to_str().expect("text")]);
    run.succeeds();
    let line = run.stderr.lines().find(|line| line.contains("fd00::2")).expect("a next step");
    assert!(line.contains(" 'root@[fd00::2]:/' && ssh root@fd00::2 '"), "{line}");
}

#[test]
fn a_path_in_a_unit_keeps_its_dollar_signs_and_doubles_percent_signs() {
    let unit = rendered("systemd", "[model]\npath = '/models/$a 50%'\n");
    assert!(unit.contains("\nRequiresMountsFor=\"/models/$a 50%%\"\n"), "{unit}");
    assert!(unit.contains(" --model-path \"/models/$$a 50%%\""), "{unit}");
}
