//! Secrets that a deployment file contains as plain text. Every user of a host can read the
//! rendered files, which contain them, too.

use std::collections::BTreeMap;

use crate::DeploymentSpec;

/// A secret in a deployment file. The value is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainSecret {
    /// The key that contains it, such as `model.env`.
    pub key: &'static str,
    /// The variable or flag.
    pub name: String,
    pub remedy: &'static str,
}

impl PlainSecret {
    /// What is wrong, in one sentence.
    pub fn finding(&self) -> String {
        format!("{}: {} is a secret in plain text, and every user can read the rendered files", self.key, self.name)
    }
}

/// The secrets in the variables and additional flags of `spec`.
pub fn plain_secrets(spec: &DeploymentSpec) -> Vec<PlainSecret> {
    let model = &spec.model;
    let serving = &spec.serving;
    let variables: [(&'static str, &BTreeMap<String, String>); 4] = [
        ("model.env", &model.env),
        ("serving.prefill.env", &serving.prefill.env),
        ("serving.decode.env", &serving.decode.env),
        ("serving.router.env", &serving.router.env),
    ];
    let flags: [(&'static str, &Vec<String>); 5] = [
        ("model.extra_args", &model.extra_args),
        ("serving.prefill.extra_args", &serving.prefill.extra_args),
        ("serving.decode.extra_args", &serving.decode.extra_args),
        ("serving.router.extra_args", &serving.router.extra_args),
        ("master.extra_flags", &spec.master.extra_flags),
    ];
    let mut found = Vec::new();
    for (key, env) in variables {
        let secrets = env.iter().filter(|(name, value)| is_secret_name(name) && is_secret_value(value));
        found.extend(secrets.map(|(name, _)| secret(key, name)));
    }
    for (key, arguments) in flags {
        for (at, argument) in arguments.iter().enumerate().filter(|(_, argument)| argument.starts_with("--")) {
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (argument.as_str(), arguments.get(at + 1).map(String::as_str)),
            };
            let is_given = value.is_some_and(|value| !value.starts_with("--") && is_secret_value(value));
            if is_given && is_secret_name(flag) {
                found.push(secret(key, flag));
            }
        }
    }
    found
}

/// Last parts of the names of variables and flags whose value is a secret.
const SECRET_PARTS: [&str; 6] = ["token", "key", "secret", "password", "passwd", "credentials"];

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_PARTS.contains(&name.rsplit(['_', '-']).next().unwrap_or_default())
}

/// Whether the value may be a secret itself: a path or a reference to another variable is not.
fn is_secret_value(value: &str) -> bool {
    !value.is_empty() && !value.starts_with(['/', '$'])
}

/// Variables with the token of the Hugging Face Hub.
const HUB_TOKENS: [&str; 3] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"];

fn secret(key: &'static str, name: &str) -> PlainSecret {
    let remedy = if HUB_TOKENS.contains(&name) {
        "remove it, and set model.token_file, or kubernetes.hf_token_secret in Kubernetes"
    } else if key == "master.extra_flags" {
        "remove it, and set access.token_file, or kubernetes.token_secret in Kubernetes"
    } else if name.starts_with('-') {
        "remove it, and set it in a file that only the user of the process can read, e.g. a YAML file for SGLang's --config"
    } else {
        "remove it, and set it in a file that only root can read: EnvironmentFile= in a drop-in of the unit, or a Secret in Kubernetes"
    };
    PlainSecret { key, name: name.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileFormat, parse};

    fn found(text: &str) -> Vec<(&'static str, String)> {
        let spec = parse(text, FileFormat::Toml, &[]).unwrap();
        plain_secrets(&spec).into_iter().map(|secret| (secret.key, secret.name)).collect()
    }

    #[test]
    fn secrets_in_variables_and_flags_are_found_by_their_names() {
        let text = "[model]\npath = 'm'\nextra_args = ['--api-key', 'abc', '--admin-api-key=abc', '--tokenizer-mode', 'auto']\n\
                    env = {HF_TOKEN = 'hf_1', MC_REDIS_PASSWORD = 'p', PLAIN = 'x'}\n[serving.router]\nextra_args = ['--api-key=a']\n\
                    env = {AWS_SECRET_ACCESS_KEY = 'k'}\n[serving.decode.env]\nX_SECRET = 's'\n[master]\nextra_flags = ['--x-token=t']\n";
        let all = found(text);
        let expected = [
            ("model.env", "HF_TOKEN"),
            ("model.env", "MC_REDIS_PASSWORD"),
            ("serving.decode.env", "X_SECRET"),
            ("serving.router.env", "AWS_SECRET_ACCESS_KEY"),
            ("model.extra_args", "--api-key"),
            ("model.extra_args", "--admin-api-key"),
            ("serving.router.extra_args", "--api-key"),
            ("master.extra_flags", "--x-token"),
        ];
        assert_eq!(all, expected.map(|(key, name)| (key, name.to_owned())));
    }

    #[test]
    fn paths_references_and_flags_without_a_value_are_not_secrets() {
        let text = "[model]\npath = 'm'\nextra_args = ['--use-key', '--other']\n\
                    env = {TLS_KEY = '/etc/tls.key', API_KEY = '$(KEY)', EMPTY_TOKEN = ''}\n";
        assert_eq!(found(text), []);
    }

    #[test]
    fn the_key_for_the_token_file_is_named_without_the_value() {
        let text = "[model]\npath = 'm'\nenv = {HF_TOKEN = 'hf_1'}\n";
        let all = plain_secrets(&parse(text, FileFormat::Toml, &[]).unwrap());
        assert!(all[0].remedy.contains("model.token_file") && all[0].remedy.contains("kubernetes.hf_token_secret"));
        assert!(!all[0].finding().contains("hf_1"), "{}", all[0].finding());
    }
}
