//! Files of processes: each writer spells what [`crate::engine::deploy::launches()`] decided and decides nothing itself.

mod compose;
mod docker;
mod env;
mod k8s;
mod pod;
mod rbg;
mod sglang;
mod systemd;
mod words;
mod yaml;

use std::collections::BTreeMap;

use crate::engine::base::ByteSize;
use crate::engine::base::text::Quoted;
use crate::engine::deploy::error::wrong;
use crate::engine::deploy::{DeployError, Deployment, Ground, Image, Launch, Programs, launches};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file of variables for each process.
    Env,
    /// A script with the command line of each serving process.
    Sglang,
    /// Units, and what they need of the host.
    Systemd,
    /// A script of `docker run` for each host.
    Docker,
    /// A Compose file for each host.
    Compose,
    /// Deployments, StatefulSets and Services.
    K8s,
    /// A RoleBasedGroup.
    Rbg,
}

impl Kind {
    /// All of them, by their words on the command line.
    pub const ALL: &[(&str, Kind)] = &[
        ("env", Kind::Env),
        ("sglang", Kind::Sglang),
        ("systemd", Kind::Systemd),
        ("docker", Kind::Docker),
        ("compose", Kind::Compose),
        ("k8s", Kind::K8s),
        ("rbg", Kind::Rbg),
    ];

    /// Where its processes run.
    pub fn ground(self) -> Ground {
        match self {
            Kind::Env | Kind::Sglang | Kind::Systemd | Kind::Docker | Kind::Compose => Ground::Hosts,
            Kind::K8s => Ground::Kubernetes,
            Kind::Rbg => Ground::Rbg,
        }
    }

    /// Do the processes run in containers?
    fn has_images(self) -> bool {
        matches!(self, Kind::Docker | Kind::Compose | Kind::K8s | Kind::Rbg)
    }
}

/// A file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path within the folder that they are written to.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What a writer is given.
pub(crate) struct Context<'a> {
    /// The file.
    pub wanted: &'a Deployment,
    /// Its processes, in the order in which they start.
    pub launches: Vec<Launch>,
    /// The lines, without a comment sign, that every file begins with.
    pub head: String,
}

/// The files of `kind` for `wanted`, which was read from the file `source`.
///
/// # Errors
/// The file contradicts itself, or lacks what this kind needs.
pub fn render(wanted: &Deployment, kind: Kind, source: &str) -> Result<Vec<File>, DeployError> {
    let all = launches(wanted, kind.ground())?;
    let word = Kind::ALL.iter().find(|(_, known)| *known == kind).map_or("", |(word, _)| word);
    let head = format!("Written by mcctl {} render {word} from {source}.", env!("CARGO_PKG_VERSION"));
    let context = Context { wanted, launches: all, head };
    if kind.has_images() {
        for launch in &context.launches {
            context.image(launch)?;
        }
    }
    match kind {
        Kind::Env => Ok(env::files(&context)),
        Kind::Sglang => Ok(sglang::files(&context)),
        Kind::Systemd => Ok(systemd::files(&context)),
        Kind::Docker => docker::files(&context),
        Kind::Compose => compose::files(&context),
        Kind::K8s => k8s::files(&context),
        Kind::Rbg => rbg::files(&context),
    }
}

impl Context<'_> {
    /// The image of `launch`, with a tag.
    ///
    /// # Errors
    /// It is not filled in, or has no tag.
    pub fn image(&self, launch: &Launch) -> Result<String, DeployError> {
        let images = &self.wanted.images;
        let (key, image) = match launch.image {
            Image::Sglang => ("images.sglang", &images.sglang),
            Image::Store if images.store.is_empty() => ("images.sglang", &images.sglang),
            Image::Store => ("images.store", &images.store),
            Image::Router => ("images.router", &images.router),
            Image::Mcctl => ("images.mcctl", &images.mcctl),
        };
        if image.is_empty() {
            let why = match self.wanted.programs {
                Programs::Mcctl if launch.image == Image::Mcctl => {
                    "programs = \"mcctl\" needs an image of mcctl, and there is no public one: write its name with a tag"
                }
                _ => "containers need an image: write its name with a tag",
            };
            return Err(wrong(key, why));
        }
        let last = image.rsplit('/').next().unwrap_or_default();
        let is_plain = image.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.:@".contains(c));
        if !is_plain || image.starts_with('-') || !last.contains([':', '@']) || last.ends_with([':', '@']) {
            return Err(wrong(key, format!("{} is not the name of an image with a tag or digest", Quoted(image))));
        }
        Ok(image.clone())
    }

    /// The processes by host, in the order in which they start.
    pub fn by_host(&self) -> BTreeMap<&str, Vec<&Launch>> {
        let mut hosts: BTreeMap<&str, Vec<&Launch>> = BTreeMap::new();
        for launch in &self.launches {
            hosts.entry(&launch.host).or_default().push(launch);
        }
        hosts
    }
}

/// What `launch` takes, for a comment.
fn takes(launch: &Launch) -> String {
    let resources = &launch.resources;
    let memory = match resources.memory {
        Some(bytes) => format!("about {} of memory", ByteSize(bytes)),
        None => "memory that depends on the size of its cache on the device".to_owned(),
    };
    match resources.hugepages {
        Some((page, count)) => format!("{memory}, and {count} huge pages of {}", ByteSize(page)),
        None => memory,
    }
}

/// The readiness probe as a command within the container; `None` for mcctl's image, which need not have Python.
fn asks(launch: &Launch) -> Option<Vec<String>> {
    use crate::engine::deploy::ProbeBy;
    if launch.image == Image::Mcctl {
        return None;
    }
    let python = |script: String| Some(vec!["python3".to_owned(), "-c".to_owned(), script]);
    match &launch.probes.readiness.by {
        ProbeBy::Http { port, path } => {
            let seconds = launch.probes.readiness.timeout_s;
            python(format!("import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout={seconds})"))
        }
        ProbeBy::Tcp { port } => python(format!("import socket; socket.create_connection(('127.0.0.1', {port}), 5)")),
        ProbeBy::Exec { argv } => Some(argv.clone()),
    }
}
