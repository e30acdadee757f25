//! The grammars of Kubernetes: names, labels, quantities, counts that may be percentages. Each answer is what is wrong, or nothing.

/// Longest name of a label, a container, a service.
pub const LABEL_MAX: usize = 63;
/// Longest name of most objects.
const SUBDOMAIN_MAX: usize = 253;

/// A DNS label: lower-case letters, digits and `-`, with a letter or digit at both ends (RFC 1123).
pub fn dns_label(text: &str) -> Option<String> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inside = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if text.len() > LABEL_MAX {
        Some(format!("a name of {} characters; {LABEL_MAX} is the most", text.len()))
    } else if !(inside && edge(text.chars().next()) && edge(text.chars().next_back())) {
        Some("not a DNS label: lower-case letters, digits and '-', a letter or digit at both ends".to_owned())
    } else {
        None
    }
}

/// A DNS label that starts with a letter, as a service's name must (RFC 1035).
pub fn service_label(text: &str) -> Option<String> {
    dns_label(text).or_else(|| {
        text.starts_with(|c: char| c.is_ascii_digit()).then(|| "a service's name starts with a letter".to_owned())
    })
}

/// Labels with dots between them (RFC 1123).
pub fn dns_subdomain(text: &str) -> Option<String> {
    if text.len() > SUBDOMAIN_MAX {
        return Some(format!("a name of {} characters; {SUBDOMAIN_MAX} is the most", text.len()));
    }
    let bad = text.split('.').any(|part| dns_label(part).is_some() && part.len() <= LABEL_MAX || part.is_empty());
    bad.then(|| "not a DNS name: lower-case letters, digits, '-' and '.', a letter or digit at both ends".to_owned())
}

/// The key of a label or an annotation: an optional DNS name and `/`, then at most 63 letters, digits, `-`, `_`, `.`.
pub fn qualified_key(text: &str) -> Option<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|p| dns_subdomain(p).is_some()) || name.is_empty() || label_value(name).is_some() {
        return Some(
            "not the key of a label: [DNS name/]name, at most 63 letters, digits, '-', '_', '.' in the name".to_owned(),
        );
    }
    None
}

/// A label's value: empty, or at most 63 letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
pub fn label_value(text: &str) -> Option<String> {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inside = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if text.len() > LABEL_MAX {
        Some(format!("a label of {} characters; {LABEL_MAX} is the most", text.len()))
    } else if !(inside && edge(text.chars().next()) && edge(text.chars().next_back())) {
        Some("not a label: letters, digits, '-', '_' and '.', a letter or digit at both ends".to_owned())
    } else {
        None
    }
}

/// The name of a port: at most 15 lower-case letters, digits and single `-`, with at least one letter (RFC 6335).
pub fn port_name(text: &str) -> Option<String> {
    let wrong = text.is_empty()
        || text.len() > 15
        || text.contains("--")
        || dns_label(text).is_some()
        || !text.contains(|c: char| c.is_ascii_lowercase());
    wrong.then(|| {
        "not a port's name: at most 15 lower-case letters, digits and single '-', at least one letter".to_owned()
    })
}

/// The name of an environment variable.
pub fn env_name(text: &str) -> Option<String> {
    let wrong = text.is_empty() || !text.chars().all(|c| (' '..='~').contains(&c) && c != '=');
    wrong.then(|| "not the name of a variable: printable ASCII without '='".to_owned())
}

/// A key of a ConfigMap or Secret.
pub fn data_key(text: &str) -> Option<String> {
    let inside = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let wrong = text.is_empty() || text.len() > SUBDOMAIN_MAX || !inside || text == "." || text == "..";
    wrong.then(|| "not a key: letters, digits, '-', '_' and '.'".to_owned())
}

/// The number that a quantity means: `1536Mi`, `0.5`, `2e3`, `100m`. `None` where it is none.
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

/// What is wrong with the text of a quantity.
pub fn quantity_text(text: &str) -> Option<String> {
    quantity(text).is_none().then(|| {
        "not a quantity: a number, with k M G T P E (1000) or Ki Mi Gi Ti Pi Ei (1024) or m (1/1000) right behind it".to_owned()
    })
}

/// The number behind `e` or `E`: the grammar of a mantissa once more.
fn exponent_of(text: &str) -> Option<f64> {
    let number = text.strip_prefix(['e', 'E'])?;
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    let digits = unsigned.chars().all(|c| c.is_ascii_digit() || c == '.') && unsigned.matches('.').count() <= 1;
    if !digits || !unsigned.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    number.trim_end_matches('.').parse().ok()
}

/// The number of `50%`, 0 to 100.
pub fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%').filter(|d| !d.is_empty() && d.chars().all(|c| c.is_ascii_digit()))?;
    digits.parse().ok().filter(|n| *n <= 100)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_held_to_their_grammar() {
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
    fn quantities_are_read_as_kubernetes_reads_them() {
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
    fn percentages_are_0_to_100() {
        assert_eq!(percent("25%"), Some(25));
        for bad in ["101%", "%", "-1%", "1.5%", "25", "25 %"] {
            assert_eq!(percent(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_upsets_a_grammar(text in any::<String>()) {
            let _ = (dns_label(&text), service_label(&text), dns_subdomain(&text), qualified_key(&text), label_value(&text));
            let _ = (port_name(&text), env_name(&text), data_key(&text), quantity(&text), percent(&text));
        }
    }
}
