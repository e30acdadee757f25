//! The settings of a store node, from flags, a configuration file or environment variables.

use std::path::Path;

use crate::commands::cli::config_file;
use crate::commands::cli::config_file::{CONFIG_BYTES_MAX, ConfigFile, Typing};
use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FileKey, ValueKind};
use crate::commands::cli::gflags::ParsedFlags;
use crate::commands::cli::origin::ValueOrigin;
use crate::commands::cli::service_flags::store_flags;
use crate::commands::cli::settings::{Assignment, Settings, read_text};
use crate::commands::cli::unknown_key;
use crate::commands::serve::settings_of;

/// The settings and their warnings. Flags and -D override the file or, without a file, the
/// environment. Like upstream, a file and the environment are never combined. Warnings name unknown
/// keys and the variables that are ignored because of a file.
pub(super) fn settings(
    parsed: &ParsedFlags,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<(Settings, Vec<String>), Failure> {
    let flags = settings_of(&store_flags::TABLE, parsed)?;
    let file = match flags.text("config") {
        "" => env("MOONCAKE_CONFIG_PATH").filter(|path| !path.is_empty()).map(|path| (path, "MOONCAKE_CONFIG_PATH")),
        path => Some((path.to_owned(), "--config")),
    };
    let variables = from_env(env);
    let mut settings = Settings::new(&store_flags::TABLE);
    let mut unknown = Vec::new();
    let mut warnings = Vec::new();
    match file {
        Some((path, origin)) => {
            let file = from_file(Path::new(&path), origin)?;
            settings.assign_all(&file.assignments)?;
            unknown.extend(file.unknown);
            if !variables.is_empty() {
                let names: Vec<_> = variables.iter().filter_map(|given| given.flag.env).collect();
                warnings.push(format!(
                    "{} ignored, because {origin} specifies a configuration file ({path})",
                    names.join(", ")
                ));
            }
        }
        None => settings.assign_all(&variables)?,
    }
    settings.assign_all(&parsed.assignments)?;
    unknown.extend(parsed.unknown_defines.iter().cloned());
    warnings.extend(unknown_key::settle(&unknown, flags.bool("strict_config"))?);
    Ok((settings, warnings))
}

fn from_env(env: &impl Fn(&str) -> Option<String>) -> Vec<Assignment> {
    let is_store = |flag: &&crate::commands::cli::flags::FlagSpec| {
        !matches!(flag.key, FileKey::None(_)) && flag.kind != ValueKind::Define
    };
    let given = |flag: &'static crate::commands::cli::flags::FlagSpec| {
        let name = flag.env?;
        // An empty variable is treated as unset: upstream's manifests set MOONCAKE_DEVICE="".
        let text = env(name).filter(|text| !text.is_empty())?;
        Some(Assignment { flag, text, origin: ValueOrigin::Env(name.to_owned()) })
    };
    store_flags::TABLE.flags().filter(is_store).filter_map(given).collect()
}

/// Reads a configuration file. Like upstream's store service, it reads a file with an unknown
/// extension as JSON.
fn from_file(path: &Path, origin: &str) -> Result<ConfigFile, Failure> {
    let text = read_text(path, origin, CONFIG_BYTES_MAX)?;
    let known = path.extension().and_then(|ending| ending.to_str());
    let ending = known.filter(|ending| ["yaml", "yml", "json"].contains(ending)).unwrap_or("json");
    config_file::parse_as(&store_flags::TABLE, path, ending, &text, Typing::Loose)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::gflags;

    struct FileSources;

    impl gflags::FlagSources for FileSources {
        fn read(&self, path: &Path) -> Result<String, Failure> {
            read_text(path, "--flagfile", 1 << 10)
        }

        fn env(&self, _: &str) -> Option<String> {
            None
        }
    }

    /// The settings for command line arguments and environment variables.
    pub(in crate::commands::serve::store) fn settle(
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<(Settings, Vec<String>), Failure> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let parsed = gflags::parse(&store_flags::TABLE, &args, &FileSources)?;
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        settings(&parsed, &lookup)
    }

    #[test]
    fn flags_override_the_environment() {
        let env = [("MOONCAKE_MASTER", "m:1"), ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "16Gi"), ("MOONCAKE_DEVICE", "")];
        let (settings, ignored) = settle(&["--master", "n:2"], &env).expect("well formed");
        assert_eq!(settings.describe("master_server_address"), "--master-server-address n:2 (command line)");
        assert_eq!(
            settings.describe("global_segment_size"),
            "--global-segment-size 16 GiB (environment variable MOONCAKE_GLOBAL_SEGMENT_SIZE)"
        );
        assert_eq!(ignored, [""; 0]);
    }

    #[test]
    fn a_file_replaces_the_environment_with_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("store.conf");
        std::fs::write(&path, r#"{"local_hostname": "h", "global_segment_size": "1gb"}"#).expect("written");
        let path = path.to_str().expect("text");
        for (args, env) in [
            (vec!["--config", path], vec![("MOONCAKE_MASTER", "m:1")]),
            (vec![], vec![("MOONCAKE_CONFIG_PATH", path), ("MOONCAKE_MASTER", "m:1")]),
        ] {
            let (settings, ignored) = settle(&args, &env).expect("well formed");
            assert_eq!((settings.text("local_hostname"), settings.text("master_server_address")), ("h", ""));
            assert!(ignored[0].starts_with("MOONCAKE_MASTER ignored"), "{ignored:?}");
        }
    }

    #[test]
    fn an_error_names_the_file_as_given() {
        let error = settle(&["--config", "/dev/null"], &[]).expect_err("an empty file");
        assert!(error.what.starts_with("/dev/null "), "{error}");
    }

    #[test]
    fn unknown_keys_are_warnings_or_with_strict_config_errors() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("store.json");
        std::fs::write(&path, r#"{"segment_siez": "1gb", "global_segment_size": "2gb"}"#).expect("written");
        let path = path.to_str().expect("text");
        let (settings, warnings) = settle(&["--config", path, "-Dnope=1"], &[]).expect("only warnings");
        assert_eq!(settings.size("global_segment_size").0, 2 << 30);
        assert!(warnings[0].contains("'segment_siez'") && warnings[1].contains("'nope'"), "{warnings:?}");
        for args in [["--strict-config", "--config", path], ["--strict-config", "-Dnope=1", "-Dprotocol=tcp"]] {
            let error = settle(&args, &[]).expect_err("strict");
            assert_eq!(error.exit, Exit::Usage, "{error}");
        }
    }

    #[test]
    fn a_define_and_a_flag_are_applied_in_order() {
        let (settings, _) = settle(&["-Dglobal_segment_size=32mb", "--segment-size=1gb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 1 << 30);
        let (settings, _) = settle(&["--segment-size=1gb", "-Dglobal_segment_size=32mb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 32 << 20);
    }

    #[test]
    fn an_ill_typed_variable_is_named() {
        let error = settle(&[], &[("MOONCAKE_GLOBAL_SEGMENT_SIZE", "lots")]).expect_err("no size");
        assert!(error.exit == Exit::Usage && error.what.starts_with("MOONCAKE_GLOBAL_SEGMENT_SIZE is 'lots'"));
    }
}
