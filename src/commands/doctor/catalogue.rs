//! `--list` and `--list-problems`: all checks, and common deployment problems with the checks that
//! detect them. No checks are run.

use serde::Serialize;

use crate::commands::cli::error::{Exit, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::table::{self, ReportTable, wrapped_line};
use crate::engine::check::{Check, CheckGroup};
use crate::engine::doctor::Selection;
use crate::engine::doctor::problems::ALL;

#[derive(Debug, Serialize)]
struct CatalogueEntry {
    id: &'static str,
    group: CheckGroup,
    about: &'static str,
    problems: &'static [u8],
}

#[derive(Debug, Serialize)]
struct ProblemEntry {
    number: u8,
    about: &'static str,
    checks: Vec<&'static str>,
    commands: Vec<String>,
    beyond: Option<&'static str>,
}

/// A JSON document that contains one list.
#[derive(Debug, Serialize)]
struct CatalogueDocument<T> {
    schema: &'static str,
    #[serde(flatten)]
    list: T,
}

#[derive(Debug, Serialize)]
struct CheckList {
    checks: Vec<CatalogueEntry>,
}

#[derive(Debug, Serialize)]
struct ProblemList {
    problems: Vec<ProblemEntry>,
}

pub(super) fn checks(all: &[Check], selection: &Selection, json: bool) -> Outcome {
    let checks = all.iter().filter(|check| selection.includes(check));
    if json {
        let entry = |c: &Check| CatalogueEntry { id: c.id, group: c.group, about: c.about, problems: c.problems };
        let list = CheckList { checks: checks.map(entry).collect() };
        output::json(&CatalogueDocument { schema: "mcctl.doctor-checks/1", list })?;
        return Ok(Exit::Done);
    }
    let head = ["check", "group", "problems", "verifies that"];
    let mut table = (1..head.len()).fold(ReportTable::new("", &head), ReportTable::text_column);
    for check in checks {
        let problems: Vec<String> = check.problems.iter().map(u8::to_string).collect();
        table.row([check.id, check.group.word(), &problems.join(","), check.about]);
    }
    output::data(table.render(table::width()))?;
    Ok(Exit::Done)
}

pub(super) fn problems(all: &[Check], json: bool) -> Outcome {
    let entry = |problem: &crate::engine::doctor::problems::Problem| ProblemEntry {
        number: problem.number,
        about: problem.about,
        checks: all.iter().filter(|check| check.problems.contains(&problem.number)).map(|check| check.id).collect(),
        commands: problem.commands.iter().map(|command| format!("mcctl {command}")).collect(),
        beyond: problem.beyond,
    };
    let problems: Vec<ProblemEntry> = ALL.iter().map(entry).collect();
    if json {
        output::json(&CatalogueDocument { schema: "mcctl.doctor-problems/1", list: ProblemList { problems } })?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for problem in problems {
        let mut line = |line: String| text.push_str(&wrapped_line(&line, table::width()));
        line(format!("{:>2}  {}", problem.number, problem.about));
        if !problem.checks.is_empty() {
            line(format!("      checks        {}", problem.checks.join(", ")));
        }
        if !problem.commands.is_empty() {
            line(format!("      see also      {}", problem.commands.join(", ")));
        }
        if let Some(beyond) = problem.beyond {
            line(format!("      not detected  {beyond}"));
        }
    }
    output::data(text)?;
    Ok(Exit::Done)
}
