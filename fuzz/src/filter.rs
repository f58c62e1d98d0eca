//! The option `labels`: the labels that are part of an identity. A separate target, because it compiles regular
//! expressions.

use labels::{Filter, Labels};

use crate::input::{parts, text};

/// Prefixes, and labels to be split by them: each label is in exactly one of the two halves.
pub(crate) fn run(data: &[u8]) {
    let [prefixes, texts] = parts(data).map(text);
    let Ok(filter) = Filter::new([prefixes.as_str()]) else { return };
    let labels = Labels::parse(texts.split(','));
    let (identity, info) = filter.split(&labels);
    let both: Labels = identity.0.into_values().chain(info.0.into_values()).collect();
    assert_eq!(both, labels);
}
