//! The command line as gflags reads it, over a [`Table`] of flags. Pure: files and environment come in through [`World`].
//!
//! Forms: `-f v`, `-f=v`, `--f=v`, `--f v`, a boolean alone, `--nof` and `--no-f` for booleans, `-` and `_` alike in names;
//! `--flagfile`, `--fromenv`, `--tryfromenv`, `--undefok`, `--help` (with its relatives) and `--version`; `-Dk=v` where the table
//! has a [`Kind::Define`]. Checked against `mooncake_master` 0.3.13.post1. Three traps of the original are errors here: a stray
//! word (the original ignores it), `--switch false` (the original reads it as true), and a value that is another known flag.

use std::path::{Path, PathBuf};

use crate::commands::error::Failure;
use crate::commands::flags::{Flag, Kind, Table, parse_bool};
use crate::commands::settings::{Assignment, Origin};
use crate::commands::unknown_key::UnknownKey;

/// What the parser may ask the world for.
pub trait World {
    /// The text of a flag file.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, path: &Path) -> Result<String, Failure>;
    /// The value of an environment variable.
    fn env(&self, name: &str) -> Option<String>;
}

/// What a command line says.
#[derive(Debug, Default, PartialEq)]
pub struct Parsed {
    /// Values, in order.
    pub assignments: Vec<Assignment>,
    /// Keys of `-D` that no flag has, in order.
    pub unknown_defines: Vec<UnknownKey>,
    /// `--help` or one of its relatives is among the flags.
    pub help: bool,
    /// `--version` is among the flags.
    pub version: bool,
}

/// Flag files may name flag files, this deep.
const FLAGFILE_DEPTH_MAX: usize = 8;

/// Read `args` (without the program's name) as flags of `table`.
///
/// # Errors
/// A flag is unknown or lacks its value, or a word is not a flag.
pub fn parse(table: &'static Table, args: &[String], world: &impl World) -> Result<Parsed, Failure> {
    let mut parser = Parser { table, world, out: Parsed::default(), undefok: Vec::new(), unknown: Vec::new() };
    parser.command_line(args)?;
    // Which unknown flags are fine is known only now: --undefok may stand after them.
    let (undefok, unknown) = (parser.undefok, parser.unknown);
    match unknown.into_iter().find(|(name, _)| !undefok.contains(name)) {
        Some((_, failure)) if !parser.out.help => Err(failure),
        _ => Ok(parser.out),
    }
}

struct Parser<'a, W> {
    table: &'static Table,
    world: &'a W,
    out: Parsed,
    undefok: Vec<String>,
    unknown: Vec<(String, Failure)>,
}

/// A flag taken apart: its name and, after `=`, its value.
struct Token<'a> {
    spelled: &'a str,
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Token<'a> {
    fn new(arg: &'a str) -> Option<Token<'a>> {
        let body = arg.strip_prefix("--").or(arg.strip_prefix('-')).filter(|body| !body.is_empty())?;
        let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
        Some(Token { spelled: &arg[..arg.len() - body.len() + name.len()], name, value })
    }
}

/// What a name means.
enum Meaning {
    Set(&'static Flag),
    Unset(&'static Flag),
    Loader(Loader),
    Ask(fn(&mut Parsed)),
    Unknown,
}

#[derive(Clone, Copy)]
enum Loader {
    FlagFile,
    FromEnv,
    TryFromEnv,
    UndefOk,
}

impl<W: World> Parser<'_, W> {
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
            let Some(token) = Token::new(arg) else { return Err(self.stray(arg)) };
            let next = args.peek().copied();
            let origin = Origin::Flag(token.spelled.to_owned());
            if self.flag(&token, next, &origin, 0)? == Took::Next {
                args.next();
            }
        }
        Ok(())
    }

    fn meaning(&self, name: &str) -> Meaning {
        let plain = name.replace('-', "_");
        match plain.as_str() {
            "flagfile" => return Meaning::Loader(Loader::FlagFile),
            "fromenv" => return Meaning::Loader(Loader::FromEnv),
            "tryfromenv" => return Meaning::Loader(Loader::TryFromEnv),
            "undefok" => return Meaning::Loader(Loader::UndefOk),
            "help" | "h" | "helpfull" | "helpshort" | "helppackage" | "helpon" | "helpmatch" | "helpxml" => {
                return Meaning::Ask(|out| out.help = true);
            }
            "version" => return Meaning::Ask(|out| out.version = true),
            _ => {}
        }
        if let Some(flag) = self.table.find(&plain) {
            return Meaning::Set(flag);
        }
        let positive = plain.strip_prefix("no_").and_then(|rest| self.table.find(rest));
        match positive.or_else(|| plain.strip_prefix("no").and_then(|rest| self.table.find(rest))) {
            Some(flag) if flag.kind == Kind::Bool => Meaning::Unset(flag),
            _ => Meaning::Unknown,
        }
    }

    /// One flag; `next` is the word after it, which may be its value.
    fn flag(&mut self, token: &Token, next: Option<&str>, origin: &Origin, depth: usize) -> Result<Took, Failure> {
        match self.meaning(token.name) {
            Meaning::Set(flag) if flag.kind == Kind::Bool => self.switch(flag, token, next, origin),
            Meaning::Set(flag) => {
                let (text, took) = self.value(token, next, &flag.kind.to_string())?;
                if flag.kind == Kind::Define {
                    self.define(text)?;
                } else {
                    self.set(flag, text, origin);
                }
                Ok(took)
            }
            Meaning::Unset(flag) => match token.value {
                None => {
                    self.set(flag, "false", origin);
                    Ok(Took::Itself)
                }
                Some(value) => Err(Failure::usage(format!("{} takes no value", token.spelled))
                    .found(format!("'{}={value}'", token.spelled))
                    .next(format!("write {}=true or {}=false", flag.spelled(), flag.spelled()))),
            },
            Meaning::Loader(loader) => {
                let (text, took) = self.value(token, next, "a file or a list of names")?;
                self.load(loader, text, token.spelled, depth)?;
                Ok(took)
            }
            Meaning::Ask(ask) => {
                ask(&mut self.out);
                Ok(Took::Itself)
            }
            Meaning::Unknown => {
                let failure = self.unknown(token, origin);
                self.unknown.push((token.name.replace('-', "_"), failure));
                // Whether the next word is its value cannot be known; with a value of its own it is not.
                let takes = token.value.is_none() && next.is_some_and(|word| !word.starts_with('-'));
                Ok(if takes { Took::Next } else { Took::Itself })
            }
        }
    }

    fn switch(
        &mut self,
        flag: &'static Flag,
        token: &Token,
        next: Option<&str>,
        origin: &Origin,
    ) -> Result<Took, Failure> {
        if let Some(text) = token.value {
            self.set(flag, text, origin);
            return Ok(Took::Itself);
        }
        match next.and_then(parse_bool) {
            Some(false) => {
                Err(Failure::usage(format!("{} is a switch: the word after it does not belong to it", token.spelled))
                    .found(format!(
                        "'{} {}', which mooncake_master reads as true",
                        token.spelled,
                        next.unwrap_or_default()
                    ))
                    .next(format!("write {}=false", flag.spelled())))
            }
            word => {
                self.set(flag, "true", origin);
                Ok(if word.is_some() { Took::Next } else { Took::Itself })
            }
        }
    }

    /// The value of a flag that needs one.
    fn value<'t>(&self, token: &Token<'t>, next: Option<&'t str>, expected: &str) -> Result<(&'t str, Took), Failure> {
        if let Some(text) = token.value {
            return Ok((text, Took::Itself));
        }
        let is_flag = |word: &str| {
            word == "--"
                || Token::new(word)
                    .is_some_and(|t| word.starts_with("--") && !matches!(self.meaning(t.name), Meaning::Unknown))
        };
        match next {
            Some(word) if !is_flag(word) => Ok((word, Took::Next)),
            _ => Err(self.lacks_value(token.spelled, expected)),
        }
    }

    fn set(&mut self, flag: &'static Flag, text: &str, origin: &Origin) {
        self.out.assignments.push(Assignment { flag, text: text.to_owned(), origin: origin.clone() });
    }

    fn load(&mut self, loader: Loader, text: &str, spelled: &str, depth: usize) -> Result<(), Failure> {
        let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
        match loader {
            Loader::FlagFile => names().try_for_each(|path| self.flag_file(Path::new(path), depth)),
            Loader::UndefOk => {
                self.undefok.extend(names().map(|name| name.replace('-', "_")));
                Ok(())
            }
            Loader::FromEnv => names().try_for_each(|name| self.take_env(name, true, spelled)),
            Loader::TryFromEnv => names().try_for_each(|name| self.take_env(name, false, spelled)),
        }
    }

    fn take_env(&mut self, name: &str, must: bool, spelled: &str) -> Result<(), Failure> {
        let Some(flag) = self.table.find(name) else {
            let mut failure = Failure::usage(format!("{spelled} names an unknown flag '{name}'"));
            failure.next = self.table.nearest(name).map(|near| format!("the nearest known one is {near}"));
            return Err(failure);
        };
        let variable = format!("FLAGS_{}", name.replace('-', "_"));
        match self.world.env(&variable) {
            Some(text) => {
                self.set(flag, &text, &Origin::Env(variable));
                Ok(())
            }
            None if must => Err(Failure::usage(format!("{spelled}={name} needs the environment variable {variable}"))
                .found(format!("{variable} is not set"))
                .next(format!("export {variable}, or use --tryfromenv={name}"))),
            None => Ok(()),
        }
    }

    /// A file with one flag a line, `#` comments and blank lines.
    fn flag_file(&mut self, path: &Path, depth: usize) -> Result<(), Failure> {
        if depth == FLAGFILE_DEPTH_MAX {
            return Err(Failure::usage(format!("{}: --flagfile is nested too deep", path.display()))
                .found(format!("{FLAGFILE_DEPTH_MAX} files, each named by the one before"))
                .next("look for a file that names itself"));
        }
        let text = self.world.read(path)?;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}:{}", path.display(), index + 1);
            let Some(token) = Token::new(line) else {
                return Err(Failure::usage(format!("{place}: a line of a flag file is --name=value"))
                    .found(format!("'{line}'"))
                    .next("one flag a line; sections for single programs are not understood"));
            };
            let origin = Origin::FlagFile { path: PathBuf::from(path), line: index + 1 };
            self.flag(&token, None, &origin, depth + 1)?;
        }
        Ok(())
    }

    fn definer(&self) -> Option<&'static Flag> {
        self.table.flags().find(|flag| flag.kind == Kind::Define)
    }

    /// `-D key=value`: the same as that key in a configuration file, but stronger.
    fn define(&mut self, pair: &str) -> Result<(), Failure> {
        let Some((key, text)) = pair.split_once('=') else {
            return Err(self.lacks_value(&format!("-D {pair}"), "KEY=VALUE"));
        };
        let Some(flag) = self.table.find_key(key) else {
            self.out.unknown_defines.push(UnknownKey::new(self.table, "-D", key));
            return Ok(());
        };
        self.set(flag, text, &Origin::Flag(format!("-D {key}")));
        Ok(())
    }

    fn unknown(&self, token: &Token, origin: &Origin) -> Failure {
        let place = match origin {
            Origin::FlagFile { .. } => format!("{origin}: "),
            _ => String::new(),
        };
        let help = format!("mcctl {} --help lists all", self.table.command);
        let next = match self.table.nearest(token.name) {
            Some(near) => format!("the nearest known one is {near}; {help}"),
            None => help,
        };
        Failure::usage(format!("{place}unknown flag {} for mcctl {}", token.spelled, self.table.command)).next(next)
    }

    fn stray(&self, word: &str) -> Failure {
        let failure = Failure::usage(format!("'{word}' is not a flag of mcctl {}", self.table.command));
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        match self.table.find(name) {
            Some(_) => failure.next(format!("write --{word}")),
            None => failure.next("flags start with - or --, and a value follows its flag"),
        }
    }

    fn lacks_value(&self, spelled: &str, expected: &str) -> Failure {
        Failure::usage(format!("{spelled} needs a value: {expected}"))
            .next(format!("mcctl {} --help tells what it does", self.table.command))
    }
}

/// How many words a flag was.
#[derive(Clone, Copy, PartialEq)]
enum Took {
    Itself,
    Next,
}

#[cfg(test)]
mod tests;
