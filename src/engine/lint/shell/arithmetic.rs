//! Integer expressions: `$((BASE + 2 * i))`. Values that are not known yield no result.

use crate::engine::lint::shell::evaluator::Evaluator;
use crate::engine::lint::shell::expansion::BranchWorld;
use crate::engine::lint::shell::word::pieces;

/// Limit on the length of an expression.
const LENGTH_MAX: usize = 200;

impl Evaluator<'_> {
    /// The value of the expression `text`.
    pub(super) fn arithmetic(&mut self, text: &str, world: &mut BranchWorld) -> Option<i64> {
        if text.len() > LENGTH_MAX {
            return None;
        }
        let place = self.place.clone();
        let expanded = self.text_of_pieces(&pieces(text, true), &place, world, false);
        let tokens = tokens(&expanded)?;
        let value = |name: &str| self.value_of(name, false, world).known()?.trim().parse().ok();
        let mut reader = ExpressionReader { tokens: &tokens, at: 0, value };
        let number = reader.comparison(0)?;
        (reader.at == tokens.len()).then_some(number)
    }
}

fn tokens(text: &str) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            '<' | '>' | '=' | '!' if rest[1..].starts_with('=') => 2,
            '+' | '-' | '*' | '/' | '%' | '(' | ')' | '<' | '>' => 1,
            _ => return None,
        };
        out.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    Some(out)
}

struct ExpressionReader<'t, F> {
    tokens: &'t [String],
    at: usize,
    value: F,
}

impl<F: FnMut(&str) -> Option<i64>> ExpressionReader<'_, F> {
    fn accept(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        let token = self.tokens.get(self.at)?;
        let found = operators.iter().find(|operator| *operator == token)?;
        self.at += 1;
        Some(found)
    }

    fn comparison(&mut self, depth: u32) -> Option<i64> {
        let left = self.sum(depth)?;
        let Some(operator) = self.accept(&["<", ">", "<=", ">=", "==", "!="]) else { return Some(left) };
        let right = self.sum(depth)?;
        Some(i64::from(match operator {
            "<" => left < right,
            ">" => left > right,
            "<=" => left <= right,
            ">=" => left >= right,
            "==" => left == right,
            _ => left != right,
        }))
    }

    fn sum(&mut self, depth: u32) -> Option<i64> {
        let mut left = self.product(depth)?;
        while let Some(operator) = self.accept(&["+", "-"]) {
            let right = self.product(depth)?;
            left = if operator == "+" { left.checked_add(right)? } else { left.checked_sub(right)? };
        }
        Some(left)
    }

    fn product(&mut self, depth: u32) -> Option<i64> {
        let mut left = self.unary(depth)?;
        while let Some(operator) = self.accept(&["*", "/", "%"]) {
            let right = self.unary(depth)?;
            left = match operator {
                "*" => left.checked_mul(right)?,
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
        Some(left)
    }

    fn unary(&mut self, depth: u32) -> Option<i64> {
        if depth > 20 {
            return None;
        }
        if self.accept(&["-"]).is_some() {
            return self.unary(depth + 1)?.checked_neg();
        }
        if self.accept(&["("]).is_some() {
            let inner = self.comparison(depth + 1)?;
            self.accept(&[")"])?;
            return Some(inner);
        }
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        match token.starts_with(|c: char| c.is_ascii_digit()) {
            true => token.parse().ok(),
            false => (self.value)(&token),
        }
    }
}
