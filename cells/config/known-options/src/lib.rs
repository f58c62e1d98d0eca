//! All options of a Cilium 1.20 agent, so that every program accepts a configuration written for it.
//!
//! **Owns** the list: name, type, default, feature; and the names of the options that the operator reads. **Needs** and **provides** nothing: it is given to the builder of a hive.
//!
//! ```
//! use hive::Hive;
//! use hive::prelude::*;
//!
//! let hive = Hive::builder(module("x", "x", [])).foreign(known_options::known_options()).set("enable-hubble", true).build()?;
//! assert_eq!(hive.settings().unused()[0].key, "enable-hubble");
//! # Ok::<(), hive::HiveError>(())
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use hive::config::{Foreign, Kind};

const TABLE: &str = include_str!("options.tsv");
const OF_OPERATOR: &str = include_str!("operator.tsv");

/// Returns all options of a Cilium 1.20 agent, so that a configuration written for it is accepted: values are checked
/// by type, and options that no cell declares have no effect.
pub fn known_options() -> impl Iterator<Item = Foreign> {
    TABLE.lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let (name, kind) = (columns.next()?, Kind::from_name(columns.next()?)?);
        let default = columns.next().unwrap_or_default();
        let file_only = columns.next() == Some("file-only");
        Some(Foreign::new(name, kind).with_default(default).with_file_only(file_only))
    })
}

/// Returns the feature of each option, by option name.
#[must_use]
pub fn features() -> BTreeMap<&'static str, &'static str> {
    let feature = |line: &'static str| Some((line.split('\t').next()?, line.split('\t').nth(4)?));
    TABLE.lines().filter_map(feature).collect()
}

/// Returns the names of the options that the operator's cells declare, in order: one ConfigMap is read by both programs.
pub fn operator_options() -> impl Iterator<Item = &'static str> {
    OF_OPERATOR.lines().filter(|line| !line.starts_with('#'))
}

/// Whether the operator reads an option.
#[must_use]
pub fn is_of_operator(name: &str) -> bool {
    operator_options().any(|option| option == name)
}
