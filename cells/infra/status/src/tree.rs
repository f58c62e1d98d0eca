//! Reports as a tree, for the shell.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

use hive::Status;

#[derive(Default)]
struct Node<'a> {
    report: Option<&'a Status>,
    below: BTreeMap<String, Node<'a>>,
}

impl Node<'_> {
    /// Returns the height of the subtree below this node.
    fn depth(&self) -> usize {
        self.below.values().map(|node| node.depth() + 1).max().unwrap_or(0)
    }
}

/// Draws reports by the segments of their paths, with ages at `now`.
pub(crate) fn draw(reports: &[Status], now: SystemTime) -> String {
    let mut root = Node::default();
    for report in reports {
        let path = report.path();
        let node =
            path.split('.').fold(&mut root, |node, name| node.below.entry(name.to_owned()).or_default());
        node.report = Some(report);
    }
    split_inner_reports(&mut root);
    let mut text = String::new();
    for (name, node) in &root.below {
        let depth = node.depth();
        match node.report {
            Some(report) if node.below.is_empty() => line(&mut text, name, depth + 1, report, now),
            _ => {
                let _ = writeln!(text, "{name}");
            }
        }
        branches(&mut text, node, &mut vec![], depth, now);
    }
    text.push('\n');
    text
}

/// Moves the report of each inner node into a child `[reporter]`.
fn split_inner_reports(node: &mut Node<'_>) {
    node.below.values_mut().for_each(split_inner_reports);
    if let Some(report) = node.report.take_if(|_| !node.below.is_empty()) {
        node.below.insert("[reporter]".to_owned(), Node { report: Some(report), below: BTreeMap::new() });
    }
}

/// Draws the subtree below a node. `lasts` has, for each outer level, whether its last node has begun.
fn branches(text: &mut String, node: &Node<'_>, lasts: &mut Vec<bool>, depth: usize, now: SystemTime) {
    for (at, (name, child)) in node.below.iter().enumerate() {
        let last = at + 1 == node.below.len();
        for outer in lasts.iter() {
            text.push_str(if *outer { "    " } else { "│   " });
        }
        text.push_str(if last { "└── " } else { "├── " });
        match child.report {
            Some(report) => line(text, name, depth.saturating_sub(lasts.len()), report, now),
            None => {
                let _ = writeln!(text, "{name}");
            }
        }
        lasts.push(last);
        branches(text, child, lasts, depth, now);
        lasts.pop();
    }
}

fn line(text: &mut String, name: &str, beyond: usize, report: &Status, now: SystemTime) {
    let level = report.level.to_string().to_uppercase();
    let age = match report.updated {
        SystemTime::UNIX_EPOCH => "n/a".to_owned(), // written by hand without a time
        updated => statedb::age::of(now.duration_since(updated).unwrap_or_default()),
    };
    let (width, message, count) = (40 + 4 * beyond, &report.message, report.count);
    let _ = writeln!(text, "{name:width$}[{level}] {message} ({age}, x{count})");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hive::Level;

    use super::*;

    fn report(path: &str, level: Level) -> Status {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let mut status = Status::new(path.split('.').map(Arc::from).collect(), 1, level, now);
        status.message = "said".to_owned();
        status.count = 2;
        status
    }

    #[test]
    fn a_parent_that_reports_has_a_line_of_its_own() {
        let reports =
            [("a", Level::Ok), ("a.b.c", Level::Degraded), ("a.d", Level::Stopped), ("e", Level::Ok)];
        let reports = reports.map(|(path, level)| report(path, level));
        let text = draw(&reports, SystemTime::UNIX_EPOCH + Duration::from_secs(126));
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "a",
                "├── [reporter] [OK] said (2m5s, x2)",
                "├── b",
                "│ └── c [DEGRADED] said (2m5s, x2)",
                "└── d [STOPPED] said (2m5s, x2)",
                "e [OK] said (2m5s, x2)",
                "",
            ]
        );
        let column = |line: &str| line.chars().position(|c| c == '[');
        let places: Vec<_> = text.lines().filter(|line| line.contains("x2")).skip(1).map(column).collect();
        assert_eq!(places[0], places[1], "levels stand in one column:\n{text}");
    }
}
