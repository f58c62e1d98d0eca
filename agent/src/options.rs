//! The options that a Cilium 1.20 agent knows.

use hive::config::{Foreign, Kind};

/// Names and types of all options of a Cilium 1.20 agent. A configuration that was written for it is accepted: values
/// are checked by these types, and options that no cell declares are reported as having no effect.
pub fn known_options() -> impl Iterator<Item = Foreign> {
    include_str!("options.tsv").lines().filter_map(|line| {
        let (name, kind) = line.split_once('\t')?;
        Some(Foreign { name: name.to_owned(), kind: Kind::from_name(kind)? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_an_option() {
        let lines = include_str!("options.tsv").lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(known_options().count(), lines);
        assert!(known_options().any(|o| o.name == "enable-hubble" && o.kind == Kind::Bool));
    }
}
