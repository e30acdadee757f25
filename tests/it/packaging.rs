//! The scripts and files in `packaging`, without building: checks of a release, the install lines,
//! names and the container file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// The public repository of the copies: that of the present tree, if it is set.
fn repository() -> String {
    let names = text("packaging/names");
    let found = names.lines().find_map(|line| line.strip_prefix("REPOSITORY=")).expect("a line");
    if found.is_empty() { "https://git.example.org/mcctl".to_owned() } else { found.to_owned() }
}

/// A copy of the files that `packaging/release` reads, which passes all of its checks.
struct ReleaseCopy {
    folder: tempfile::TempDir,
}

impl ReleaseCopy {
    fn new() -> ReleaseCopy {
        let copy = ReleaseCopy { folder: tempfile::tempdir().expect("a folder") };
        for path in
            ["packaging", "README.md", "CHANGELOG.md", "Cargo.toml", "Cargo.lock", "docs", "src/engine/base/upstream"]
        {
            let mut copying = Command::new("cp");
            let copied = copying.args(["-r", "--parents", path]).arg(copy.folder.path()).current_dir(root()).status();
            assert!(copied.expect("cp").success(), "{path}");
        }
        let repository = repository();
        // Whatever the present state: before or after a release, with or without addresses.
        copy.set_line("packaging/names", "REPOSITORY=", &format!("REPOSITORY={repository}"));
        copy.set_line("packaging/names", "MAINTAINER=", "MAINTAINER=\"The authors <packages@example.org>\"");
        if !copy.read("Cargo.toml").contains("\nrepository = ") {
            copy.replace("Cargo.toml", "\npublish = false\n", "\npublish = false\nrepository = \"\"\n");
        }
        copy.set_line("Cargo.toml", "repository = ", &format!("repository = \"{repository}\""));
        let heading = format!("## {} - 2026-01-31", env!("CARGO_PKG_VERSION"));
        copy.write("CHANGELOG.md", &format!("# Changelog\n\n{heading}\n\n- A change. Nothing is published yet.\n"));
        copy.commit();
        copy
    }

    fn commit(&self) {
        let git = |args: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
            let output = Command::new("git").args(identity).args(args).current_dir(self.folder.path()).output();
            let output = output.expect("git");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        git(&["init", "--quiet"]);
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", "copy"]);
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.path().join(path)).expect(path)
    }

    #[track_caller]
    fn replace(&self, path: &str, old: &str, new: &str) {
        let before = self.read(path);
        assert!(before.contains(old), "{path} has no {old:?}");
        self.write(path, &before.replacen(old, new, 1));
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.folder.path().join(path), text).expect("written");
    }

    /// Replaces the line that begins with `prefix`.
    #[track_caller]
    fn set_line(&self, path: &str, prefix: &str, new: &str) {
        let before = self.read(path);
        let old = before.lines().find(|line| line.starts_with(prefix)).expect(prefix);
        self.replace(path, &format!("\n{old}\n"), &format!("\n{new}\n"));
    }

    fn release(&self, flag: &str) -> Output {
        // Git must not find a repository around the folder.
        let mut command = Command::new("packaging/release");
        command.arg(flag).current_dir(self.folder.path()).env("GIT_CEILING_DIRECTORIES", "/").output().expect("bash")
    }

    /// The checks that fail. A tool that this machine lacks is not a failure of the copy.
    fn failed_checks(&self) -> Vec<String> {
        let output = self.release("--check");
        let stdout = String::from_utf8(output.stdout).expect("text");
        let failed = stdout.lines().filter_map(|line| line.strip_prefix("error  ")?.split_whitespace().next());
        let failed: Vec<String> = failed.map(str::to_owned).collect();
        assert_eq!(output.status.code(), Some(i32::from(!failed.is_empty())), "{stdout}");
        failed.into_iter().filter(|check| check != "tools").collect()
    }
}

#[test]
fn release_checks_pass_on_a_prepared_copy_and_name_each_problem() {
    assert_eq!(ReleaseCopy::new().failed_checks(), [""; 0]);
    let repository = repository();
    for (path, old, new, check) in [
        ("CHANGELOG.md", " - 2026-01-31\n", "\n", "changelog"),
        ("packaging/names", "<packages@example.org>", "<mcctl@localhost>", "maintainer"),
        ("packaging/names", "<packages@example.org>", "<maintainer@unset.invalid>", "maintainer"),
        ("packaging/names", repository.as_str(), "", "repository"),
        ("Cargo.toml", repository.as_str(), "https://other.example.org/mcctl", "repository"),
        ("packaging/names", "PYPI_NAME=mcctl-mooncake", "PYPI_NAME=mcctl", "names"),
        ("CHANGELOG.md", "\n- A change.", "\nA change.", "changelog"),
        ("CHANGELOG.md", "# Changelog\n", "# Changelog\n\n## Unreleased\n\n- Another.\n", "changelog"),
        // Both before and after the first upload.
        ("README.md", "cargo install --locked --path .", "cargo install", "readme"),
    ] {
        let copy = ReleaseCopy::new();
        copy.replace(path, old, new);
        assert_eq!(copy.failed_checks(), [check, "tree"], "{path}: {old} -> {new}");
        copy.commit();
        assert_eq!(copy.failed_checks(), [check], "{path}: {old} -> {new}");
    }
}

#[test]
fn a_release_with_a_wrong_version_is_refused() {
    let line = format!("\nversion = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    for version in ["99.0.0", "1.0"] {
        let copy = ReleaseCopy::new();
        copy.replace("Cargo.toml", &line, &format!("\nversion = \"{version}\"\n"));
        copy.commit();
        assert_eq!(copy.failed_checks(), ["version", "changelog"]);
    }
}

#[test]
fn the_present_tree_has_consistent_versions_and_names() {
    let output = Command::new(root().join("packaging/release")).arg("--check").output().expect("bash");
    let stdout = String::from_utf8(output.stdout).expect("text");
    for check in ["version", "names", "readme"] {
        assert!(stdout.lines().any(|line| line.starts_with(&format!("ok     {check} "))), "{check}: {stdout}");
    }
}

#[test]
fn the_first_upload_writes_public_install_lines_into_readme() {
    let copy = ReleaseCopy::new();
    let before = copy.read("README.md");
    assert!(copy.release("--published").status.success());
    let after = copy.read("README.md");
    assert!(after.contains("\npip install mcctl-mooncake ") && after.contains(&format!("{}/releases", repository())));
    assert!(!after.contains("published yet") && !copy.read("CHANGELOG.md").contains("Nothing is published yet"));
    assert!(after.lines().count() <= before.lines().count());
    assert!(copy.release("--published").status.success());
    assert_eq!(copy.read("README.md"), after);
    copy.commit();
    assert_eq!(copy.failed_checks(), [""; 0]);
    copy.replace("README.md", "pip install mcctl-mooncake", "pip install another");
    assert_eq!(copy.release("--published").status.code(), Some(1));
}

#[test]
fn binstall_looks_for_the_archive_that_is_built() {
    let manifest: toml::Table = toml::from_str(&text("Cargo.toml")).expect("TOML");
    let binstall = &manifest["package"]["metadata"]["binstall"];
    let filled = |key: &str| {
        let values = [("repo", "$REPOSITORY"), ("version", "$(version)"), ("name", "mcctl"), ("bin", "mcctl")];
        let values = values.into_iter().chain([("target", "$arch-unknown-linux-gnu")]);
        let template = binstall[key].as_str().expect("a text").to_owned();
        values.fold(template, |text, (name, value)| text.replace(&format!("{{ {name} }}"), value))
    };
    let archive = text("packaging/archive");
    let (_, name) = archive.split_once("\nname=").expect("a name");
    let name = name.lines().next().expect("a line");
    assert_eq!(filled("pkg-url"), format!("$REPOSITORY/releases/download/v$(version)/{name}.tar.xz"));
    assert_eq!(filled("bin-dir"), format!("{name}/mcctl"));
    assert!(archive.contains("pack \"$OUT/$name.tar.xz\" \"$name\""));
    assert!(archive.contains("\ntop=$folder/$name\n") && archive.contains("\"$program\" \"$top/mcctl\""));
    assert_eq!(binstall["pkg-fmt"].as_str(), Some("txz"));
    assert!(text("packaging/release").contains("$REPOSITORY/releases, as v$version"));
}

#[test]
fn a_wheel_has_the_program_its_metadata_and_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("mcctl"), "program").expect("written");
    fs::write(path("sbom"), "{}").expect("written");
    let build = |out: &str| {
        fs::create_dir(path(out)).expect("made");
        let mut command = Command::new("packaging/wheel.py");
        command.current_dir(root()).env("SOURCE_DATE_EPOCH", "1700000000");
        command.args(["--version", "1.2.3", "--platform", "manylinux_2_28_x86_64"]);
        command.arg("--program").arg(path("mcctl")).arg("--sbom").arg(path("sbom")).arg("--out").arg(path(out));
        let output = command.output().expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(path(out).join("mcctl_mooncake-1.2.3-py3-none-manylinux_2_28_x86_64.whl")).expect("a wheel")
    };
    assert_eq!(build("a"), build("b"));
    let wheel = path("a/mcctl_mooncake-1.2.3-py3-none-manylinux_2_28_x86_64.whl");
    let unpacked = Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(path("files")).status();
    assert!(unpacked.expect("python3").success());
    let read = |name: &str| fs::read_to_string(path("files").join(format!("mcctl_mooncake-1.2.3.{name}"))).expect(name);
    assert_eq!(read("data/scripts/mcctl"), "program");
    let schemas =
        fs::read_dir(path("files/mcctl_mooncake-1.2.3.data/data/share/mcctl/schemas")).expect("schemas").count();
    assert_eq!(schemas, fs::read_dir(root().join("packaging/schemas")).expect("a folder").count());
    let metadata = read("dist-info/METADATA");
    for line in ["Name: mcctl-mooncake", "Version: 1.2.3", "License-Expression: Apache-2.0", "# mcctl"] {
        assert!(metadata.lines().any(|found| found == line), "{line}: {metadata}");
    }
    assert!(read("dist-info/WHEEL").contains("\nTag: py3-none-manylinux_2_28_x86_64\n"));
    let record = read("dist-info/RECORD");
    assert!(record.contains("scripts/mcctl,sha256=") && record.lines().count() == 6 + schemas, "{record}");
}

#[test]
fn the_archive_and_the_debian_package_contain_the_schemas() {
    for script in ["packaging/archive", "packaging/deb"] {
        let install =
            text(script).lines().any(|line| line.starts_with("install ") && line.contains("packaging/schemas/*.json"));
        assert!(install, "{script}");
    }
}

/// The instructions of a Containerfile, with continued lines joined.
fn instructions(file: &str) -> Vec<(String, String)> {
    let text: String =
        file.lines().filter(|line| !line.trim_start().starts_with('#')).map(|l| format!("{l}\n")).collect();
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.trim().split_once(' '));
    lines.map(|(kind, rest)| (kind.to_owned(), rest.trim().to_owned())).collect()
}

#[test]
fn the_container_file_pins_its_images_and_drops_privileges() {
    let all = instructions(&text("packaging/image/Containerfile"));
    let of =
        |kind: &str| -> Vec<&str> { all.iter().filter(|(k, _)| k == kind).map(|(_, rest)| rest.as_str()).collect() };
    let arguments: Vec<(&str, &str)> = of("ARG").iter().map(|line| line.split_once('=').expect("a default")).collect();
    let images = of("FROM");
    assert!(images.len() >= 2, "{images:?}");
    for image in images {
        let image = arguments
            .iter()
            .fold(image.to_owned(), |image, (name, value)| image.replace(&format!("${{{name}}}"), value));
        let tag = image.split_whitespace().next().and_then(|name| name.rsplit_once(':')).map(|(_, tag)| tag);
        assert!(tag.is_some_and(|tag| !tag.is_empty() && tag != "latest" && !tag.contains('$')), "{image}");
    }
    let last = all.iter().rposition(|(kind, _)| kind == "FROM").expect("a stage");
    let stage: Vec<&str> = all[last..].iter().map(|(kind, _)| kind.as_str()).collect();
    let user = of("USER");
    assert!(matches!(user.as_slice(), [user] if user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 999))));
    let at = |kind: &str| stage.iter().rposition(|known| *known == kind).expect("in the last stage");
    assert!(at("RUN") < at("USER") && at("COPY") < at("USER") && at("USER") < at("ENTRYPOINT"), "{stage:?}");
    assert!(of("ADD").is_empty() && !stage.contains(&"VOLUME"), "{stage:?}");
    assert_eq!(of("HEALTHCHECK").len(), 1);
    for step in all[last..].iter().filter(|(kind, _)| kind == "RUN").map(|(_, rest)| rest) {
        let installs = step.contains("apt-get install");
        assert!(
            !installs || step.contains("--no-install-recommends") && step.contains("rm -rf /var/lib/apt/lists"),
            "{step}"
        );
        assert!(!step.contains("curl") && !step.contains("wget"), "{step}");
    }
}
