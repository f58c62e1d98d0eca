//! Lists selectors in the form of the API: all of them, or the changed ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::Engine;
use crate::selections::{IdentityIds, Selections, Selects};
use crate::selector::{FqdnSelector, Selector};
use crate::uses::EntryLabels;

/// A selector in the form of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorRow {
    /// The selector's text.
    pub selector: Arc<str>,
    /// The DNS name or pattern, if it selects by these.
    pub fqdn: Option<Box<FqdnSelector>>,
    /// The identities that it selects, sorted.
    pub identities: IdentityIds,
    /// The number of policy entries that use it.
    pub users: usize,
    /// The labels of these entries, without duplicates.
    pub labels: Arc<[Arc<[String]>]>,
}

/// Changed selectors by their texts; `None` for selectors that are no longer in use.
pub type SelectorChanges = Vec<(Arc<str>, Option<SelectorRow>)>;

impl Engine {
    /// Returns the selectors of peers in use.
    pub fn selectors(&self) -> Vec<SelectorRow> {
        all(&self.peers)
    }

    /// Returns the selectors of subjects in use.
    pub fn subject_selectors(&self) -> Vec<SelectorRow> {
        all(&self.subjects)
    }

    /// Returns the number of selectors of peers in use.
    pub fn peer_selector_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the number of identities that selectors of peers may select.
    pub fn identity_count(&self) -> usize {
        self.identities.len()
    }

    /// Returns the changes of [`selectors`](Self::selectors) since the last call. Linear in the changed selectors and
    /// the identities that they select.
    pub fn take_selector_changes(&mut self) -> SelectorChanges {
        changes(&mut self.peers)
    }

    /// Returns the changes of [`subject_selectors`](Self::subject_selectors) since the last call.
    pub fn take_subject_selector_changes(&mut self) -> SelectorChanges {
        changes(&mut self.subjects)
    }
}

fn all<S: Selects + Clone>(selections: &Selections<S>) -> Vec<SelectorRow> {
    let mut texts: Vec<&Arc<str>> = selections.texts().collect();
    texts.dedup();
    let mut last = None;
    texts.into_iter().filter_map(|text| row(selections, text, &mut last)).collect()
}

fn changes<S: Selects + Clone>(selections: &mut Selections<S>) -> SelectorChanges {
    let changed = selections.take_changed();
    let mut last = None;
    let with_row = |text| {
        let row = row(selections, &text, &mut last);
        (text, row)
    };
    changed.into_iter().map(with_row).collect()
}

/// Returns the row of the selectors with a text; `None` if there is none. A selector of nodes and one of endpoints may
/// have the same text; the API lists them as one row. `last` are the labels of the previous row.
fn row<S: Selects + Clone>(
    selections: &Selections<S>,
    text: &Arc<str>,
    last: &mut Option<EntryLabels>,
) -> Option<SelectorRow> {
    let mut with_text = selections.with_text(text);
    let first = with_text.next()?;
    let fqdn = match first.selector.selector() {
        Selector::Fqdn(fqdn) => Some(Box::new(fqdn.clone())),
        _ => None,
    };
    let mut row = SelectorRow {
        selector: first.text.clone(),
        fqdn,
        identities: first.identities.clone(),
        users: first.uses.count,
        labels: first.uses.labels(last.as_ref()),
    };
    *last = Some(row.labels.clone());
    for other in with_text {
        row.identities.extend_from_slice(&other.identities);
        row.identities.sort_unstable();
        row.users += other.uses.count;
        let labels: BTreeSet<_> =
            row.labels.iter().cloned().chain(other.uses.labels(None).iter().cloned()).collect();
        row.labels = labels.into_iter().collect();
    }
    Some(row)
}
