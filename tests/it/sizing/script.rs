//! A second implementation of upstream's sizing script, written from its description and
//! independent of mcctl's code. It works on structured items instead of command-line texts.

use std::sync::LazyLock;

use fancy_regex::Regex;

/// Compiling an expression takes longer than all else here.
fn compiled(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// An argument of a command line, or two.
#[derive(Clone, Debug)]
pub enum Item {
    /// One of the six options in full or abbreviated, separated from its value by `=` or a blank.
    Option { name: &'static str, spelled: String, joined: bool, value: String },
    /// Neither an option of the script nor a value.
    Stray(String),
    /// A prefix of several options.
    Ambiguous(&'static str, &'static str),
    /// `-h` or `--help`.
    Help(&'static str),
    /// An option without a value; only at the end.
    Bare(&'static str),
}

/// The expected result of the program.
#[derive(Debug, PartialEq, Eq)]
pub struct Expected {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn words(items: &[Item]) -> Vec<String> {
    let mut out = Vec::new();
    for item in items {
        match item {
            Item::Option { spelled, joined: true, value, .. } => out.push(format!("{spelled}={value}")),
            Item::Option { spelled, value, .. } => out.extend([spelled.clone(), value.clone()]),
            Item::Stray(word) => out.push(word.clone()),
            Item::Ambiguous(word, _) | Item::Help(word) | Item::Bare(word) => out.push((*word).to_owned()),
        }
    }
    out
}

/// The expected result; `usage` and `help` are the script's texts.
pub fn expect(items: &[Item], usage: &str, help: &str) -> Expected {
    let wrong = |message: String| Expected {
        code: 2,
        stdout: String::new(),
        stderr: format!("{usage}mooncake-hicache-sizing: error: {message}\n"),
    };
    for item in items {
        if let Item::Ambiguous(word, candidates) = item {
            return wrong(format!("ambiguous option: {word} could match {candidates}"));
        }
    }
    let mut strays = Vec::new();
    let mut last = std::collections::HashMap::new();
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| compiled(r"^-(\d+|\d*\.\d+)$"));
    for item in items {
        match item {
            Item::Help(_) => return Expected { code: 0, stdout: help.to_owned(), stderr: String::new() },
            Item::Bare(name) => return wrong(format!("argument {name}: expected one argument")),
            Item::Stray(word) => strays.push(word.as_str()),
            Item::Option { name, joined, value, .. } => {
                let like_option = value.len() > 1
                    && value.starts_with('-')
                    && !value.contains(' ')
                    && !NUMBER.is_match(value).unwrap();
                if !joined && like_option {
                    return wrong(format!("argument {name}: expected one argument"));
                }
                if *name == "--tp-size" && python_int(value).is_none() {
                    return wrong(format!("argument --tp-size: invalid int value: '{value}'"));
                }
                last.insert(*name, value.as_str());
            }
            Item::Ambiguous(..) => unreachable!(),
        }
    }
    let needed = ["--tp-size", "--hicache-size", "--global-segment-size"];
    let missing: Vec<&str> = needed.into_iter().filter(|name| !last.contains_key(name)).collect();
    if !missing.is_empty() {
        return wrong(format!("the following arguments are required: {}", missing.join(", ")));
    }
    if !strays.is_empty() {
        return wrong(format!("unrecognized arguments: {}", strays.join(" ")));
    }
    match answer(&last) {
        Ok((code, stdout)) => Expected { code, stdout, stderr: String::new() },
        Err(message) => Expected { code: 64, stdout: String::new(), stderr: format!("error: {message}\n") },
    }
}

fn python_int(text: &str) -> Option<i64> {
    static FORM: LazyLock<Regex> = LazyLock::new(|| compiled(r"^[+-]?[0-9](_?[0-9])*$"));
    let trimmed = text.trim();
    FORM.is_match(trimmed).unwrap().then(|| trimmed.replace('_', "").parse().unwrap())
}

fn size(text: &str) -> Result<u128, String> {
    static FORM: LazyLock<Regex> = LazyLock::new(|| compiled("^([0-9]+(?:[.][0-9]+)?)([a-z]*)$"));
    let normal = text.trim().to_lowercase().replace('_', "");
    let Some(found) = FORM.captures(&normal).unwrap() else { return Err(format!("invalid size: '{text}'")) };
    let part = |i| found.get(i).unwrap().as_str();
    let factor = match part(2) {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(format!("unsupported size unit in '{text}'")),
    };
    let value = part(1).parse::<f64>().unwrap() * 1024f64.powi(factor);
    Ok(value.trunc() as u128)
}

fn shown(bytes: u128) -> String {
    let mut scale = 1u128 << 40;
    let mut unit = 0;
    while unit < 3 && bytes < scale {
        scale >>= 10;
        unit += 1;
    }
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // The divisor is a power of two, so the division is exact.
    format!("{:.2} {}", bytes as f64 / scale as f64, ["TiB", "GiB", "MiB", "KiB"][unit])
}

fn answer(given: &std::collections::HashMap<&str, &str>) -> Result<(i32, String), String> {
    let hugepage = given.get("--hugepage-size").copied().unwrap_or("2mb");
    let available = match given.get("--available-hugetlb").copied().filter(|text| !text.is_empty()) {
        Some(text) => Some(size(text)?),
        None => {
            let bytes = size(hugepage)?;
            let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", bytes / 1024);
            let pages = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u128>().ok());
            pages.filter(|_| bytes % 1024 == 0).map(|pages| pages * bytes)
        }
    };
    let raw = [given["--hicache-size"], given["--global-segment-size"], given.get("--arena-pool-size").unwrap_or(&"0")];
    let l2 = size(raw[0])?;
    let segment = size(raw[1])?;
    let arena = size(raw[2])?;
    let tp = python_int(given["--tp-size"]).unwrap();
    let Some(ranks) = u128::try_from(tp).ok().filter(|ranks| *ranks > 0) else {
        return Err("tp_size must be positive".to_owned());
    };
    let page = size(hugepage)?;
    let base = l2 + segment;
    let clean = l2 + segment + arena;
    let (code, status) = match available {
        None => (0, PLANNING),
        Some(bytes) if bytes >= clean * ranks => (0, CLEAN),
        Some(bytes) if bytes >= base * ranks => (1, FALL_BACK),
        Some(_) => (2, INSUFFICIENT),
    };
    let available = available.map(shown).unwrap_or_else(|| "unavailable (planning-only mode)".to_owned());
    let text = format!(
        "Mooncake HiCache HugeTLB sizing summary\n\n\
         tp-size:                {tp}\n\
         hicache-size:           {} ({})\n\
         global-segment-size:    {} ({})\n\
         arena-pool-size:        {} ({})\n\
         hugepage-size:          {hugepage} ({})\n\
         available HugeTLB:      {available}\n\n\
         baseline floor / rank:  {}\n\
         baseline floor / total: {}\n\
         clean arena / rank:     {}\n\
         clean arena / total:    {}\n\n{status}\n\n{NOTE}\n",
        raw[0],
        shown(l2),
        raw[1],
        shown(segment),
        raw[2],
        shown(arena),
        shown(page),
        shown(base),
        shown(base * ranks),
        shown(clean),
        shown(clean * ranks),
    );
    Ok((code, text))
}

const PLANNING: &str = "Status: planning only\nMeaning: baseline and clean-arena targets were computed, but host HugeTLB capacity was not detected.";
const INSUFFICIENT: &str = "Status: insufficient for baseline\nMeaning: the current HugeTLB pool is below the baseline floor. Expect startup or allocation failures.";
const FALL_BACK: &str = "Status: baseline fits, arena may fall back\nMeaning: baseline should fit, but the cleaner fully arena-backed target is above the current HugeTLB pool. Arena allocations may partially or fully fall back to regular pages.";
const CLEAN: &str = "Status: clean arena budget available\nMeaning: the current HugeTLB pool meets the cleaner target for baseline plus arena-backed bring-up.";
const NOTE: &str = "Note: the baseline floor is a conservative bring-up estimate (hicache + global segment per rank). The clean-arena target adds the arena pool per rank to show when arena-backed runs are less likely to spill onto the regular-page fallback path.";
