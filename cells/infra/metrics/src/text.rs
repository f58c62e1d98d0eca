//! Conversion of OpenMetrics, which the metrics library writes, into the older text format of Prometheus, which Cilium
//! serves: `HELP` and `TYPE` lines of counters have the suffix `_total` as well, and there are neither units nor an end
//! mark.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Converts the text, removes metrics that are not exported, and orders families by name.
pub(crate) fn prometheus(open_metrics: &str, exports: impl Fn(&str) -> bool) -> String {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut help = ("", "");
    let mut current: Option<&mut String> = None;
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), text) => help = (name, text.unwrap_or("")),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                let full = format!("{name}{suffix}");
                current = exports(&full).then(|| {
                    let mut head = String::new();
                    if help.0 == name {
                        let _ = writeln!(head, "# HELP {full} {}", help.1);
                    }
                    let _ = writeln!(head, "# TYPE {full} {kind}");
                    families.entry(full).or_insert(head)
                });
            }
            (Some("#"), ..) => {}
            _ => {
                if let Some(family) = current.as_deref_mut() {
                    family.push_str(line);
                    family.push('\n');
                }
            }
        }
    }
    families.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_the_end_are_left_out_and_parts_of_a_family_join() {
        let open = "# HELP b Bees.\n# TYPE b counter\n# UNIT b seconds\nb_total 1\n\
                    # HELP a Info.\n# TYPE a info\na_info{x=\"1\"} 1\n# TYPE b counter\nb_total{y=\"2\"} 2\n# EOF\n";
        assert_eq!(
            prometheus(open, |_| true),
            "# HELP a_info Info.\n# TYPE a_info gauge\na_info{x=\"1\"} 1\n\
             # HELP b_total Bees.\n# TYPE b_total counter\nb_total 1\nb_total{y=\"2\"} 2\n"
        );
    }
}
