//! Finds installed Mooncake wheels without running Python: the package directories of each interpreter, and the records of installed
//! packages in them.

use mcctl_sys::FileTree;

/// Where to search for wheels.
#[derive(Clone, Debug, Default)]
pub struct WheelSearch {
    /// An interpreter, or the directory that contains its `bin` and `lib`. If set, only this one is searched.
    pub python: Option<String>,
    /// `VIRTUAL_ENV`, `CONDA_PREFIX`.
    pub prefixes: Vec<String>,
    /// The directories in `PATH`.
    pub path: Vec<String>,
    /// The directories in `PYTHONPATH`.
    pub packages: Vec<String>,
    pub home: Option<String>,
    /// `LD_LIBRARY_PATH`.
    pub library_path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The distribution name, e.g. `mooncake-transfer-engine`.
    pub name: String,
    /// The version, e.g. `0.3.13.post1`.
    pub release: String,
    /// The package directory that contains it.
    pub packages: String,
    /// The directory that contains the interpreter's `bin`, if known.
    pub prefix: Option<String>,
}

impl Wheel {
    /// The build variant: `non-cuda`, or `cuda` with an optional suffix.
    pub fn flavour(&self) -> &str {
        match self.name.strip_prefix("mooncake-transfer-engine").map(|rest| rest.trim_start_matches('-')) {
            Some("") => "cuda",
            Some(flavour) => flavour,
            None => "unknown",
        }
    }

    /// The directory with its modules and binaries.
    pub fn folder(&self) -> String {
        format!("{}/mooncake", self.packages)
    }
}

/// File names of a Python interpreter.
const PYTHONS: &[&str] = &["python3", "python"];

/// Finds all wheels in `search`; the first is the one that the first interpreter would import.
pub(super) fn wheels(tree: &FileTree, search: &WheelSearch) -> Vec<Wheel> {
    let mut folders: Vec<(String, Option<String>)> = Vec::new();
    let mut add = |packages: String, prefix: Option<&str>| {
        // Two paths may lead to the same directory.
        if let Some(real) = tree.resolve(&packages)
            && !folders.iter().any(|(known, _)| tree.resolve(known).as_ref() == Some(&real))
        {
            folders.push((packages, prefix.map(str::to_owned)));
        }
    };
    if search.python.is_none() {
        for packages in &search.packages {
            add(packages.trim_end_matches('/').to_owned(), None);
        }
    }
    for prefix in prefixes(tree, search) {
        for packages in packages_of(tree, &prefix) {
            add(packages, Some(&prefix));
        }
    }
    let mut found = Vec::new();
    for (packages, prefix) in folders {
        for name in tree.names(&packages).ok().flatten().unwrap_or_default() {
            if !name.to_ascii_lowercase().starts_with("mooncake") || !name.ends_with(".dist-info") {
                continue;
            }
            let text = tree.text(&format!("{packages}/{name}/METADATA")).ok().flatten().unwrap_or_default();
            let field = |field: &str| {
                let head = text.lines().take_while(|entry| !entry.is_empty());
                head.filter_map(|entry| entry.strip_prefix(field)).map(|value| value.trim().to_owned()).next()
            };
            if let (Some(name), Some(release)) = (field("Name:"), field("Version:")) {
                let name = name.to_ascii_lowercase().replace(['_', '.'], "-");
                found.push(Wheel { name, release, packages: packages.clone(), prefix: prefix.clone() });
            }
        }
    }
    found
}

/// The directories that contain each interpreter's `bin` and `lib`.
fn prefixes(tree: &FileTree, search: &WheelSearch) -> Vec<String> {
    let mut prefixes: Vec<String> = Vec::new();
    if let Some(python) = &search.python {
        let python = python.trim_end_matches('/');
        match tree.names(python) {
            Ok(Some(_)) => prefixes.push(python.to_owned()),
            _ => of_interpreter(tree, python, &mut prefixes),
        }
        return prefixes;
    }
    prefixes.extend(search.prefixes.iter().map(|prefix| prefix.trim_end_matches('/').to_owned()));
    for folder in &search.path {
        for name in PYTHONS {
            let python = format!("{}/{name}", folder.trim_end_matches('/'));
            if tree.resolve(&python).is_some() {
                of_interpreter(tree, &python, &mut prefixes);
            }
        }
    }
    // User site packages.
    prefixes.extend(search.home.iter().map(|home| format!("{}/.local", home.trim_end_matches('/'))));
    prefixes
}

/// Adds an interpreter's prefixes: from its path and from the file that the path resolves to.
fn of_interpreter(tree: &FileTree, python: &str, into: &mut Vec<String>) {
    let mut push = |path: &str| {
        let mut parts = path.rsplitn(3, '/');
        if let (Some(_), Some("bin"), Some(prefix)) = (parts.next(), parts.next(), parts.next()) {
            into.push(if prefix.is_empty() { "/usr".to_owned() } else { prefix.to_owned() });
        }
    };
    let bin = python.rsplit_once('/').map_or("", |(bin, _)| bin);
    let prefix = bin.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    push(python);
    // pyenv replaces the interpreter with a script and stores the selected version in a file.
    if bin.ends_with("/shims")
        && let Some(version) = tree.text(&format!("{prefix}/version")).ok().flatten()
    {
        into.extend(version.split_whitespace().map(|version| format!("{prefix}/versions/{version}")));
        return;
    }
    // A virtual environment includes the system packages only if its configuration enables them.
    let shares = match tree.text(&format!("{prefix}/pyvenv.cfg")).ok().flatten() {
        None => true,
        Some(text) => text.lines().any(|entry| {
            entry.split_once('=').is_some_and(|(key, value)| {
                key.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true")
            })
        }),
    };
    if let (true, Some(real)) = (shares, tree.resolve(python)) {
        push(&real);
    }
}

/// The package directories under a prefix.
fn packages_of(tree: &FileTree, prefix: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for lib in ["lib", "lib64", "local/lib"] {
        let at = format!("{prefix}/{lib}");
        for name in tree.names(&at).ok().flatten().unwrap_or_default() {
            if name.starts_with("python3") {
                folders.extend(["site-packages", "dist-packages"].map(|packages| format!("{at}/{name}/{packages}")));
            }
        }
    }
    folders.retain(|folder| tree.resolve(folder).is_some());
    folders
}
