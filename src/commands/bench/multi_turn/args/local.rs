//! Finds model and dataset files on this machine: in directories and in the local Hugging Face
//! cache. Never uses the network.

use std::path::{Path, PathBuf};

pub(super) const TOKENIZER: &str = "tokenizer.json";
/// ShareGPT repository and file, the same ones that `bench_serving` downloads.
const SHAREGPT: (&str, &str) =
    ("anon8231489123/ShareGPT_Vicuna_unfiltered", "ShareGPT_V3_unfiltered_cleaned_split.json");

/// Returns the `tokenizer.json` for `name`, which is a file, a directory, or a model in the local
/// cache. `None` if not found.
pub(super) fn tokenizer(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Some(path.to_owned());
    }
    let inside = path.join(TOKENIZER);
    if inside.is_file() {
        return Some(inside);
    }
    cached("models", name, TOKENIZER)
}

/// Returns the ShareGPT file from the local cache, if present.
pub(super) fn sharegpt() -> Option<PathBuf> {
    cached("datasets", SHAREGPT.0, SHAREGPT.1)
}

/// Returns `file` from the repository `name` (`ORGANIZATION/NAME`) in the local cache. Prefers the
/// main revision.
fn cached(kind: &str, name: &str, file: &str) -> Option<PathBuf> {
    if name.is_empty() || name.starts_with(['/', '.']) || name.matches('/').count() > 1 {
        return None;
    }
    caches().into_iter().find_map(|cache| in_cache(&cache.join(format!("{kind}--{}", name.replace('/', "--"))), file))
}

fn in_cache(repository: &Path, file: &str) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = std::fs::read_to_string(repository.join("refs").join("main")).ok();
    let main = main.map(|revision| snapshots.join(revision.trim()).join(file)).filter(|path| path.is_file());
    main.or_else(|| {
        let mut others: Vec<PathBuf> =
            std::fs::read_dir(&snapshots).ok()?.filter_map(|entry| Some(entry.ok()?.path().join(file))).collect();
        others.sort();
        others.into_iter().rfind(|path| path.is_file())
    })
}

/// Returns the cache directories in the order `huggingface_hub` uses.
fn caches() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let hub = |folder: PathBuf| folder.join("hub");
    let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().find_map(variable);
    let found = named.or_else(|| variable("HF_HOME").map(hub)).or_else(|| Some(hub(home()?.join("huggingface"))));
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lookup_prefers_the_main_revision() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository = folder.path().join("models--a--b");
        for revision in ["1", "2"] {
            std::fs::create_dir_all(repository.join("snapshots").join(revision)).expect("a folder");
            std::fs::write(repository.join("snapshots").join(revision).join("f"), revision).expect("written");
        }
        let found = || in_cache(&repository, "f").map(|path| std::fs::read_to_string(path).expect("a file"));
        assert_eq!(found().as_deref(), Some("2"));
        std::fs::create_dir_all(repository.join("refs")).expect("a folder");
        std::fs::write(repository.join("refs").join("main"), "1\n").expect("written");
        assert_eq!(found().as_deref(), Some("1"));
        assert_eq!(in_cache(&repository, "g"), None);
    }

    #[test]
    fn a_tokenizer_is_a_file_or_its_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(TOKENIZER);
        std::fs::write(&file, "{}").expect("written");
        assert_eq!(tokenizer(&folder.path().display().to_string()), Some(file.clone()));
        assert_eq!(tokenizer(&file.display().to_string()), Some(file));
        for none in ["", "/nowhere", "./nowhere", "a/b/c"] {
            assert_eq!(tokenizer(none), None, "{none}");
        }
    }
}
