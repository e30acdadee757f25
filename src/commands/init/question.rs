//! Interactive questions. A question is repeated until the answer is valid.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::commands::cli::error::Failure;
use crate::engine::deploy::{DeploySize, DeploySizeError, is_host};

/// Whether stdin and stderr are terminals, so that a user can answer.
pub(super) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Why an answer is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("a value is required")]
    Required,
    #[error("'{0}' is not a whole number greater than 0")]
    NotANumber(String),
    #[error("'{text}' is not one of {allowed}")]
    NotOneOf { text: String, allowed: String },
    #[error("'{0}' is not a valid host name or address")]
    NotAHost(String),
    #[error("'{0}' must not begin with '-'")]
    LooksLikeAFlag(String),
    #[error("the file name must end in .toml, .yaml or .yml")]
    NotADeploymentFile,
    #[error("a file in the {0} format must end in .{0}")]
    OtherFormat(String),
    #[error("a distributed server needs at least {0} hosts")]
    TooFewHosts(usize),
    #[error("{hosts} hosts cannot be divided into servers of {nnodes} hosts each")]
    NotADivisor { hosts: usize, nnodes: u64 },
    #[error("{0} already exists")]
    Exists(String),
    #[error("{0}")]
    NotASize(#[from] DeploySizeError),
}

/// Asks questions on `output` and reads answers from `input`.
#[derive(Debug)]
pub(super) struct Prompter<R, W> {
    pub input: R,
    pub output: W,
}

impl<R: BufRead, W: Write> Prompter<R, W> {
    /// Asks until `parse` accepts the answer. An empty answer means `default`.
    ///
    /// # Errors
    /// The input has ended or cannot be read.
    pub(super) fn ask<T>(
        &mut self,
        question: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, AnswerError>,
    ) -> Result<T, Failure> {
        let suffix = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        loop {
            // If the output is closed, the input is closed too, which ends the loop.
            let _ = write!(self.output, "{question}{suffix}: ").and_then(|()| self.output.flush());
            let mut line = String::new();
            let length = self
                .input
                .read_line(&mut line)
                .map_err(|error| Failure::host("cannot read an answer from stdin").found(error.to_string()))?;
            if length == 0 {
                return Err(Failure::usage("stdin closed before all questions were answered")
                    .next("pass the values as flags; mcctl init --help lists them"));
            }
            let answer = Some(line.trim()).filter(|answer| !answer.is_empty()).unwrap_or(default);
            match parse(answer) {
                Ok(value) => return Ok(value),
                Err(error) => {
                    let _ = writeln!(self.output, "  {error}");
                }
            }
        }
    }
}

/// Accepts a non-empty string that does not look like a flag.
pub(super) fn required(text: &str) -> Result<String, AnswerError> {
    match text {
        "" => Err(AnswerError::Required),
        text if text.starts_with('-') => Err(AnswerError::LooksLikeAFlag(text.to_owned())),
        text => Ok(text.to_owned()),
    }
}

/// Accepts any string. `-` means an empty one.
pub(super) fn optional(text: &str) -> Result<String, AnswerError> {
    Ok(if text == "-" { String::new() } else { text.to_owned() })
}

/// Accepts a size, as written.
pub(super) fn size_text(text: &str) -> Result<String, AnswerError> {
    text.parse::<DeploySize>()?;
    Ok(text.to_owned())
}

/// Accepts a size, as written. `-` means an empty string.
pub(super) fn size_or_none(text: &str) -> Result<String, AnswerError> {
    if text == "-" { Ok(String::new()) } else { size_text(text) }
}

/// Accepts a whole number greater than 0.
pub(super) fn count(text: &str) -> Result<u64, AnswerError> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| AnswerError::NotANumber(text.to_owned()))
}

/// Accepts one of `allowed`.
pub(super) fn one_of(allowed: &'static [&'static str]) -> impl Fn(&str) -> Result<String, AnswerError> {
    move |text| match allowed.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(AnswerError::NotOneOf { text: text.to_owned(), allowed: allowed.join(", ") }),
    }
}

fn items(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// Accepts a comma-separated list of at least one item.
pub(super) fn list(text: &str) -> Result<Vec<String>, AnswerError> {
    let items = items(text);
    if items.is_empty() { Err(AnswerError::Required) } else { Ok(items) }
}

/// Accepts a comma-separated list of hosts, which may be empty. `-` means an empty one.
pub(super) fn hosts_or_none(text: &str) -> Result<Vec<String>, AnswerError> {
    if text == "-" {
        return Ok(Vec::new());
    }
    let hosts = items(text);
    match hosts.iter().find(|host| !is_host(host)) {
        Some(host) => Err(AnswerError::NotAHost(host.clone())),
        None => Ok(hosts),
    }
}

/// Accepts a comma-separated list of at least one host.
pub(super) fn hosts(text: &str) -> Result<Vec<String>, AnswerError> {
    let hosts = hosts_or_none(text)?;
    if hosts.is_empty() { Err(AnswerError::Required) } else { Ok(hosts) }
}

/// Accepts a comma-separated list of at least `least` hosts.
pub(super) fn hosts_at_least(least: usize) -> impl Fn(&str) -> Result<Vec<String>, AnswerError> {
    move |text| match hosts(text)? {
        hosts if hosts.len() < least => Err(AnswerError::TooFewHosts(least)),
        hosts => Ok(hosts),
    }
}

/// Accepts the number of hosts of each distributed server: at least 2, and a divisor of `hosts`.
pub(super) fn hosts_per_server(hosts: usize) -> impl Fn(&str) -> Result<u32, AnswerError> {
    move |text| match count(text)? {
        1 => Err(AnswerError::TooFewHosts(2)),
        nnodes => match u32::try_from(nnodes) {
            Ok(divisor) if hosts.is_multiple_of(divisor as usize) => Ok(divisor),
            _ => Err(AnswerError::NotADivisor { hosts, nnodes }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompter(answers: &'static str) -> Prompter<&'static [u8], Vec<u8>> {
        Prompter { input: answers.as_bytes(), output: Vec::new() }
    }

    #[test]
    fn an_invalid_answer_is_asked_for_again() {
        let mut prompter = prompter("two\n0\n 2 \n");
        assert_eq!(prompter.ask("Size", "1", count), Ok(2));
        let text = String::from_utf8(prompter.output).unwrap();
        assert_eq!(text.matches("Size [1]: ").count(), 3);
    }

    #[test]
    fn an_empty_answer_is_the_default() {
        assert_eq!(prompter("\n").ask("Mode", "single", one_of(&["single", "pd"])), Ok("single".to_owned()));
        assert_eq!(prompter("\nm\n").ask("Model", "", required), Ok("m".to_owned()));
        assert_eq!(prompter("a, b\n").ask("Hosts", "", hosts), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_closed_input_is_a_usage_error() {
        let error = prompter("x\n").ask("Size", "1", count).unwrap_err();
        assert_eq!(error.exit, crate::commands::cli::error::Exit::Usage);
    }

    #[test]
    fn answers_are_validated() {
        assert!(matches!(one_of(&["a"])("b"), Err(AnswerError::NotOneOf { .. })));
        assert!(matches!(hosts("a b"), Err(AnswerError::NotAHost(_))));
        assert_eq!(hosts(" , "), Err(AnswerError::Required));
        assert_eq!(hosts_or_none(""), Ok(Vec::new()));
        assert!(matches!(required("--help"), Err(AnswerError::LooksLikeAFlag(_))));
    }
}
