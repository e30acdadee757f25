//! Templates: files that another program fills in before they are YAML or JSON.

use crate::lint::shell::places::UnreadPlace;
use crate::lint::source::{ReadError, SourceFile};
use mcctl_base::check::SourceLocation;

/// `error`, or that of a template if `text` has the marks of Helm, Jinja or Go, or the double
/// braces of a Python format.
pub(crate) fn or_template(error: ReadError, text: &str) -> ReadError {
    let is_template = text.contains("{{") || text.contains("{%");
    match error {
        ReadError::Yaml { .. } | ReadError::Json { .. } if is_template => ReadError::Template,
        error => error,
    }
}

/// The whole of a template as a place that was not read.
pub(crate) fn place(source: &SourceFile<'_>) -> UnreadPlace {
    let lines = String::from_utf8_lossy(source.bytes).lines().filter(|line| !line.trim().is_empty()).count();
    UnreadPlace {
        place: SourceLocation { file: source.name.into(), line: 1 },
        lines: u32::try_from(lines).unwrap_or(u32::MAX).max(1),
        reason: ReadError::Template.to_string(),
        needs: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_with_marks_is_a_template() {
        let error = || ReadError::Json { line: 1, reason: String::new() };
        assert_eq!(or_template(error(), "{{- if .Values.a }}\na: 1\n"), ReadError::Template);
        assert_eq!(or_template(error(), "{% if a %}"), ReadError::Template);
        assert_eq!(or_template(error(), "{\"a\": 1,,}"), error());
        assert_eq!(or_template(ReadError::Unknown, "{{ a }}"), ReadError::Unknown);
    }
}
