//! Adds a proposal to the text of a file, and leaves every other line as it is.

use std::fmt::Write;

use settings::toml_string;

use super::Proposal;

/// The text with the proposed rules before its first rule, and `zswap.manage` in its table.
pub(super) fn edited(text: &str, proposal: &Proposal) -> String {
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let rules = rules(proposal);
    let at = first_rule(&lines).unwrap_or(lines.len());
    // Before a rule, its comment follows: the added ones end with an empty line. At the end of a file, they begin with one.
    let added = if at < lines.len() {
        rules.into_iter().flat_map(|mut rule| (rule.push(String::new()), rule).1).collect::<Vec<_>>()
    } else {
        rules.into_iter().flat_map(|rule| [vec![String::new()], rule].concat()).collect()
    };
    lines.splice(at..at, added);
    if proposal.manages_zswap {
        manage_zswap(&mut lines);
    }
    let start = lines.iter().position(|line| !line.is_empty()).unwrap_or(0);
    let first = if text.trim().is_empty() { start } else { 0 };
    lines.get(first..).unwrap_or_default().iter().fold(String::new(), |mut text, line| (writeln!(text, "{line}"), text).1)
}

/// The line of the first rule, or of the comment that is directly above it.
fn first_rule(lines: &[String]) -> Option<usize> {
    let mut at = lines.iter().position(|line| line.trim() == "[[job]]")?;
    while at > 0 && lines[at - 1].starts_with('#') {
        at -= 1;
    }
    Some(at)
}

fn rules(proposal: &Proposal) -> Vec<Vec<String>> {
    let rule = |rule: &super::ProposedRule| {
        let at_most = if rule.at_most { "at most " } else { "" };
        let jobs = if rule.jobs == 1 { String::new() } else { format!(" in {} jobs", rule.jobs) };
        vec![
            format!("# Observed{jobs}: could save {at_most}{} of {}.", rule.could_save_bytes, rule.memory_bytes),
            "[[job]]".to_owned(),
            format!("cgroup = {}", toml_string(&rule.cgroup)),
            format!("class = {}", toml_string(rule.class)),
        ]
    };
    proposal.rules.iter().map(rule).collect()
}

/// Sets `manage` in the table `[zswap]`, which is made if there is none. A value that is there is left.
fn manage_zswap(lines: &mut Vec<String>) {
    let set = "manage = true             # zswap is off on this machine; it is on while the agent runs".to_owned();
    if let Some(table) = lines.iter().position(|line| line.trim() == "[zswap]") {
        let end =
            lines.iter().skip(table + 1).position(|line| line.trim_start().starts_with('[')).map_or(lines.len(), |end| table + 1 + end);
        let sets = lines[table..end].iter().any(|line| line.trim_start().starts_with("manage") && line.contains('='));
        if !sets {
            lines.insert(table + 1, set);
        }
        return;
    }
    let at = first_rule(lines).unwrap_or(lines.len());
    lines.splice(at..at, ["[zswap]".to_owned(), set, String::new()]);
}
