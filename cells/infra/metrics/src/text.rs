//! Conversion of OpenMetrics, which the metrics library writes, into the older text format of Prometheus, which Cilium
//! serves: `HELP` and `TYPE` lines of counters have the suffix `_total` as well, and there are neither units, exemplars nor
//! an end mark.

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
                    family.push_str(without_exemplar(line));
                    family.push('\n');
                }
            }
        }
    }
    families.into_values().collect()
}

/// Returns a sample without its exemplar. A quote within a value of a label has a backslash, so that a text that looks like
/// an exemplar there is none.
fn without_exemplar(line: &str) -> &str {
    let Some((sample, exemplar)) = line.rsplit_once(" # {") else { return line };
    let name = exemplar.split_once("=\"").map_or("", |(name, _)| name);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name { sample } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exemplars_are_left_out_and_values_that_look_like_them_stay() {
        let open = "# TYPE a counter\na_total{x=\"b # {c=\\\"d\\\"} 1\"} 2\na_total{x=\"y\"} 3 # {id=\"e\"} 1.0 5\n# EOF\n";
        assert_eq!(
            prometheus(open, |_| true),
            "# TYPE a_total counter\na_total{x=\"b # {c=\\\"d\\\"} 1\"} 2\na_total{x=\"y\"} 3\n"
        );
    }

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
