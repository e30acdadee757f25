//! The releases of SGLang and Mooncake that a process runs, from its image and from the
//! `pip install` commands before it.

use crate::lint::model::{InstalledPackage, LocatedValue, ParsedDeployment, Process};

/// A release and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRelease {
    /// `0.5.9`, `0.3.13.post1`.
    pub text: String,
    /// Whether the program is surely the published one: its package, or its own image without an
    /// addition to the tag.
    pub is_published: bool,
}

/// Where a process's Mooncake comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WheelOrigin {
    /// The wheel from PyPI: installed in the script, in a published image, or assumed.
    PyPi,
    /// An image, a file or sources that may be a build of its own.
    Image,
}

/// Repositories of published images that contain the wheel from PyPI.
const PUBLISHED: &[&str] = &["lmsysorg/sglang", "vllm/vllm-openai", "lmcache/vllm-openai", "kvcacheai/mooncake"];

/// The origin of the Mooncake that `process` runs. Outside of containers, it is the wheel unless
/// the files name another one.
pub(super) fn wheel_origin(process: &Process) -> WheelOrigin {
    let installed = process.packages.iter().rev().find(|package| is_mooncake(&package.name));
    match &process.image {
        _ if installed.is_some_and(|package| !package.is_published) => WheelOrigin::Image,
        Some(image) if installed.is_none() && !PUBLISHED.contains(&repository(&image.text)) => WheelOrigin::Image,
        _ => WheelOrigin::PyPi,
    }
}

/// The image's name without registry host, tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => rest,
        _ => name,
    }
}

fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))
}

fn is_mooncake(package: &str) -> bool {
    package == "mooncake" || package.starts_with("mooncake-transfer-engine")
}

/// Options of `pip install` and `uv add` whose value is not a package.
const VALUED: &[&str] = &[
    "-c",
    "--constraint",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "-t",
    "--target",
    "--index",
    "--prefix",
    "--root",
    "--python",
    "-p",
    "--trusted-host",
    "--cache-dir",
    "--platform",
    "--no-binary",
    "--only-binary",
    "--torch-backend",
    "--prerelease",
    "--timeout",
    "--retries",
    "--progress-bar",
    "--upgrade-strategy",
    "--config-settings",
];

/// The packages that the command `words` installs. Empty if it is not `pip install`,
/// `uv pip install`, `uv add` or the like.
pub(super) fn packages(words: &[LocatedValue]) -> Vec<InstalledPackage> {
    let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
    let is_pip = |name: &str| {
        let name = name.rsplit('/').next().unwrap_or(name);
        name == "pip" || name.strip_prefix("pip").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // `pip install`, `uv pip install`, `python3 -m pip install`, `sudo pip install`,
    // `pip --no-cache-dir install`, `uv add`.
    let first = (0..words.len().min(6)).find_map(|at| {
        let wanted = if is_pip(text(at)) { "install" } else { "add" };
        if wanted == "add" && text(at).rsplit('/').next() != Some("uv") {
            return None;
        }
        let mut next = at + 1;
        while text(next).starts_with('-') {
            next += if VALUED.contains(&text(next)) { 2 } else { 1 };
        }
        (text(next) == wanted).then_some(next + 1)
    });
    let mut rest = words.iter().skip(first.unwrap_or(words.len())).map(|word| word.text.as_str());
    let mut out = Vec::new();
    while let Some(word) = rest.next() {
        match word {
            "-e" | "--editable" | "-r" | "--requirement" | "--requirements" => {
                rest.next();
                out.extend(from_source());
            }
            flag if VALUED.contains(&flag) => {
                rest.next();
            }
            flag if flag.starts_with("-e") || flag.starts_with("-r") || flag.starts_with("--editable=") => {
                out.extend(from_source());
            }
            flag if flag.starts_with("--requirement") => out.extend(from_source()),
            flag if flag.starts_with('-') => {}
            word if is_source(word) => out.extend(from_source()),
            word => out.extend(package(word)),
        }
    }
    out
}

/// Whether the word is a path, a URL, or only known at run time.
fn is_source(word: &str) -> bool {
    let requirement = word.split([';', '#']).next().unwrap_or(word);
    requirement.contains(['/', '$', '@'])
        || requirement.starts_with('.')
        || [".whl", ".tar.gz", ".zip"].iter().any(|end| requirement.ends_with(end))
}

/// What an installation from a file, from sources or from a list may contain.
fn from_source() -> [InstalledPackage; 2] {
    ["sglang", "mooncake-transfer-engine"].map(|name| InstalledPackage {
        name: name.to_owned(),
        version: None,
        is_published: false,
    })
}

fn package(text: &str) -> Option<InstalledPackage> {
    let text = text.split(';').next().unwrap_or(text).trim();
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c))).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return None;
    }
    let rest = match rest.strip_prefix('[') {
        Some(extras) => extras.split_once(']')?.1,
        None => rest,
    };
    let version = rest.trim().strip_prefix("==").map(|version| version.trim_start_matches('=').trim());
    let is_fixed =
        |version: &&str| !version.is_empty() && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+-".contains(c));
    let version = version.filter(is_fixed).map(|version| version.split('+').next().unwrap_or(version).to_owned());
    Some(InstalledPackage { name: name.to_ascii_lowercase().replace(['_', '.'], "-"), version, is_published: true })
}

/// The last fixed version of a package whose name `is_wanted`. `None` as well if a later command
/// installs it without a version.
fn installed(process: &Process, is_wanted: impl Fn(&str) -> bool) -> Option<FoundRelease> {
    let package = process.packages.iter().rev().find(|package| is_wanted(&package.name))?;
    Some(FoundRelease { text: package.version.clone()?, is_published: true })
}

impl ParsedDeployment {
    /// The Mooncake release of `process`: the one specified on the command line, of the installed
    /// package, or of the image tag.
    pub fn release_of(&self, process: &Process) -> Option<String> {
        self.release.clone().or_else(|| Some(mooncake_release(process)?.text))
    }
}

/// The Mooncake release of a process: of the package, or of the tag of a Mooncake image.
pub(super) fn mooncake_release(process: &Process) -> Option<FoundRelease> {
    if process.packages.iter().any(|package| is_mooncake(&package.name)) {
        return installed(process, is_mooncake);
    }
    let text = release_of_image(&process.image.as_ref()?.text)?;
    Some(FoundRelease { text, is_published: true })
}

/// The release in the tag of a Mooncake image, e.g. `0.3.12.post1`.
pub(super) fn release_of_image(image: &str) -> Option<String> {
    let (path, tag) = image.rsplit_once(':')?;
    let tag = tag.trim_start_matches('v');
    let plain = tag.starts_with("0.3.") && path.contains("mooncake");
    plain.then(|| tag.split('-').next().unwrap_or(tag).to_owned())
}

/// The SGLang release of a process: of the package, or of the tag of an SGLang image.
pub(super) fn sglang_release(process: &Process) -> Option<FoundRelease> {
    if process.packages.iter().any(|package| package.name == "sglang") {
        return installed(process, |name| name == "sglang");
    }
    let image = &process.image.as_ref()?.text;
    if repository(image).rsplit('/').next() != Some("sglang") {
        return None;
    }
    let tag = tag(image)?;
    let (release, addition) = match tag.split_once('-') {
        Some((release, addition)) => (release, addition),
        None => (tag, ""),
    };
    let release = release.trim_start_matches('v');
    let is_release = release.split('.').count() >= 3
        && release.split('.').enumerate().all(|(at, part)| match part.strip_prefix("post") {
            Some(number) if at == 3 => number.parse::<u32>().is_ok(),
            _ => part.parse::<u32>().is_ok(),
        });
    // A registry may mirror the image under the same name.
    let is_published = repository(image).ends_with("lmsysorg/sglang") && addition.split('-').all(is_platform);
    is_release.then(|| FoundRelease { text: release.to_owned(), is_published })
}

/// Whether this part of an image tag names a platform, so that the program is the published one.
fn is_platform(part: &str) -> bool {
    const WORDS: [&str; 12] =
        ["", "runtime", "amd64", "arm64", "x86", "npu", "xeon", "xpu", "srt", "blackwell", "slim", "framework"];
    const STEMS: [&str; 7] = ["cu", "rocm", "mi3", "b20", "gb20", "cann", "910"];
    let digits = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == 'x' || c == '.' || c == '0');
    WORDS.contains(&part) || STEMS.iter().any(|stem| part.strip_prefix(stem).is_some_and(digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::model::{ProcessRole, RuntimeKind};
    use mcctl_base::check::SourceLocation;

    fn process(image: Option<&str>, commands: &[&str]) -> Process {
        let place = SourceLocation { file: "x".into(), line: 1 };
        let mut process = Process::new("x", ProcessRole::Other, place.clone(), RuntimeKind::Shell);
        process.image = image.map(|text| LocatedValue::new(text, place.clone()));
        for command in commands {
            let words: Vec<_> = command.split(' ').map(|word| LocatedValue::new(word, place.clone())).collect();
            process.packages.extend(packages(&words));
        }
        process
    }

    fn found(image: Option<&str>, commands: &[&str]) -> (Option<String>, Option<String>) {
        let process = process(image, commands);
        (sglang_release(&process).map(|found| found.text), mooncake_release(&process).map(|found| found.text))
    }

    #[test]
    fn releases_come_from_pip_commands_and_image_tags() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found(None, &["pip install sglang[all]==0.5.9"]), (some("0.5.9"), None));
        assert_eq!(
            found(None, &["uv pip install -U mooncake-transfer-engine==0.3.7.post2"]),
            (None, some("0.3.7.post2"))
        );
        assert_eq!(
            found(None, &["python3 -m pip install mooncake_transfer_engine_cuda13==0.3.10"]),
            (None, some("0.3.10"))
        );
        assert_eq!(found(None, &["pip install mooncake-transfer-engine"]), (None, None));
        assert_eq!(found(None, &["pip install sglang==0.5.9", "pip install -U sglang"]), (None, None));
        assert_eq!(found(None, &["pip install sglang>=0.5.9 ./x.whl -r r.txt"]), (None, None));
        assert_eq!(found(None, &["pip download sglang==0.5.9", "pip install $WHEEL"]), (None, None));
        assert_eq!(found(Some("lmsysorg/sglang:v0.5.5.post3"), &[]), (some("0.5.5.post3"), None));
        assert_eq!(found(Some("host:5000/a/sglang:v0.5.9-cu130-amd64"), &[]), (some("0.5.9"), None));
        assert_eq!(found(Some("lmsysorg/sglang:latest"), &[]), (None, None));
        assert_eq!(found(Some("lmsysorg/sglang:dev-0.5.9"), &[]), (None, None));
        assert_eq!(found(Some("lmsysorg/sglang-router:v0.2.1"), &[]), (None, None));
        assert_eq!(found(None, &["pip3 --no-cache-dir install sglang==0.5.9"]), (some("0.5.9"), None));
        assert_eq!(found(None, &["uv add -i https://index.example/simple sglang==0.5.9"]), (some("0.5.9"), None));
        for source in
            ["-e python", "git+https://a.example/sglang@main", "./x.whl", "x-1.whl", "-r r.txt", "$WHEEL", "."]
        {
            let command = format!("pip install {source}");
            assert_eq!(found(Some("lmsysorg/sglang:v0.5.9"), &["pip install mooncake==1", &command]), (None, None));
        }
        // What is installed in the container replaces what its image has.
        assert_eq!(found(Some("lmsysorg/sglang:v0.5.9"), &["pip install sglang==0.5.8"]), (some("0.5.8"), None));
    }

    #[test]
    fn an_addition_to_a_tag_may_be_a_changed_program() {
        let published = |image| sglang_release(&process(Some(image), &[])).is_some_and(|found| found.is_published);
        assert!(published("lmsysorg/sglang:v0.5.9") && published("lmsysorg/sglang:v0.5.9-cu129-arm64"));
        assert!(published("lmsysorg/sglang:v0.5.6.post1-rocm700-mi35x"));
        assert!(published("registry.example/mirror/lmsysorg/sglang:v0.5.9"));
        assert!(!published("registry.example/sglang:v0.5.9") && !published("lmsysorg/sglang:v0.5.9-mooncake2"));
    }

    #[test]
    fn only_a_private_image_may_have_a_build_of_its_own() {
        let origin = |image, commands: &[&str]| wheel_origin(&process(image, commands));
        assert_eq!(origin(None, &[]), WheelOrigin::PyPi);
        assert_eq!(origin(Some("docker.io/lmsysorg/sglang:v0.5.9"), &[]), WheelOrigin::PyPi);
        assert_eq!(origin(Some("registry.example/sglang:v0.5.9"), &[]), WheelOrigin::Image);
        assert_eq!(origin(Some("a/b:1"), &["pip install mooncake-transfer-engine"]), WheelOrigin::PyPi);
        assert_eq!(origin(None, &["pip install ./mooncake.whl"]), WheelOrigin::Image);
    }
}
