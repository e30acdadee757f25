//! Help texts, as the user reads them. `INSTA_UPDATE=always cargo test --test it cli::help` accepts changed ones.

use super::mcctl;

fn check(name: &str, args: &[&str]) {
    let run = mcctl(args);
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, run.succeeds());
    });
}

#[test]
fn the_program_lists_its_commands_and_exit_codes() {
    check("help", &["--help"]);
}

#[test]
fn serve_master_lists_every_flag_of_the_original_with_default_and_marks() {
    check("help_serve_master", &["serve", "master", "--help"]);
}

#[test]
fn serve_metadata_lists_its_flags() {
    check("help_serve_metadata", &["serve", "metadata", "--help"]);
}

#[test]
fn serve_store_lists_its_flags_with_their_variables() {
    check("help_serve_store", &["serve", "store", "--help"]);
}

#[test]
fn the_version_names_the_release_that_is_spoken() {
    assert!(mcctl(&["--version"]).succeeds().starts_with("mcctl 0."));
    assert_eq!(mcctl(&["--version"]).stdout, mcctl(&["serve", "master", "--version"]).stdout);
}
