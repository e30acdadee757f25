//! A parser for gflags command lines, based on a [`FlagTable`]. It performs no I/O itself:
//! [`FlagSources`] reads files and the environment.
//!
//! Accepted forms: `-f v`, `-f=v`, `--f=v`, `--f v`, a boolean without a value, `--nof` and
//! `--no-f` for booleans. `-` and `_` are equivalent in names. Also `--flagfile`, `--fromenv`,
//! `--tryfromenv`, `--undefok`, `--help` with its variants, `--version`, and `-Dk=v` if the table
//! has a [`ValueKind::Define`]. Verified against `mooncake_master` 0.3.13.post1.
//!
//! Three things that gflags accepts are errors here: a stray word (gflags ignores it),
//! `--switch false` (gflags reads it as true), and a known flag in place of a value.

use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FlagSpec, FlagTable, ValueKind, parse_bool};
use crate::commands::cli::origin::ValueOrigin;
use crate::commands::cli::settings::Assignment;
use crate::commands::cli::unknown_key::UnknownKey;
use crate::commands::help::length::HelpLength;

/// Access to flag files and environment variables.
pub trait FlagSources {
    /// Reads a flag file.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read(&self, path: &Path) -> Result<String, Failure>;
    /// Returns the value of an environment variable.
    fn env(&self, name: &str) -> Option<String>;
}

/// No flag files and no environment variables.
#[cfg(test)]
pub struct NoSources;

#[cfg(test)]
impl FlagSources for NoSources {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        Err(Failure::usage(format!("cannot read {}", path.display())))
    }

    fn env(&self, _: &str) -> Option<String> {
        None
    }
}

/// A parsed command line.
#[derive(Debug, Default, PartialEq)]
pub struct ParsedFlags {
    pub assignments: Vec<Assignment>,
    /// `-D` keys that match no flag, in order.
    pub unknown_defines: Vec<UnknownKey>,
    /// Set by `--help` or one of its variants.
    pub help: Option<HelpLength>,
    pub version: bool,
}

/// Maximum nesting depth of flag files.
const FLAGFILE_DEPTH_MAX: usize = 8;

/// Parses `args`, without the program name, as flags of `table`.
///
/// # Errors
/// A flag is unknown, a flag's value is missing, a word is not a flag, or a flag file cannot be
/// read.
pub fn parse(table: &'static FlagTable, args: &[String], world: &impl FlagSources) -> Result<ParsedFlags, Failure> {
    let mut parser = FlagParser { table, world, out: ParsedFlags::default(), undefok: Vec::new(), unknown: Vec::new() };
    parser.command_line(args)?;
    // Unknown flags are checked at the end, because --undefok may follow them.
    let undefok = parser.undefok;
    let unknown = parser.unknown;
    match unknown.into_iter().find(|(name, _)| !undefok.contains(name)) {
        Some((_, failure)) if parser.out.help.is_none() => Err(failure),
        _ => Ok(parser.out),
    }
}

struct FlagParser<'a, W> {
    table: &'static FlagTable,
    world: &'a W,
    out: ParsedFlags,
    undefok: Vec<String>,
    unknown: Vec<(String, Failure)>,
}

/// A flag split into its name and the value after `=`, if any.
struct FlagToken<'a> {
    spelled: &'a str,
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> FlagToken<'a> {
    fn new(arg: &'a str) -> Option<FlagToken<'a>> {
        let body = arg.strip_prefix("--").or(arg.strip_prefix('-')).filter(|body| !body.is_empty())?;
        let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
        Some(FlagToken { spelled: &arg[..arg.len() - body.len() + name.len()], name, value })
    }
}

/// The meaning of a flag's name.
enum TokenKind {
    /// A flag in the table.
    Set(&'static FlagSpec),
    /// A boolean flag in the table, negated with `no`.
    Unset(&'static FlagSpec),
    Loader(FlagLoader),
    Help(HelpLength),
    Version,
    Unknown,
}

#[derive(Clone, Copy)]
enum FlagLoader {
    FlagFile,
    FromEnv,
    TryFromEnv,
    UndefOk,
}

impl<W: FlagSources> FlagParser<'_, W> {
    fn command_line(&mut self, args: &[String]) -> Result<(), Failure> {
        let mut args = args.iter().map(String::as_str).peekable();
        while let Some(arg) = args.next() {
            if arg == "--" {
                return match args.next() {
                    Some(word) => Err(self.stray(word)),
                    None => Ok(()),
                };
            }
            if let Some(define) = arg.strip_prefix("-D").filter(|_| self.definer().is_some()) {
                let pair = match define {
                    "" => args.next().ok_or_else(|| self.lacks_value("-D", "KEY=VALUE"))?,
                    glued => glued,
                };
                self.define(pair)?;
                continue;
            }
            let Some(token) = FlagToken::new(arg) else { return Err(self.stray(arg)) };
            let next = args.peek().copied();
            let origin = ValueOrigin::Flag(token.spelled.to_owned());
            if self.flag(&token, next, &origin, 0)? == WordCount::Two {
                args.next();
            }
        }
        Ok(())
    }

    fn kind_of(&self, name: &str) -> TokenKind {
        let plain = name.replace('-', "_");
        match plain.as_str() {
            "flagfile" => return TokenKind::Loader(FlagLoader::FlagFile),
            "fromenv" => return TokenKind::Loader(FlagLoader::FromEnv),
            "tryfromenv" => return TokenKind::Loader(FlagLoader::TryFromEnv),
            "undefok" => return TokenKind::Loader(FlagLoader::UndefOk),
            "h" | "helpshort" => return TokenKind::Help(HelpLength::Short),
            "help" | "helppackage" | "helpon" | "helpmatch" | "helpxml" => return TokenKind::Help(HelpLength::Long),
            "help_all" | "helpall" | "helpfull" => return TokenKind::Help(HelpLength::All),
            "version" => return TokenKind::Version,
            _ => {}
        }
        if let Some(flag) = self.table.find(&plain) {
            return TokenKind::Set(flag);
        }
        let positive = plain.strip_prefix("no_").and_then(|rest| self.table.find(rest));
        match positive.or_else(|| plain.strip_prefix("no").and_then(|rest| self.table.find(rest))) {
            Some(flag) if flag.kind == ValueKind::Bool => TokenKind::Unset(flag),
            _ => TokenKind::Unknown,
        }
    }

    /// Applies one flag. `next` is the following word, which may be its value.
    fn flag(
        &mut self,
        token: &FlagToken,
        next: Option<&str>,
        origin: &ValueOrigin,
        depth: usize,
    ) -> Result<WordCount, Failure> {
        match self.kind_of(token.name) {
            TokenKind::Set(flag) if flag.kind == ValueKind::Bool => self.switch(flag, token, next, origin),
            TokenKind::Set(flag) => {
                let (text, took) = self.value(token, next, &flag.kind.to_string())?;
                if flag.kind == ValueKind::Define {
                    self.define(text)?;
                } else {
                    self.set(flag, text, origin);
                }
                Ok(took)
            }
            TokenKind::Unset(flag) => match token.value {
                None => {
                    self.set(flag, "false", origin);
                    Ok(WordCount::One)
                }
                Some(value) => Err(Failure::usage(format!("{} does not accept a value", token.spelled))
                    .found(format!("'{}={value}'", token.spelled))
                    .next(format!("use {}=true or {}=false", flag.spelled(), flag.spelled()))),
            },
            TokenKind::Loader(loader) => {
                let (text, took) = self.value(token, next, "a file or a list of names")?;
                self.load(loader, text, token.spelled, depth)?;
                Ok(took)
            }
            TokenKind::Help(length) => {
                // The longer help takes precedence.
                self.out.help = self.out.help.max(Some(length));
                Ok(WordCount::One)
            }
            TokenKind::Version => {
                self.out.version = true;
                Ok(WordCount::One)
            }
            TokenKind::Unknown => {
                let failure = self.unknown(token, origin);
                self.unknown.push((token.name.replace('-', "_"), failure));
                // The next word may be the unknown flag's value, unless the flag contains a value
                // after `=`.
                let has_value = token.value.is_none() && next.is_some_and(|word| !word.starts_with('-'));
                Ok(if has_value { WordCount::Two } else { WordCount::One })
            }
        }
    }

    fn switch(
        &mut self,
        flag: &'static FlagSpec,
        token: &FlagToken,
        next: Option<&str>,
        origin: &ValueOrigin,
    ) -> Result<WordCount, Failure> {
        if let Some(text) = token.value {
            self.set(flag, text, origin);
            return Ok(WordCount::One);
        }
        match next.and_then(parse_bool) {
            Some(false) => {
                Err(Failure::usage(format!("{} is a switch: the next word is not its value", token.spelled))
                    .found(format!(
                        "'{} {}', which mooncake_master reads as true",
                        token.spelled,
                        next.unwrap_or_default()
                    ))
                    .next(format!("use {}=false", flag.spelled())))
            }
            word => {
                self.set(flag, "true", origin);
                Ok(if word.is_some() { WordCount::Two } else { WordCount::One })
            }
        }
    }

    /// The value for a flag that requires one.
    fn value<'t>(
        &self,
        token: &FlagToken<'t>,
        next: Option<&'t str>,
        expected: &str,
    ) -> Result<(&'t str, WordCount), Failure> {
        if let Some(text) = token.value {
            return Ok((text, WordCount::One));
        }
        let is_flag = |word: &str| {
            word == "--"
                || FlagToken::new(word)
                    .is_some_and(|t| word.starts_with("--") && !matches!(self.kind_of(t.name), TokenKind::Unknown))
        };
        match next {
            Some(word) if !is_flag(word) => Ok((word, WordCount::Two)),
            _ => Err(self.lacks_value(token.spelled, expected)),
        }
    }

    fn set(&mut self, flag: &'static FlagSpec, text: &str, origin: &ValueOrigin) {
        self.out.assignments.push(Assignment { flag, text: text.to_owned(), origin: origin.clone() });
    }

    fn load(&mut self, loader: FlagLoader, text: &str, spelled: &str, depth: usize) -> Result<(), Failure> {
        let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
        match loader {
            FlagLoader::FlagFile => names().try_for_each(|path| self.flag_file(Path::new(path), depth)),
            FlagLoader::UndefOk => {
                self.undefok.extend(names().map(|name| name.replace('-', "_")));
                Ok(())
            }
            FlagLoader::FromEnv => names().try_for_each(|name| self.take_env(name, true, spelled)),
            FlagLoader::TryFromEnv => names().try_for_each(|name| self.take_env(name, false, spelled)),
        }
    }

    fn take_env(&mut self, name: &str, must: bool, spelled: &str) -> Result<(), Failure> {
        let Some(flag) = self.table.find(name) else {
            let mut failure = Failure::usage(format!("{spelled} names an unknown flag '{name}'"));
            failure.next = self.table.nearest(name).map(|near| format!("did you mean {near}?"));
            return Err(failure);
        };
        let variable = format!("FLAGS_{}", name.replace('-', "_"));
        match self.world.env(&variable) {
            Some(text) => {
                self.set(flag, &text, &ValueOrigin::Env(variable));
                Ok(())
            }
            None if must => Err(Failure::usage(format!("{spelled}={name} needs the environment variable {variable}"))
                .found(format!("{variable} is not set"))
                .next(format!("export {variable}, or use --tryfromenv={name}"))),
            None => Ok(()),
        }
    }

    /// Reads a file with one flag per line, `#` comments and blank lines.
    fn flag_file(&mut self, path: &Path, depth: usize) -> Result<(), Failure> {
        if depth == FLAGFILE_DEPTH_MAX {
            return Err(Failure::usage(format!("{}: --flagfile is nested too deeply", path.display()))
                .found(format!("{FLAGFILE_DEPTH_MAX} files, each including the next"))
                .next("check whether a file includes itself"));
        }
        let text = self.world.read(path)?;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let location = format!("{}:{}", path.display(), index + 1);
            let Some(token) = FlagToken::new(line) else {
                return Err(Failure::usage(format!("{location}: expected --name=value"))
                    .found(format!("'{line}'"))
                    .next("use one flag per line; per-program sections are not supported"));
            };
            let origin = ValueOrigin::FlagFile { path: PathBuf::from(path), line: index + 1 };
            self.flag(&token, None, &origin, depth + 1)?;
        }
        Ok(())
    }

    fn definer(&self) -> Option<&'static FlagSpec> {
        self.table.flags().find(|flag| flag.kind == ValueKind::Define)
    }

    /// Applies `-D key=value`. It has the same meaning as that key in a configuration file, and
    /// overrides the file.
    fn define(&mut self, pair: &str) -> Result<(), Failure> {
        let Some((key, text)) = pair.split_once('=') else {
            return Err(self.lacks_value(&format!("-D {pair}"), "KEY=VALUE"));
        };
        let Some(flag) = self.table.find_key(key) else {
            self.out.unknown_defines.push(UnknownKey::new(self.table, "-D", key));
            return Ok(());
        };
        self.set(flag, text, &ValueOrigin::Flag(format!("-D {key}")));
        Ok(())
    }

    fn unknown(&self, token: &FlagToken, origin: &ValueOrigin) -> Failure {
        let location = match origin {
            ValueOrigin::FlagFile { .. } => format!("{origin}: "),
            _ => String::new(),
        };
        let help = format!("mcctl {} --help lists all flags", self.table.command);
        let next = match self.table.nearest(token.name) {
            Some(near) => format!("did you mean {near}? {help}"),
            None => help,
        };
        Failure::usage(format!("{location}unknown flag {} for mcctl {}", token.spelled, self.table.command)).next(next)
    }

    fn stray(&self, word: &str) -> Failure {
        let failure = Failure::usage(format!("'{word}' is not a valid flag for mcctl {}", self.table.command));
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        match self.table.find(name) {
            Some(_) => failure.next(format!("use --{word}")),
            None => failure.next("a flag starts with - or --, and its value follows it"),
        }
    }

    fn lacks_value(&self, spelled: &str, expected: &str) -> Failure {
        Failure::usage(format!("{spelled} needs a value: {expected}"))
            .next(format!("see mcctl {} --help", self.table.command))
    }
}

/// The number of words that a flag and its value occupy.
#[derive(Clone, Copy, PartialEq)]
enum WordCount {
    One,
    Two,
}

#[cfg(test)]
mod tests;
