//! `MCCTL_PEERS=off` at build time makes the tests against the real Mooncake `#[ignore]`, so that `cargo test` lists them as not run.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(peers_off)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MCCTL_PEERS");
    if std::env::var("MCCTL_PEERS").is_ok_and(|value| value == "off") {
        println!("cargo::rustc-cfg=peers_off");
    }
}
