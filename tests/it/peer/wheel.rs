//! The installed Mooncake wheel and its programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub struct Wheel {
    venv: PathBuf,
    package: PathBuf,
    library_path: Option<String>,
}

/// The wheel. It is installed on the first use.
///
/// # Panics
/// The wheel cannot be installed, or the tests were built with `MCCTL_PEERS=off`.
pub fn wheel() -> &'static Wheel {
    if cfg!(peers_off) {
        panic!(r#"mark this test with #[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]"#);
    }
    static WHEEL: OnceLock<Wheel> = OnceLock::new();
    WHEEL.get_or_init(|| {
        let script = root().join("tests/peers/install");
        let out =
            Command::new(&script).stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{}: {e}", script.display()));
        assert!(
            out.status.success(),
            "the real Mooncake is not here and could not be installed; run tests/peers/install by hand and read:\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let print = Command::new(&script).arg("--print").output().unwrap();
        let venv = PathBuf::from(String::from_utf8(print.stdout).unwrap().trim_end());
        let lib = venv.join("lib");
        let python =
            std::fs::read_dir(&lib).unwrap().map(|e| e.unwrap().path()).find(|p| p.join("site-packages").is_dir());
        let package =
            python.unwrap_or_else(|| panic!("no site-packages under {}", lib.display())).join("site-packages/mooncake");
        let library_path = std::fs::read_to_string(venv.join("peer.env")).ok().map(|text| {
            let start = text.find('"').unwrap() + 1;
            text[start..start + text[start..].find("${").unwrap()].to_owned()
        });
        Wheel { venv, package, library_path }
    })
}

/// Root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The `mcctl` under test.
pub fn mcctl() -> Command {
    Command::new(std::env::var_os("MCCTL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_mcctl").into()))
}

impl Wheel {
    /// A binary of the wheel (`mooncake_master`, `transfer_engine_bench`, `mooncake_client`),
    /// without the Python launcher, so that a signal reaches the serving process.
    pub fn program(&self, name: &str) -> Command {
        let path = self.package.join(name);
        if let Ok(meta) = path.metadata() {
            use std::os::unix::fs::PermissionsExt;
            let mode = meta.permissions().mode();
            if mode & 0o100 == 0 {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode | 0o111)).unwrap();
            }
        }
        self.environment(Command::new(path))
    }

    /// The folder of the package `mooncake`: programs, libraries and scripts.
    pub fn package(&self) -> &Path {
        &self.package
    }

    /// The wheel's Python interpreter with tests/peers on its path.
    pub fn python(&self) -> Command {
        let mut c = self.environment(Command::new(self.venv.join("bin/python")));
        c.env("PYTHONPATH", root().join("tests/peers"))
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        c
    }

    /// A script of tests/peers in the wheel's interpreter.
    pub fn script(&self, name: &str) -> Command {
        let mut c = self.python();
        c.arg(root().join("tests/peers").join(name));
        c
    }

    fn environment(&self, mut c: Command) -> Command {
        if let Some(dirs) = &self.library_path {
            c.env("LD_LIBRARY_PATH", dirs);
        }
        // Variables of the developer's shell must not affect a test.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|n| n.starts_with("MC_") || n.starts_with("MOONCAKE_")) {
                c.env_remove(name);
            }
        }
        c
    }
}
