//! Renders a Kustomize base: the manifests of `k8s`, one file per workload, and the file that lists
//! them.

use std::collections::BTreeMap;

use serde_yaml_ng::Value;

use crate::DeployError;
use crate::render::yaml::{self, map};
use crate::render::{RenderContext, RenderedFile, k8s};

/// The file that Kustomize reads first.
const KUSTOMIZATION: &str = "kustomization.yaml";

/// Renders the kustomization and its resources. It sets no labels, names or namespace: selectors
/// and command lines depend on them.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let groups = k8s::grouped_documents(context)?;
    let names: Vec<String> = groups.iter().map(|(name, _)| format!("{name}.yaml")).collect();
    let document = map! {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names.clone(),
        "images": images(context)?,
    };
    let head = format!("{}\n# kubectl apply -k .", context.head);
    let mut files =
        vec![RenderedFile { name: KUSTOMIZATION.to_owned(), text: yaml::file(&head, &[(String::new(), document)]) }];
    let resources = groups.into_iter().zip(names);
    files.extend(
        resources.map(|((_, documents), name)| RenderedFile { name, text: yaml::file(&context.head, &documents) }),
    );
    Ok(files)
}

/// The parts of an image name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ImageVersion {
    tag: Option<String>,
    digest: Option<String>,
}

/// Splits `NAME[:TAG][@DIGEST]`. A colon before the last slash belongs to a port.
fn split(image: &str) -> (String, ImageVersion) {
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest.to_owned())));
    let base = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[base..].split_once(':') {
        Some((last, tag)) => (&rest[..base + last.len()], Some(tag.to_owned())),
        None => (rest, None),
    };
    (name.to_owned(), ImageVersion { tag, digest })
}

/// An entry per image, so that overlays and `kustomize edit set image` can change it. Kustomize
/// selects images by name, so a name that occurs with two versions has no entry.
fn images(context: &RenderContext<'_>) -> Result<Vec<Value>, DeployError> {
    let mut found: BTreeMap<String, Vec<ImageVersion>> = BTreeMap::new();
    for plan in &context.plans {
        let (name, version) = split(&context.image(plan)?);
        let versions = found.entry(name).or_default();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let entry = |(name, versions): (String, Vec<ImageVersion>)| match versions.as_slice() {
        [version] => Some(map! { "name": name, "newTag": version.tag.clone(), "digest": version.digest.clone() }),
        _ => None,
    };
    Ok(found.into_iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_image_ends_before_its_tag_or_digest() {
        let parts = |image: &str| {
            let (name, version) = split(image);
            [name, version.tag.unwrap_or_default(), version.digest.unwrap_or_default()].join("|")
        };
        assert_eq!(parts("mcctl:1"), "mcctl|1|");
        assert_eq!(parts("registry.example:5000/kv/mcctl:1.2"), "registry.example:5000/kv/mcctl|1.2|");
        assert_eq!(parts("registry.example:5000/mcctl@sha256:ab"), "registry.example:5000/mcctl||sha256:ab");
        assert_eq!(parts("kv/mcctl:1@sha256:ab"), "kv/mcctl|1|sha256:ab");
    }
}
