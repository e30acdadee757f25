//! Files that scripts write: they are read like files that were provided.

use crate::lint::model::ParsedDeployment;
use crate::lint::read::detect::extension;
use crate::lint::read::embedded_settings::add_embedded_settings;
use crate::lint::read::{ParsedFile, parse};
use crate::lint::shell::choice::ScriptSpan;
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::places::WrittenText;
use crate::lint::shell::word::base_name;
use crate::lint::shell::word::is_name;
use crate::lint::source::{FileKind, ReadError, SourceFile};
use crate::lint::yaml::YamlNode;

/// Reads the texts that scripts write.
pub(super) fn add_written(deployment: &mut ParsedDeployment, sink: &mut ScriptEffects) -> Vec<ParsedFile> {
    let mut out = Vec::new();
    // A script that a script writes may itself write files, but those are rare.
    for written in std::mem::take(&mut sink.written) {
        if written.is_followed {
            continue;
        }
        let part = match (parse_written(&written), &written.changed) {
            (Ok(None), _) => continue,
            (Ok(Some(part)), None) => part,
            (parsed, changed) => {
                let name = if written.name.is_empty() { "a manifest" } else { base_name(&written.name) };
                let lines = u32::try_from(written.text.lines().count()).unwrap_or(u32::MAX);
                let reason = match (changed, parsed) {
                    (None, Err(error)) => format!("the text of {name}: {error}"),
                    (changed, _) => format!("{name} {}", changed.as_deref().unwrap_or("is not known")),
                };
                sink.not_read(written.place, lines, reason);
                continue;
            }
        };
        let data = part.data();
        let documents = deployment.documents.len();
        part.add(&data, &[], deployment, sink);
        for (base, (located, _)) in data.iter().flat_map(|map| &map.data) {
            add_embedded_settings(base, located, deployment);
        }
        for process in &mut sink.processes {
            match &mut process.span {
                Some(span) if part.kind != FileKind::Shell => span.path.extend(&written.span.path),
                Some(_) => {}
                None => process.span = Some(written.span.clone()),
            }
        }
        deployment.processes.append(&mut sink.processes);
        for document in &mut deployment.documents[documents..] {
            document.span = Some(written.span.clone());
        }
        out.push(part);
    }
    out
}

/// Parses a text that a script writes. `None` if it is for another program.
fn parse_written(written: &WrittenText) -> Result<Option<ParsedFile>, ReadError> {
    let name = if written.name.is_empty() { "stdin.yaml" } else { &written.name };
    let quoted = if extension(name) == "json" { quoted_unknowns(&written.text) } else { written.text.clone() };
    let source = SourceFile { name, bytes: quoted.as_bytes(), kind: None };
    let first = parse(&source);
    // An unknown value that is a line of its own may be any number of lines.
    let shorter = without_unknown_lines(&quoted);
    let (quoted, first) = match first {
        Err(ReadError::Yaml { .. } | ReadError::Template) if shorter != quoted => {
            let source = SourceFile { name, bytes: shorter.as_bytes(), kind: None };
            let second = parse(&source);
            (shorter, second)
        }
        first => (quoted, first),
    };
    let (kind, json) = match first {
        Ok(part) => (part.kind, part.json),
        Err(error @ (ReadError::Yaml { .. } | ReadError::Json { .. } | ReadError::Template)) => return Err(error),
        Err(_) => return Ok(None),
    };
    // Blank lines make the line numbers those of the script.
    let before = usize::try_from(written.place.line.saturating_sub(1)).unwrap_or_default();
    let text = "\n".repeat(before) + &quoted;
    let source = SourceFile { name, bytes: text.as_bytes(), kind: Some(kind) };
    let mut part = parse(&source)?;
    part.json = json;
    if json {
        part.nodes = vec![YamlNode::json(&text, true)?];
    }
    part.file = written.place.file.clone();
    if kind == FileKind::Shell {
        part.span = Some(ScriptSpan { uncertain: true, foreground: true, ..written.span.clone() });
    } else {
        part.span = Some(written.span.clone());
    }
    Ok(Some(part))
}

/// `text` with empty lines in place of those that consist of an unknown value.
fn without_unknown_lines(text: &str) -> String {
    let is_unknown = |line: &str| line.trim().strip_prefix('$').is_some_and(is_name);
    let lines: Vec<&str> = text.split('\n').map(|line| if is_unknown(line) { "" } else { line }).collect();
    lines.join("\n")
}

/// JSON text in which unknown values without quotes are strings.
fn quoted_unknowns(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_string = false;
    let mut in_name = false;
    let mut escaped = false;
    for c in text.chars() {
        if in_name && !c.is_ascii_alphanumeric() && c != '_' {
            out.push('"');
            in_name = false;
        }
        if !in_string && !in_name && c == '$' {
            out.push('"');
            in_name = true;
        }
        if c == '"' && !escaped && !in_name {
            in_string = !in_string;
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}
