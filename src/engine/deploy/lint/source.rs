//! Sources that lint reads: their types, and why one cannot be read.

/// The type of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Kubernetes documents in YAML, or one in JSON.
    Kubernetes,
    Compose,
    Unit,
    /// `NAME=value` lines.
    Env,
    /// Shell: a script or command lines.
    Shell,
    /// Settings of the store service (JSON).
    StoreConfig,
    /// SGLang's extra config for its storage backend, or its Mooncake settings file.
    ExtraConfig,
    /// A settings file for the master's `--config_path` (YAML or JSON).
    MasterConfig,
    /// A file for vLLM's `MOONCAKE_CONFIG_PATH` (JSON).
    VllmConfig,
    LmcacheConfig,
    /// mcctl's own deployment file (TOML or YAML).
    Deployment,
}

impl FileKind {
    /// All types and their names on the command line.
    pub const ALL: [(FileKind, &'static str); 11] = [
        (FileKind::Kubernetes, "kubernetes"),
        (FileKind::Compose, "compose"),
        (FileKind::Unit, "unit"),
        (FileKind::Env, "env"),
        (FileKind::Shell, "shell"),
        (FileKind::StoreConfig, "store-config"),
        (FileKind::ExtraConfig, "extra-config"),
        (FileKind::MasterConfig, "master-config"),
        (FileKind::VllmConfig, "vllm-config"),
        (FileKind::LmcacheConfig, "lmcache-config"),
        (FileKind::Deployment, "deployment"),
    ];

    /// All names, separated by commas.
    pub fn names() -> String {
        FileKind::ALL.map(|(_, name)| name).join(", ")
    }

    /// The type with this name on the command line.
    pub fn named(word: &str) -> Option<FileKind> {
        FileKind::ALL.iter().find(|(_, name)| *name == word).map(|(kind, _)| *kind)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        FileKind::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// A source to read.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile<'a> {
    /// File name as passed by the user.
    pub name: &'a str,
    pub bytes: &'a [u8],
    /// The type, if the user specified it.
    pub kind: Option<FileKind>,
}

/// Why a source cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the file is empty")]
    Empty,
    #[error("not a text file: byte {at} is NUL or invalid UTF-8")]
    Binary {
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// The size is unknown, because a command reads only one byte more than the limit.
    #[error("too large: more than {most} bytes")]
    TooLarge { most: usize },
    /// The input is larger than any real deployment.
    #[error("more than {most} {what}")]
    TooMany {
        /// What is counted, as a plural.
        what: &'static str,
        most: usize,
    },
    /// Nested too deeply, or too large after expansion.
    #[error("nested too deeply")]
    TooDeep { line: u32 },
    #[error("invalid YAML: {reason}")]
    Yaml { line: u32, reason: String },
    #[error("invalid JSON: {reason}")]
    Json { line: u32, reason: String },
    /// The text becomes YAML or JSON when another program has filled it in.
    #[error("template; check its rendered output (helm template, kustomize build)")]
    Template,
    /// A recognized file that starts no process. Not an error.
    #[error("nothing to check: {what}")]
    NothingToCheck { what: &'static str },
    /// The text matches none of [`FileKind::ALL`].
    #[error("unrecognized file type; supported types: {}", FileKind::names())]
    Unknown,
}

impl ReadError {
    /// The line of the error, if it has one.
    pub fn line(&self) -> Option<u32> {
        match self {
            ReadError::TooDeep { line } | ReadError::Yaml { line, .. } | ReadError::Json { line, .. } => Some(*line),
            _ => None,
        }
    }
}
