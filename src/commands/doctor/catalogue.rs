//! The lists that do no check: the checks, and the problems of operators with what recognises each.

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::commands::error::{Exit, Outcome};
use crate::commands::output;
use crate::engine::check::{Check, Group};
use crate::engine::doctor::Selection;
use crate::engine::doctor::problems::ALL;

#[derive(Debug, Serialize)]
struct CheckLine {
    id: &'static str,
    group: Group,
    about: &'static str,
    problems: &'static [u8],
}

#[derive(Debug, Serialize)]
struct ProblemLine {
    number: u8,
    about: &'static str,
    checks: Vec<&'static str>,
    commands: Vec<String>,
    beyond: Option<&'static str>,
}

/// A document of one list.
#[derive(Debug, Serialize)]
struct Document<T> {
    schema: &'static str,
    #[serde(flatten)]
    list: T,
}

#[derive(Debug, Serialize)]
struct Checks {
    checks: Vec<CheckLine>,
}

#[derive(Debug, Serialize)]
struct Problems {
    problems: Vec<ProblemLine>,
}

pub(super) fn checks(all: &[Check], selection: &Selection, json: bool) -> Outcome {
    let checks = all.iter().filter(|check| selection.wants(check));
    if json {
        let line = |c: &Check| CheckLine { id: c.id, group: c.group, about: c.about, problems: c.problems };
        let list = Checks { checks: checks.map(line).collect() };
        output::json(&Document { schema: "mcctl.doctor-checks/1", list })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["check", "group", "problems", "makes sure that"]);
    for check in checks {
        let problems: Vec<String> = check.problems.iter().map(u8::to_string).collect();
        table.add_row([check.id, check.group.word(), &problems.join(","), check.about]);
    }
    output::line(table.trim_fmt())?;
    Ok(Exit::Done)
}

pub(super) fn problems(all: &[Check], json: bool) -> Outcome {
    let line = |problem: &crate::engine::doctor::problems::Problem| ProblemLine {
        number: problem.number,
        about: problem.about,
        checks: all.iter().filter(|check| check.problems.contains(&problem.number)).map(|check| check.id).collect(),
        commands: problem.commands.iter().map(|command| format!("mcctl {command}")).collect(),
        beyond: problem.beyond,
    };
    let problems: Vec<ProblemLine> = ALL.iter().map(line).collect();
    if json {
        output::json(&Document { schema: "mcctl.doctor-problems/1", list: Problems { problems } })?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for problem in problems {
        text.push_str(&format!("{:>2}  {}\n", problem.number, problem.about));
        if !problem.checks.is_empty() {
            text.push_str(&format!("      checks        {}\n", problem.checks.join(", ")));
        }
        if !problem.commands.is_empty() {
            text.push_str(&format!("      see also      {}\n", problem.commands.join(", ")));
        }
        if let Some(beyond) = problem.beyond {
            text.push_str(&format!("      out of reach  {beyond}\n"));
        }
    }
    output::data(text)?;
    Ok(Exit::Done)
}
