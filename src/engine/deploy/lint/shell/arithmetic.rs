//! Integer expressions: `$((BASE + 2 * i))`. Values that are not known yield no result.

use crate::lint::shell::evaluator::Evaluator;
use crate::lint::shell::expansion::BranchWorld;
use crate::lint::shell::word::pieces;

/// Limit on the length of an expression.
const LENGTH_MAX: usize = 200;
/// Limit on the nesting of an expression.
const NESTING_MAX: u32 = 20;

/// The operators with two operands, and how strongly each one binds.
const OPERATORS: &[(&str, u32)] =
    &[("<", 1), (">", 1), ("<=", 1), (">=", 1), ("==", 1), ("!=", 1), ("+", 2), ("-", 2), ("*", 3), ("/", 3), ("%", 3)];

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
        let mut reader = ExpressionReader { tokens: &tokens, value };
        let number = reader.expression(1, 0)?;
        reader.tokens.is_empty().then_some(number)
    }

    /// The value of the expression `text`, if no caller and no branch can change it.
    pub(super) fn certain_number(&mut self, text: &str) -> Option<i64> {
        let mut world = self.world();
        self.arithmetic(text, &mut world).filter(|_| world.is_certain())
    }
}

fn tokens(text: &str) -> Option<Vec<&str>> {
    let (mut out, mut rest) = (Vec::new(), text.trim());
    while let Some(first) = rest.chars().next() {
        let end = match first {
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            '<' | '>' | '=' | '!' if rest[1..].starts_with('=') => 2,
            '+' | '-' | '*' | '/' | '%' | '(' | ')' | '<' | '>' => 1,
            _ => return None,
        };
        out.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    Some(out)
}

struct ExpressionReader<'t, F> {
    /// The tokens that are not read yet.
    tokens: &'t [&'t str],
    value: F,
}

impl<'t, F: FnMut(&str) -> Option<i64>> ExpressionReader<'t, F> {
    fn next(&mut self) -> Option<&'t str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Reads an operand, and all operators after it that bind at least as strongly as `least`.
    fn expression(&mut self, least: u32, depth: u32) -> Option<i64> {
        let mut left = self.operand(depth)?;
        while let Some((operator, binding)) =
            OPERATORS.iter().find(|(operator, binding)| *binding >= least && self.tokens.first() == Some(operator))
        {
            self.next();
            let right = self.expression(binding + 1, depth)?;
            left = match *operator {
                "<" => i64::from(left < right),
                ">" => i64::from(left > right),
                "<=" => i64::from(left <= right),
                ">=" => i64::from(left >= right),
                "==" => i64::from(left == right),
                "!=" => i64::from(left != right),
                "+" => left.checked_add(right)?,
                "-" => left.checked_sub(right)?,
                "*" => left.checked_mul(right)?,
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
        Some(left)
    }

    fn operand(&mut self, depth: u32) -> Option<i64> {
        if depth > NESTING_MAX {
            return None;
        }
        match self.next()? {
            "-" => self.operand(depth + 1)?.checked_neg(),
            "(" => {
                let inner = self.expression(1, depth + 1)?;
                (self.next()? == ")").then_some(inner)
            }
            number if number.starts_with(|c: char| c.is_ascii_digit()) => number.parse().ok(),
            name => (self.value)(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_bind_as_in_the_shell() {
        for (text, wanted) in [
            ("1+2*3", Some(7)),
            ("10-2-3", Some(5)),
            ("-(2-5)*2", Some(6)),
            ("7%4 >= 3", Some(1)),
            ("1+1==3", Some(0)),
            ("x*2", Some(8)),
            ("1/0", None),
            ("(1", None),
            ("1 2", None),
            ("9223372036854775807+1", None),
        ] {
            let tokens = tokens(text).unwrap_or_default();
            let mut reader = ExpressionReader { tokens: &tokens, value: |name: &str| (name == "x").then_some(4) };
            let number = reader.expression(1, 0).filter(|_| reader.tokens.is_empty());
            assert_eq!(number, wanted, "{text}");
        }
    }
}
