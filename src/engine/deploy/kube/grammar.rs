//! The syntax of Kubernetes names, labels, quantities and percentages. Each check returns an error
//! if the syntax is invalid.

use mcctl_base::text::Quoted;

/// Why a string does not have the required syntax.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("too long: {length} characters; the limit is {max}")]
    TooLong { length: usize, max: usize },
    #[error("not a DNS label: use lowercase letters, digits and '-', with a letter or digit at both ends")]
    DnsLabel,
    #[error("not a Service name: it must begin with a letter")]
    ServiceName,
    #[error("not a DNS name: use lowercase letters, digits, '-' and '.', with a letter or digit at both ends")]
    DnsName,
    #[error("not a label key: use [DNS name/]name, with at most 63 letters, digits, '-', '_' and '.' in the name")]
    LabelKey,
    #[error("not a label value: use letters, digits, '-', '_' and '.', with a letter or digit at both ends")]
    LabelValue,
    #[error(
        "not a port name: use at most 15 lowercase letters, digits and '-' (no consecutive '-'), with at least one letter"
    )]
    PortName,
    #[error("not a variable name: use printable ASCII without '='")]
    VariableName,
    #[error("not a key: use letters, digits, '-', '_' and '.'")]
    DataKey,
    #[error(
        "not a quantity: use a number followed by k M G T P E (powers of 1000), Ki Mi Gi Ti Pi Ei (powers of 1024) or m (1/1000)"
    )]
    Quantity,
    #[error("not a percentage from 0% to 100%")]
    Percentage,
    #[error("neither a number nor a percentage such as 25%")]
    CountOrPercentage,
    #[error("must be Memory or HugePages")]
    Medium,
    #[error("a mount path must not contain ':'")]
    MountPath,
    #[error("the downward API does not expose {}", Quoted(.0))]
    FieldPath(String),
}
/// Limit on the length of labels, container names and Service names.
pub const LABEL_MAX: usize = 63;
/// Limit on the length of most object names.
const SUBDOMAIN_MAX: usize = 253;

/// A DNS label: lowercase letters, digits and `-`, with a letter or digit at both ends (RFC 1123).
pub fn dns_label(text: &str) -> Option<GrammarError> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inside = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if text.len() > LABEL_MAX {
        Some(GrammarError::TooLong { length: text.len(), max: LABEL_MAX })
    } else if !(inside && edge(text.chars().next()) && edge(text.chars().next_back())) {
        Some(GrammarError::DnsLabel)
    } else {
        None
    }
}

/// A DNS label that begins with a letter, as required for Services (RFC 1035).
pub fn service_label(text: &str) -> Option<GrammarError> {
    dns_label(text).or_else(|| text.starts_with(|c: char| c.is_ascii_digit()).then_some(GrammarError::ServiceName))
}

/// DNS labels separated by dots (RFC 1123).
pub fn dns_subdomain(text: &str) -> Option<GrammarError> {
    if text.len() > SUBDOMAIN_MAX {
        return Some(GrammarError::TooLong { length: text.len(), max: SUBDOMAIN_MAX });
    }
    let bad = text.split('.').any(|part| dns_label(part).is_some() && part.len() <= LABEL_MAX || part.is_empty());
    bad.then_some(GrammarError::DnsName)
}

/// The key of a label or annotation: an optional DNS name and `/`, followed by at most 63 letters,
/// digits, `-`, `_`, `.`.
pub fn qualified_key(text: &str) -> Option<GrammarError> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|p| dns_subdomain(p).is_some()) || name.is_empty() || label_value(name).is_some() {
        return Some(GrammarError::LabelKey);
    }
    None
}

/// The value of a label: empty, or at most 63 letters, digits, `-`, `_`, `.`, with a letter or
/// digit at both ends.
pub fn label_value(text: &str) -> Option<GrammarError> {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inside = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if text.len() > LABEL_MAX {
        Some(GrammarError::TooLong { length: text.len(), max: LABEL_MAX })
    } else if !(inside && edge(text.chars().next()) && edge(text.chars().next_back())) {
        Some(GrammarError::LabelValue)
    } else {
        None
    }
}

/// The name of a port: at most 15 lowercase letters, digits and single `-`, with at least one
/// letter (RFC 6335).
pub fn port_name(text: &str) -> Option<GrammarError> {
    let wrong = text.is_empty()
        || text.len() > 15
        || text.contains("--")
        || dns_label(text).is_some()
        || !text.contains(|c: char| c.is_ascii_lowercase());
    wrong.then_some(GrammarError::PortName)
}

/// The name of an environment variable.
pub fn env_name(text: &str) -> Option<GrammarError> {
    let wrong = text.is_empty() || !text.chars().all(|c| (' '..='~').contains(&c) && c != '=');
    wrong.then_some(GrammarError::VariableName)
}

/// A key of a ConfigMap or Secret.
pub fn data_key(text: &str) -> Option<GrammarError> {
    let inside = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let wrong = text.is_empty() || text.len() > SUBDOMAIN_MAX || !inside || text == "." || text == "..";
    wrong.then_some(GrammarError::DataKey)
}

/// The value of a quantity: `1536Mi`, `0.5`, `2e3`, `100m`. `None` if the string is not a quantity.
pub fn quantity(text: &str) -> Option<f64> {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(digits);
    if number.matches('.').count() > 1 || !number.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number: f64 = number.trim_end_matches('.').parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        exponent => 10f64.powf(exponent_of(exponent)?),
    };
    Some(if text.starts_with('-') { -number * factor } else { number * factor })
}

/// Checks the syntax of a quantity.
pub fn quantity_text(text: &str) -> Option<GrammarError> {
    quantity(text).is_none().then_some(GrammarError::Quantity)
}

/// The number after `e` or `E`. Its syntax is the same as for a mantissa.
fn exponent_of(text: &str) -> Option<f64> {
    let number = text.strip_prefix(['e', 'E'])?;
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    let digits = unsigned.chars().all(|c| c.is_ascii_digit() || c == '.') && unsigned.matches('.').count() <= 1;
    if !digits || !unsigned.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    number.trim_end_matches('.').parse().ok()
}

/// The number in `50%`, from 0 to 100.
pub fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%').filter(|d| !d.is_empty() && d.chars().all(|c| c.is_ascii_digit()))?;
    digits.parse().ok().filter(|n| *n <= 100)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_follow_their_grammar() {
        for good in ["a", "0a", "a-b", "mooncake-store-0"] {
            assert_eq!(dns_label(good), None, "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"a".repeat(64)] {
            assert!(dns_label(bad).is_some(), "{bad}");
        }
        assert!(service_label("0a").is_some() && service_label("a0").is_none());
        assert!(dns_subdomain("a.b-c.d").is_none() && dns_subdomain("a..b").is_some() && dns_subdomain("").is_some());
        assert!(
            qualified_key("app.kubernetes.io/name").is_none()
                && qualified_key("a/b/c").is_some()
                && qualified_key("").is_some()
        );
        assert!(label_value("").is_none() && label_value("V1.2_x").is_none() && label_value("-x").is_some());
        assert!(
            port_name("metrics").is_none()
                && port_name("8080").is_some()
                && port_name("a-very-long-port-name").is_some()
        );
        assert!(env_name("A_b.c").is_none() && env_name("A=B").is_some() && env_name("").is_some());
        assert!(data_key("a.json").is_none() && data_key("a/b").is_some() && data_key("..").is_some());
    }

    #[test]
    fn quantities_are_parsed_like_kubernetes_does() {
        for (text, value) in [
            ("1", 1.0),
            ("0.5", 0.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1Gi", 1_073_741_824.0),
            ("100m", 0.1),
            ("2e3", 2000.0),
            ("-1k", -1000.0),
            ("1E", 1e18),
            ("1E2", 100.0),
        ] {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
        for bad in ["", "Gi", "1gb", "1 Gi", "1GiB", "1.2.3", "1K", "1e", "--1", "1Gi ", "0x1", "inf", "NaN"] {
            assert_eq!(quantity(bad), None, "{bad}");
        }
    }

    #[test]
    fn percentages_range_from_0_to_100() {
        assert_eq!(percent("25%"), Some(25));
        for bad in ["101%", "%", "-1%", "1.5%", "25", "25 %"] {
            assert_eq!(percent(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_texts_do_not_panic(text in any::<String>()) {
            let _ = (dns_label(&text), service_label(&text), dns_subdomain(&text), qualified_key(&text), label_value(&text));
            let _ = (port_name(&text), env_name(&text), data_key(&text), quantity(&text), percent(&text));
        }
    }
}
